package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// Mode is how an engine is chosen. The names are those of Dynamo's frontend.
type Mode string

// Modes. All of them book what they choose.
const (
	KV          Mode = "kv"           // by what the ranks hold and are busy with: router.Router
	RoundRobin  Mode = "round-robin"  // in turn
	Random      Mode = "random"       // at random
	LeastLoaded Mode = "least-loaded" // with the fewest requests
	PowerOfTwo  Mode = "power-of-two" // with fewer requests, of two at random
	Direct      Mode = "direct"       // the one the request names
)

var modes = []Mode{KV, RoundRobin, Random, LeastLoaded, PowerOfTwo, Direct}

func (m Mode) check() error {
	if !slices.Contains(modes, m) {
		return fmt.Errorf("%w: router mode %q, expected one of %v", ErrInvalid, m, modes)
	}
	return nil
}

func randomPrefix() string { return rand.Text()[:13] + "-" }

// Lease is a place for a request: an engine and a rank, booked until Done. Next is for one goroutine at a time, the other methods for any.
type Lease struct {
	f      *Fleet
	q      router.Request
	member *member
	choice router.Choice
	tried  map[uint64]struct{}
	prompt int // blocks

	mu     sync.Mutex // guards the rest
	booked bool
	first  bool
	tokens int // generated
	output int // blocks of them that are booked
}

// Route decides where a request goes, and books it; it waits while the request has to. Tokens, and what else the request lends, are borrowed until Done
// if Next may be called. Book is set, and ID, if it is "", is drawn. Errors: those of router.Router.Wait; ErrNoWorkers if no engine can serve now.
func (f *Fleet) Route(ctx context.Context, q *router.Request) (*Lease, error) {
	l := &Lease{f: f, q: *q, prompt: len(q.Tokens) / f.router.BlockSize()}
	if l.q.Book = true; l.q.ID == "" {
		l.q.ID = f.prefix + strconv.FormatUint(f.ids.Add(1), 16)
	}
	if err := l.place(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// Engine is where the request goes.
func (l *Lease) Engine() *engine.Engine { return l.member.engine }

// Choice names the worker and its rank, which counts from the worker's DPStart.
func (l *Lease) Choice() router.Choice { return l.choice }

// ID is that of the request.
func (l *Lease) ID() string { return l.q.ID }

// PromptBlocks is the number of full blocks of the prompt.
func (l *Lease) PromptBlocks() int { return l.prompt }

// DPRank is the rank as the engine counts them: from 0.
func (l *Lease) DPRank() uint32 { return l.choice.DPRank - l.member.spec.DPStart }

// Tried is the number of engines that were tried and given up.
func (l *Lease) Tried() int { return len(l.tried) }

// place decides and books.
func (l *Lease) place(ctx context.Context) error {
	const patience = 8 // an engine may leave between a choice and its booking
	for try := 1; ; try++ {
		choice, chosen, err := l.decide(ctx)
		if err != nil && chosen && errors.Is(err, router.ErrNoWorkers) && try < patience {
			continue
		}
		if err != nil {
			return err
		}
		if m, ok := l.f.routed.Load(choice.WorkerID); ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.member, l.choice, l.booked, l.first, l.tokens, l.output = m.(*member), choice, true, false, 0, 0
			return nil
		}
		if _ = l.f.router.Free(l.q.ID); try >= patience {
			return fmt.Errorf("%w: engines come and go too fast", router.ErrNoWorkers)
		}
	}
}

// decide asks the router; chosen tells that it was asked for a certain engine, and another one may do.
func (l *Lease) decide(ctx context.Context) (c router.Choice, chosen bool, err error) {
	q := l.q
	mode := l.f.opts.Mode
	switch {
	case q.Constraints.HasWorker:
	case mode == Direct:
		return router.Choice{}, false, fmt.Errorf("%w: router mode direct: the request names no worker", ErrInvalid)
	case mode == KV && len(l.tried) == 0:
	default:
		left := l.left()
		if len(left) == 0 {
			return router.Choice{}, false, l.f.absent(fmt.Errorf("%w: no engine that was not tried can serve", router.ErrNoWorkers))
		}
		if mode != KV {
			q.Constraints.HasWorker, q.Constraints.Worker, chosen = true, l.f.pick(mode, left).spec.ID, true
			break
		}
		q.Constraints.Allowed = make(map[uint64]struct{}, len(left))
		for _, m := range left {
			q.Constraints.Allowed[m.spec.ID] = struct{}{}
		}
	}
	if c, err = l.f.router.Wait(ctx, &q); errors.Is(err, router.ErrNoWorkers) && !chosen && !q.Constraints.HasWorker {
		err = l.f.absent(err)
	}
	return c, chosen, err
}

// absent says how the engines are if none of them is a candidate, instead of err, for which that is the reason.
func (f *Fleet) absent(err error) error {
	if len(f.candidates()) > 0 {
		return err
	}
	count := make(map[engine.State]int)
	all := f.Engines()
	for i := range all {
		count[all[i].State]++
	}
	var said []string
	for _, s := range slices.Sorted(maps.Keys(count)) {
		said = append(said, fmt.Sprintf("%d %s", count[s], s))
	}
	return fmt.Errorf("%w: of %d engines %s", router.ErrNoWorkers, len(all), cmp.Or(strings.Join(said, ", "), "none"))
}

// left gives the candidates that were not tried, and may be.
func (l *Lease) left() []*member {
	left := slices.DeleteFunc(l.f.candidates(), func(m *member) bool {
		_, was := l.tried[m.spec.ID]
		c := &l.q.Constraints
		_, may := c.Allowed[m.spec.ID]
		return was || c.Allowed != nil && !may || c.HasDPRank && !m.hasRank(c.DPRank)
	})
	has := func(m *member) bool { return slices.Contains(m.adapters(), l.q.LoRAName) }
	if l.q.LoRAName == "" || !slices.ContainsFunc(left, has) {
		return left
	}
	return slices.DeleteFunc(left, func(m *member) bool { return !has(m) })
}

// Any gives an engine that can serve, another one than that, if there is one; nil if there is none. Asked again and again it gives them in turn.
func (f *Fleet) Any(but *engine.Engine) *engine.Engine {
	from := f.candidates()
	if len(from) == 0 {
		return nil
	}
	turn := f.turn.Add(1)
	for i := range uint64(len(from)) {
		if e := from[(turn+i)%uint64(len(from))].engine; e != but {
			return e
		}
	}
	return nil
}

// HasRank tells whether any engine has a data-parallel rank, counted from its DPStart.
func (f *Fleet) HasRank(rank uint32) bool {
	f.mu.Lock()
	order := f.order
	f.mu.Unlock()
	return slices.ContainsFunc(order, func(m *member) bool { return m.hasRank(rank) })
}

func (m *member) hasRank(rank uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return rank >= m.spec.DPStart && rank-m.spec.DPStart < m.dp
}

// Len is the number of engines.
func (f *Fleet) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.order)
}

