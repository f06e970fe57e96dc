package kvrouter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// maxAttempts bounds the workers that a request is sent to until one begins.
const maxAttempts = 4

// Request is a prompt to generate from.
type Request struct {
	// Request decides where it goes. Tokens, and what else it lends, are borrowed until Generate returns; Book is set, and ID, if it is "", is drawn.
	router.Request
	// Fields is a MessagePack map with what the worker gets besides token_ids and routing: model, stop_conditions and so on. Borrowed.
	Fields []byte
	// Send is the prompt that the worker gets, if that is not Tokens.
	Send []uint32
	// ExpectedOutput is how many tokens will probably be generated, 0 if nobody knows: with router_track_output_blocks, blocks weigh the less the
	// nearer the answer is to its end.
	ExpectedOutput int
	// Routing is a MessagePack map that routing begins with; dp_rank, and backend_instance_id if the worker is pinned, are added.
	Routing []byte
}

// Choice tells where a request went.
type Choice struct {
	router.Choice
	RequestID    string
	PromptBlocks int // full blocks of the prompt
}

// Timing tells how a request went. Durations that have not ended are 0.
type Timing struct {
	Received time.Time
	Wait     time.Duration // until it was sent
	Prefill  time.Duration // from then to the first item
	Total    time.Duration // from the beginning to the last item
}

// Item is one item of a stream.
type Item struct {
	Data  []byte // a MessagePack map, as the worker gave it
	First bool
	Last  bool // it has a finish reason
}

// Stream is the answer to a request. Recv is for one goroutine at a time, the other methods for any.
type Stream struct {
	k      *KvRouter
	id     string
	inner  *runtime.Stream
	choice Choice
	expect int       // tokens to be generated; 0: not known
	once   sync.Once // of the stream's end
	free   sync.Once // of the booking's

	mu     sync.Mutex // guards timing, leave and keeper
	timing Timing
	leave  func() bool // no longer ends with the caller's context
	keeper *time.Timer // renews the booking while the stream is open; nil once it is closed

	// Of Recv.
	begun    bool
	reported bool // what the engine found in its cache
	tokens   int  // generated
	output   int  // blocks of them that are booked
	err      error
}

// Generate decides where a request goes, books it and sends it; it waits while the request has to. When it returns a stream, the worker has begun.
// Errors: those of router.Router.Wait, of runtime.Runtime.Call, and that of ctx, whose end also ends the stream.
func (k *KvRouter) Generate(ctx context.Context, q *Request) (*Stream, error) {
	s := &Stream{k: k, expect: q.ExpectedOutput, timing: Timing{Received: time.Now()}}
	req := q.Request
	if req.Book = true; req.ID == "" {
		req.ID = requestID()
	}
	s.id, s.choice = req.ID, Choice{RequestID: req.ID, PromptBlocks: len(q.Tokens) / k.router.BlockSize()}
	if err := s.dispatch(ctx, &req, q); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeper = time.AfterFunc(k.renewal, owned.Guarded(s.keep))
	s.leave = owned.After(ctx, s.Close)
	return s, nil
}

// keep renews the booking, as long as the stream is open: it ends with the stream, however long its worker is silent or its reader busy.
func (s *Stream) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil && s.k.router.Renew(s.id) == nil {
		s.keeper.Reset(s.k.renewal)
	}
}

// dispatch sends the request to a worker that begins to answer, trying some.
func (s *Stream) dispatch(ctx context.Context, req *router.Request, q *Request) (err error) {
	var tried map[uint64]struct{}
	for attempt := 1; ; attempt++ {
		choice, placed := s.k.place(ctx, req, tried)
		if placed != nil {
			if err != nil && errors.Is(placed, router.ErrNoWorkers) && !errors.Is(err, plane.ErrInstanceNotFound) {
				return err // nobody else can be asked: what the last one said tells more
			}
			return placed
		}
		body, malformed := q.body(choice)
		if malformed != nil {
			_ = s.k.router.Free(s.id)
			return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, malformed)
		}
		s.choice.Choice, s.timing.Wait = choice, time.Since(s.timing.Received)
		if s.inner, err = s.k.client.Direct(ctx, choice.WorkerID, &runtime.Request{ID: s.id, Body: body}); err == nil {
			return nil
		}
		_ = s.k.router.Free(s.id) // its worker may be gone
		if ctx.Err() != nil || req.Constraints.HasWorker || attempt == maxAttempts || !elsewhere(err) {
			return err
		}
		if tried == nil {
			tried = make(map[uint64]struct{})
		}
		tried[choice.WorkerID] = struct{}{}
	}
}

// body is what the worker gets.
func (q *Request) body(c router.Choice) ([]byte, error) {
	send := q.Send
	if send == nil {
		send = q.Tokens
	}
	routing := wire.AppendRouting(nil, q.Routing, c.WorkerID, c.DPRank, q.Constraints.HasWorker)
	return wire.AppendRequest(make([]byte, 0, len(q.Fields)+5*len(send)+len(routing)+64), q.Fields, send, routing)
}

