package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

// tokenBytes is the size of a block.Token.
const tokenBytes = 4

var errTokens = errors.New("no token ids")

// tokenize gets the token ids of the prompt, if it can be had; else the request is routed by load alone, which is counted.
func (r *request) tokenize() {
	var err error
	switch {
	case r.asked.text == nil && !r.asked.chat:
		return // nothing to tokenise, or several prompts
	case r.s.cfg.Tokenizer == Nobody:
		err = errTokens
	case r.s.cfg.Tokenizer == ByHost && r.asked.text != nil:
		err = r.s.texts.ask(r)
	default:
		err = r.askEngine()
	}
	if err != nil {
		r.tokens = r.tokens[:0]
		r.s.counters.untokenized.Add(1)
		r.s.log.Debug("routed by load alone", "error", err.Error())
	}
}

// askEngine sends the body as it is to an engine's /tokenize, which takes of it what it takes of a completion, for both engines: the prompt, or the
// messages with tools and what else the chat template uses. If that engine fails, another one is asked, in what is left of the time.
func (r *request) askEngine() error {
	err, by := errTokens, time.Now().Add(r.s.tokenizing)
	var was *engine.Engine
	for range 2 {
		e := r.s.fleet.Any(was)
		if e == nil {
			break
		}
		if err = r.askOne(e, by); err == nil || !engine.Elsewhere(err) || r.life.Err() != nil || time.Until(by) <= 0 {
			break
		}
		was = e
	}
	return err
}

func (r *request) askOne(e *engine.Engine, by time.Time) error {
	defer r.side.End()
	r.side.By(by)
	r.head = e.Head(r.head[:0], "POST", "/tokenize")
	r.head = e.Finish(append(r.head, "Content-Type: application/json\r\n"...), len(r.body), 0)
	if err := r.side.Send(e, r.head, r.body); err != nil {
		return err
	}
	if status := r.side.Status(); status != http.StatusOK {
		n, _ := r.side.Read(r.piece[:firstPiece]) // what it says of that is for the log alone
		return &engine.StatusError{Code: status, Message: fmt.Sprintf("%.200s", r.piece[:n])}
	}
	list := tokenList{ids: r.tokens[:0], front: r.held[:0]}
	defer func() { r.held = list.front[:0] }()
	for {
		n, err := r.side.Read(r.piece[:firstPiece])
		if !list.add(r.piece[:n], r.grow) {
			return fmt.Errorf("%w: /tokenize of %s: %s", errTokens, e.URL(), list.fault)
		}
		switch {
		case err == nil:
			continue
		case err != io.EOF:
			return err
		case !list.complete:
			return fmt.Errorf("%w: /tokenize of %s gives %.200q", errTokens, e.URL(), list.front)
		}
		r.tokens = list.ids
		return nil
	}
}

// grow makes room for more ids, if there is any: one for each byte of the request, and what a template adds, is what a tokeniser can give.
func (r *request) grow(ids []block.Token) ([]block.Token, bool) {
	const template = 64 << 10
	room := min(max(2*cap(ids), 4<<10), len(r.body)+template)
	if room <= len(ids) || !r.reserve(cap(r.body)+tokenBytes*room) {
		return ids, false
	}
	return append(make([]block.Token, 0, room), ids...), true
}

// tokenList reads an answer of /tokenize as it comes, and keeps no more of it than the ids.
type tokenList struct {
	ids      []block.Token
	front    []byte // what comes before the list
	inside   bool   // the list began
	complete bool   // and ended; what follows does not matter
	digits   int    // of the id that comes
	value    uint64
	comma    bool // was last, or nothing
	fault    string
}

// add reads what came. grow gives the ids more room.
func (l *tokenList) add(piece []byte, grow func([]block.Token) ([]block.Token, bool)) bool {
	const longest = 64 << 10 // of the front
	if !l.inside {
		l.front = append(l.front, piece...)
		at := listBegins(l.front)
		if at < 0 {
			l.fault = "no list of tokens"
			return len(l.front) < longest
		}
		l.inside, l.comma, piece = true, true, l.front[at:]
	}
	for i := 0; i < len(piece) && !l.complete; i++ {
		c := piece[i]
		if c-'0' <= 9 {
			l.value = l.value*10 + uint64(c-'0')
			if l.digits++; l.digits > 10 || l.value > math.MaxUint32 {
				l.fault = "an id that is none"
				return false
			}
			continue
		}
		if l.digits > 0 {
			if len(l.ids) == cap(l.ids) {
				var ok bool
				if l.ids, ok = grow(l.ids); !ok {
					l.fault = "more ids than there is room for"
					return false
				}
			}
			if !l.comma {
				l.fault = "no comma between ids"
				return false
			}
			l.ids = append(l.ids, block.Token(l.value))
			l.value, l.digits, l.comma = 0, 0, false
		}
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		case c == ',' && !l.comma:
			l.comma = true
		case c == ']' && (!l.comma || len(l.ids) == 0):
			l.complete = true
		default:
			l.fault = "an id that is none"
			return false
		}
	}
	return true
}

// listBegins gives where the elements of the member "tokens" of an object begin; -1 if that has not come.
func listBegins(text []byte) int {
	s := scanner{data: text}
	if !s.open('{') {
		return -1
	}
	for first := true; ; first = false {
		key, more := s.key(first)
		if !more {
			return -1
		}
		if string(key) == "tokens" && s.peek() == '[' {
			return s.at + 1
		}
		if s.value(); s.bad {
			return -1
		}
	}
}

// Texts are waiting for the host to turn them into token ids.
type texts struct {
	queue   *stream.Stream
	timeout time.Duration

	mu      sync.Mutex // guards the rest
	last    uint64
	waiting map[uint64]chan []block.Token // of one
}

// textQueue is how many texts may wait for the host before requests wait to put theirs.
const textQueue = 256

func newTexts(timeout time.Duration) *texts {
	return &texts{queue: stream.New(textQueue), timeout: timeout, waiting: map[uint64]chan []block.Token{}}
}

// ask waits for the host's answer.
func (t *texts) ask(r *request) error {
	if !json.Valid(r.asked.text) { // it would spoil the item
		return errTokens
	}
	size := len(r.asked.text) + 40
	if !r.reserve(cap(r.body) + size) {
		return errTokens
	}
	ctx, cancel := context.WithTimeout(r.life, t.timeout)
	defer cancel()
	answer := make(chan []block.Token, 1)
	t.mu.Lock()
	t.last++
	id := t.last
	t.waiting[id] = answer
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.waiting, id)
		t.mu.Unlock()
	}()
	item := strconv.AppendUint(append(make([]byte, 0, size), `{"id":`...), id, 10)
	item = append(append(append(item, `,"text":`...), r.asked.text...), '}')
	if err := t.queue.Send(ctx, item); err != nil {
		return err
	}
	select {
	case tokens := <-answer:
		if tokens == nil {
			return errTokens
		}
		if !r.reserve(cap(r.body) + size + tokenBytes*cap(tokens)) {
			return errTokens
		}
		r.tokens = tokens // a copy already
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w from the host: %w", errTokens, ctx.Err())
	}
}

// tell gives a text's token ids, which are copied; nil says that there are none. An id that nobody waits for any more is none that matters.
func (t *texts) tell(id uint64, tokens []block.Token) {
	t.mu.Lock()
	answer := t.waiting[id]
	delete(t.waiting, id)
	t.mu.Unlock()
	if answer != nil {
		if tokens != nil {
			tokens = append(make([]block.Token, 0, len(tokens)), tokens...)
		}
		answer <- tokens
	}
}