// pick chooses without a look at what they hold. There is at least one.
func (f *Fleet) pick(mode Mode, from []*member) *member {
	turn := int((f.turn.Add(1) - 1) % uint64(len(from)))
	switch mode {
	case Random:
		return from[mathrand.IntN(len(from))]
	case LeastLoaded:
		best, least := from[turn], math.MaxInt
		for i := range from {
			m := from[(turn+i)%len(from)]
			if n := m.engine.Status().Active; n < least {
				best, least = m, n
			}
		}
		return best
	case PowerOfTwo:
		a, b := from[mathrand.IntN(len(from))], from[mathrand.IntN(len(from))]
		if b.engine.Status().Active < a.engine.Status().Active {
			return b
		}
		return a
	}
	return from[turn]
}

// Next gives the place back after an error, and takes another one, if another engine may do (engine.Elsewhere) and there is one. It must not be called
// once a piece of the answer was given away. Errors: err itself, and those of Route.
func (l *Lease) Next(ctx context.Context, err error) error {
	l.Done()
	if !engine.Elsewhere(err) || ctx.Err() != nil || l.q.Constraints.HasWorker || len(l.tried)+1 >= l.f.opts.Attempts {
		return err
	}
	if l.tried == nil {
		l.tried = make(map[uint64]struct{})
	}
	l.tried[l.choice.WorkerID] = struct{}{}
	placed := l.place(ctx)
	if errors.Is(placed, router.ErrNoWorkers) {
		return err // what the last one said tells more
	}
	return placed
}

// FirstToken says that the engine began to answer: the prompt is no load any more.
func (l *Lease) FirstToken() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.booked && !l.first {
		l.first = true
		_ = l.f.router.MarkPrefillComplete(l.q.ID) // its worker may be gone
	}
}

// Progress says that so many further tokens were generated.
func (l *Lease) Progress(tokens int) {
	if !l.f.router.TracksOutput() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens += tokens
	size := l.f.router.BlockSize()
	if n := (l.tokens+size-1)/size - l.output; l.booked && n > 0 {
		_ = l.f.router.AddOutputBlock(l.q.ID, n, nil)
		l.output += n
	}
}

// Cached says how many tokens of the prompt the engine found in its cache, if it told: see router.Router.ReportCachedTokens.
func (l *Lease) Cached(tokens int64) {
	_ = l.f.router.ReportCachedTokens(l.q.ID, tokens) // it may be recorded no more
}

// Done ends the booking. It is idempotent.
func (l *Lease) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.booked {
		l.booked = false
		_ = l.f.router.Free(l.q.ID) // its worker may be gone
	}
}

// Stream is the answer to Complete. Recv is for one goroutine at a time, the other methods for any.
type Stream struct {
	*Lease
	inner *engine.Stream
}

// Complete sends a prompt to the engine that Route chooses, and to others while none began. q.Tokens is the prompt, unless c has one. When it returns,
// the first piece is here. Errors: those of Route and of engine.Engine.Complete.
func (f *Fleet) Complete(ctx context.Context, q *router.Request, c *engine.Completion) (*Stream, error) {
	l, err := f.Route(ctx, q)
	if err != nil {
		return nil, err
	}
	send := *c
	if send.Tokens == nil {
		send.Tokens = q.Tokens
	}
	send.ID = cmp.Or(send.ID, l.q.ID)
	for {
		send.DPRank = l.DPRank()
		s, err := l.Engine().Complete(ctx, &send)
		if err == nil {
			return &Stream{l, s}, nil
		}
		if err = l.Next(ctx, err); err != nil {
			return nil, err
		}
	}
}

// Recv gives the next item; see engine.Stream.Recv. The booking ends with the stream.
func (s *Stream) Recv() (engine.Item, error) {
	it, err := s.inner.Recv()
	if err != nil {
		s.Done()
		return it, err
	}
	s.FirstToken()
	s.Progress(len(it.Tokens))
	if it.Usage != nil && it.Usage.CachedKnown {
		s.Cached(int64(it.Usage.CachedTokens))
	}
	return it, nil
}

// Close ends the stream and the booking.
func (s *Stream) Close() {
	s.inner.Close()
	s.Done()
}
