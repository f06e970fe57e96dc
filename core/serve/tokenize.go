package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

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
// messages with tools and what else the chat template uses. If that engine fails, another one is asked.
func (r *request) askEngine() error {
	err := errTokens
	var was *engine.Engine
	for range 2 {
		e := r.s.fleet.Any(was)
		if e == nil {
			break
		}
		if err = r.askOne(e); err == nil || !engine.Elsewhere(err) || r.life.Err() != nil {
			break
		}
		was = e
	}
	return err
}

func (r *request) askOne(e *engine.Engine) error {
	defer r.side.End()
	r.side.Within(r.s.tokenizing)
	r.head = e.Head(r.head[:0], "POST", "/tokenize")
	r.head = e.Finish(append(r.head, "Content-Type: application/json\r\n"...), len(r.body), 0)
	if err := r.side.Send(e, r.head, r.body); err != nil {
		return err
	}
	most := 8*r.s.cfg.Limits.BodyBytes + 4096 // an id a byte
	if r.side.Length() > int64(most) {
		return fmt.Errorf("%w: /tokenize of %s gives %d bytes", errTokens, e.URL(), r.side.Length())
	}
	text := r.held[:0]
	for {
		if len(text) == cap(text) {
			text = append(make([]byte, 0, min(max(2*cap(text), 16<<10), most+1)), text...)
		}
		n, err := r.side.Read(text[len(text):cap(text)])
		if text = text[:len(text)+n]; err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if len(text) > most {
			return fmt.Errorf("%w: /tokenize of %s gives more than %d bytes", errTokens, e.URL(), most)
		}
	}
	r.held = text[:0]
	if status := r.side.Status(); status != 200 {
		return &engine.StatusError{Code: status, Message: fmt.Sprintf("%.200s", text)}
	}
	var ok bool
	if r.tokens, ok = tokensOf(text, r.tokens); !ok {
		return fmt.Errorf("%w: /tokenize of %s gives %.200q", errTokens, e.URL(), text)
	}
	return nil
}

// tokensOf reads the ids of an answer of /tokenize.
func tokensOf(answer []byte, room []block.Token) ([]block.Token, bool) {
	s := scanner{data: answer}
	tokens, found := room[:0], false
	if !s.open('{') {
		return tokens, false
	}
	for first := true; ; first = false {
		key, more := s.key(first)
		if !more {
			return tokens, found && !s.bad
		}
		if string(key) != "tokens" {
			s.value()
			continue
		}
		if s.peek() != '[' {
			return tokens, false
		}
		start := s.at
		if found = s.ids(&tokens); !found {
			s.at = start
			if v := s.value(); len(v) == 2 { // of an empty text
				found = true
			}
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
	item := strconv.AppendUint(append(make([]byte, 0, len(r.asked.text)+40), `{"id":`...), id, 10)
	item = append(append(append(item, `,"text":`...), r.asked.text...), '}')
	if err := t.queue.Send(ctx, item); err != nil {
		return err
	}
	select {
	case tokens := <-answer:
		if tokens == nil {
			return errTokens
		}
		r.tokens = append(r.tokens[:0], tokens...)
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