// elsewhere tells whether another worker may do what this one did not begin.
func elsewhere(err error) bool {
	for _, fault := range []error{plane.ErrCannotConnect, plane.ErrTimeout, plane.ErrOverloaded, plane.ErrUnavailable, plane.ErrInstanceNotFound, plane.ErrDisconnected} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// place decides and books. Those that were tried, and those that are left alone for a while, take part only if there is nobody else.
func (k *KvRouter) place(ctx context.Context, req *router.Request, tried map[uint64]struct{}) (router.Choice, error) {
	inhibited := k.client.Inhibited()
	if req.Constraints.HasWorker || len(tried)+len(inhibited) == 0 {
		return k.router.Wait(ctx, req)
	}
	narrowed := *req
	for _, without := range [...]bool{true, false} {
		allowed := make(map[uint64]struct{})
		for _, id := range k.client.IDs() {
			_, was := tried[id]
			_, left := inhibited[id]
			_, may := req.Constraints.Allowed[id]
			if !was && !(without && left) && (may || req.Constraints.Allowed == nil) {
				allowed[id] = struct{}{}
			}
		}
		narrowed.Constraints.Allowed = allowed
		choice, err := k.router.Wait(ctx, &narrowed)
		if !without || !errors.Is(err, router.ErrNoWorkers) {
			return choice, err
		}
	}
	panic("not reached")
}

// Choice tells where the request went.
func (s *Stream) Choice() Choice { return s.choice }

// Timing tells how the request went so far.
func (s *Stream) Timing() Timing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timing
}

// Recv gives the next item. io.EOF: the answer is complete. Errors: a *plane.WorkerError, plane.ErrDisconnected, plane.ErrCancelled (after Stop or
// Close), plane.ErrProtocol. The booking ends with the stream, whatever its end is.
func (s *Stream) Recv() (Item, error) {
	if s.err != nil {
		return Item{}, s.err
	}
	it, err := s.next()
	if err != nil {
		s.err = err
		s.k.client.Report(s.choice.WorkerID, err)
		s.Close()
	}
	return it, err
}

func (s *Stream) next() (Item, error) {
	got, err := s.inner.Recv()
	for err == nil && got.Data == nil { // an annotation
		got, err = s.inner.Recv()
	}
	if err != nil {
		return Item{}, err
	}
	out, err := wire.ReadOutput(got.Data)
	if err != nil {
		message := fmt.Sprintf("the worker's handler yielded %s: %v", shown(got.Data), err)
		return Item{}, &plane.WorkerError{Failure: wire.Failure{Type: "Unknown", Class: "Internal", Message: message}}
	}
	first := !s.begun
	s.begun = true
	if first {
		_ = s.k.router.MarkPrefillComplete(s.id) // its worker may be gone
	}
	if first || out.Ends {
		s.time(first, out.Ends)
	}
	if out.CachedKnown && !s.reported {
		s.reported = true
		_ = s.k.router.ReportCachedTokens(s.id, out.Cached) // it may be recorded no more
	}
	if s.k.config.RouterTrackOutputBlocks {
		s.grow(out.Tokens)
	}
	return Item{Data: got.Data, First: first, Last: out.Ends}, nil
}

// shown is the beginning of an item as text.
func shown(item []byte) string {
	const most = 80
	text, err := wire.ToJSON(nil, item)
	switch {
	case err != nil:
		return "what is not MessagePack"
	case len(text) > most:
		return strings.ToValidUTF8(string(text[:most]), "") + "..."
	}
	return string(text)
}

func (s *Stream) time(first, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := time.Since(s.timing.Received)
	if first {
		s.timing.Prefill = since - s.timing.Wait
	}
	if last {
		s.timing.Total = since
	}
}

// grow books blocks of what is generated: one with the first token, and one with each block's first.
func (s *Stream) grow(tokens int) {
	s.tokens += tokens
	size := s.k.router.BlockSize()
	if n := (s.tokens+size-1)/size - s.output; n > 0 {
		var rest *float64 // of the answer, as a share
		if s.expect > 0 {
			share := max(0, 1-float64(s.tokens)/float64(s.expect))
			rest = &share
		}
		_ = s.k.router.AddOutputBlock(s.id, n, rest)
		s.output += n
	}
}

// Stop asks the worker to end the answer gracefully: Recv gives what still comes.
func (s *Stream) Stop() { s.inner.Stop() }

// Release ends the booking, before Close does.
func (s *Stream) Release() {
	s.free.Do(func() { _ = s.k.router.Free(s.id) }) // its worker may be gone
}

// Close ends the stream and the booking; an answer that is not complete is killed. It is idempotent.
func (s *Stream) Close() {
	s.once.Do(func() {
		s.inner.Close()
		s.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.leave != nil {
			s.leave()
			s.keeper.Stop()
			s.keeper = nil
		}
	})
}
