package mocker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

// Errors of Generate, and of its stream.
var (
	// ErrRequest: this engine cannot serve the request; the message says which value is at fault.
	ErrRequest = errors.New("bad request")
	// ErrBusy: as many requests wait as may. Try again later.
	ErrBusy = errors.New("the engine is busy")
	// ErrStopped: the engine was closed.
	ErrStopped = errors.New("the engine stopped")
)

// GenerateOptions is what may be said about a request besides its prompt.
type GenerateOptions struct {
	MaxTokens int `json:"max_tokens"` // output tokens
	// ResponseBufferSize is how many items may wait for the consumer before the engine's answer does. The engine
	// itself goes on: what it generated waits behind them.
	ResponseBufferSize int `json:"response_buffer_size"`
}

// maxResponseBuffer bounds ResponseBufferSize.
const maxResponseBuffer = 1 << 20

// DefaultGenerateOptions are those of the OpenAI API and of Dynamo.
func DefaultGenerateOptions() GenerateOptions {
	return GenerateOptions{MaxTokens: defaultMaxTokens, ResponseBufferSize: 100}
}

// ParseGenerateOptions reads a JSON object over DefaultGenerateOptions. Unknown fields are refused. Errors: ErrRequest.
func ParseGenerateOptions(data []byte) (GenerateOptions, error) {
	o := DefaultGenerateOptions()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, fmt.Errorf("%w: options: %s", ErrRequest, jsonFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return o, fmt.Errorf("%w: options: something follows the JSON object", ErrRequest)
	}
	return o, nil
}

// Generate serves a request without HTTP, as the engine behind a worker does: an item for each output token,
// {"token_ids":[n]}; the last one has "finish_reason": "length", or "cancelled" after the consumer's Stop. The prompt is kept.
// Errors: ErrRequest, ErrBusy, ErrStopped. The caller closes the stream.
func (m *Mocker) Generate(prompt []block.Token, o GenerateOptions) (*stream.Stream, error) {
	if o.ResponseBufferSize < 0 || o.ResponseBufferSize > maxResponseBuffer {
		return nil, fmt.Errorf("%w: response_buffer_size is %d, must be in 0..%d", ErrRequest, o.ResponseBufferSize, maxResponseBuffer)
	}
	if refused := m.check(&completionRequest{Prompt: prompt, MaxTokens: &o.MaxTokens}); refused != nil {
		return nil, fmt.Errorf("%w: %s", ErrRequest, refused.Message)
	}
	if !m.enter() {
		return nil, ErrStopped
	}
	box := newMailbox()
	q := newSequence(prompt, o.MaxTokens, m.cfg.BlockSize, m.cfg.HashSeed, box)
	if refused := m.submit(q); refused != nil {
		m.owned.Done()
		if refused.status == http.StatusTooManyRequests {
			return nil, fmt.Errorf("%w: %s", ErrBusy, refused.Message)
		}
		return nil, fmt.Errorf("%w: %s", ErrRequest, refused.Message)
	}
	s := stream.New(o.ResponseBufferSize)
	m.owned.Go(func() {
		defer m.owned.Done()
		s.End(owned.Try(func() error { return m.answer(q, box, s) }))
	})
	return s, nil
}

// enter counts a goroutine among those that Close waits for, unless the engine is closed.
func (m *Mocker) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return false
	}
	m.owned.Add(1)
	return true
}

// answer sends what the engine generates for a sequence.
func (m *Mocker) answer(q *sequence, box *mailbox, s *stream.Stream) error {
	var item []byte
	for sent := 0; ; {
		select {
		case <-box.ready:
		case <-s.Stopping():
		case <-m.ctx.Done():
			return ErrStopped
		}
		tokens, _ := box.take()
		for _, t := range tokens {
			if stopping(s) {
				break
			}
			sent++
			item = append(strconv.AppendUint(append(item[:0], `{"token_ids":[`...), uint64(t), 10), ']')
			if sent == q.maxTokens {
				item = append(item, `,"finish_reason":"length"`...)
			}
			if err := s.Send(m.ctx, append(item, '}')); err != nil {
				m.cancel(q)
				return m.unsent(err)
			}
		}
		switch {
		case sent == q.maxTokens:
			return nil
		case stopping(s):
			m.cancel(q)
			return m.unsent(s.Send(m.ctx, []byte(`{"token_ids":[],"finish_reason":"cancelled"}`)))
		}
	}
}

// stopping tells whether the consumer wants no more.
func stopping(s *stream.Stream) bool {
	select {
	case <-s.Stopping():
		return true
	default:
		return false
	}
}

// unsent is how an answer ends whose item could not be sent.
func (m *Mocker) unsent(err error) error {
	if m.ctx.Err() != nil {
		return ErrStopped
	}
	return err
}
