package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Completion is a prompt to generate from.
type Completion struct {
	Tokens []uint32                   // the prompt; borrowed until Complete returns
	Fields map[string]json.RawMessage // others of the body: max_tokens, temperature, model and so on; see Reserved. Borrowed
	DPRank uint32                     // see Request
	ID     string                     // sent as X-Request-Id, by which vLLM's log names the request; "": none
}

// Reserved are the fields of a body that Complete writes itself. n and best_of may only be 1.
var Reserved = []string{"prompt", "stream", "stream_options", "return_token_ids", "return_tokens_as_token_ids", "echo"}

// Usage tells how many tokens there were.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int
	CachedKnown      bool // the engine told CachedTokens: SGLang needs --enable-cache-report, vLLM --enable-prompt-tokens-details
}

// Item is a piece of what is generated.
type Item struct {
	Tokens       []uint32        // nil: the engine does not tell ids
	Text         string          // valid UTF-8
	Logprobs     json.RawMessage // as the engine gives them; nil: none
	FinishReason string          // of the last one: "stop", "length", "abort", ...
	StopReason   json.RawMessage // of the last one: the string or token that ended it; nil: unknown
	Usage        *Usage          // of the last one; nil: the engine told none
}

// chunk is an event of a stream of completions, or an error.
type chunk struct {
	Choices []struct {
		Index        int             `json:"index"`
		Text         string          `json:"text"`
		TokenIDs     []uint32        `json:"token_ids"`
		Logprobs     json.RawMessage `json:"logprobs"`
		FinishReason *string         `json:"finish_reason"`
		StopReason   json.RawMessage `json:"stop_reason"`  // vLLM's
		MatchedStop  json.RawMessage `json:"matched_stop"` // SGLang's
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error  json.RawMessage `json:"error"`
	Object string          `json:"object"`
}

// body writes the request. e.mu is not held.
func (e *Engine) body(c *Completion, byLog bool) ([]byte, error) {
	if len(c.Tokens) == 0 {
		return nil, fmt.Errorf("%w: a prompt without tokens", ErrInvalid)
	}
	for _, name := range Reserved {
		if _, told := c.Fields[name]; told {
			return nil, fmt.Errorf("%w: field %q is written by the library", ErrInvalid, name)
		}
	}
	for _, name := range [...]string{"n", "best_of"} {
		if v, told := c.Fields[name]; told && string(v) != "1" && string(v) != "null" {
			return nil, fmt.Errorf("%w: %s=%.20s, expected 1", ErrInvalid, name, v)
		}
	}
	b := append(make([]byte, 0, 256+8*len(c.Tokens)), `{"prompt":[`...)
	for i, t := range c.Tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	b = append(b, `],"stream":true,"stream_options":{"include_usage":true}`...)
	if !byLog {
		b = append(b, `,"return_token_ids":true`...)
	} else if b = append(b, `,"return_tokens_as_token_ids":true`...); c.Fields["logprobs"] == nil {
		b = append(b, `,"logprobs":0`...)
	}
	model := e.Model()
	if _, told := c.Fields["model"]; !told && model != "" {
		name, _ := json.Marshal(model)
		b = append(append(b, `,"model":`...), name...)
	}
	if e.DPSize() > 1 && e.Kind() == SGLang { // older releases look here only, newer ones by another name
		b = append(b, `,"data_parallel_rank":`...)
		b = strconv.AppendUint(b, uint64(c.DPRank), 10)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Fields)) {
		key, _ := json.Marshal(name)
		if !json.Valid(c.Fields[name]) {
			return nil, fmt.Errorf("%w: field %s is not JSON", ErrInvalid, key)
		}
		b = append(append(append(append(b, ','), key...), ':'), c.Fields[name]...)
	}
	return append(b, '}'), nil
}

// Complete sends a prompt, and returns when its first piece is here. Errors: those of this package, and that of ctx, whose end also ends the stream.
func (e *Engine) Complete(ctx context.Context, c *Completion) (*Stream, error) {
	e.mu.Lock()
	byLog := e.idsByLog
	e.mu.Unlock()
	body, err := e.body(c, byLog)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
	if c.ID != "" {
		if !ValidID(c.ID) {
			return nil, fmt.Errorf("%w: request id %.100q, expected at most 256 visible ASCII characters", ErrInvalid, c.ID)
		}
		header["X-Request-Id"] = []string{c.ID}
	}
	x := &exchange{e: e, caller: ctx}
	if err := x.begin(); err != nil {
		return nil, err
	}
	r, err := x.send(&Request{Method: http.MethodPost, Path: "/v1/completions", Header: header, Body: body, DPRank: c.DPRank})
	if err == nil {
		err = e.accept(x, r)
	}
	if err != nil {
		return nil, x.end(err)
	}
	s := &Stream{e: e, x: x, in: newEvents(x, e.cfg.Limits.EventBytes), byLog: byLog}
	if s.ahead, err = s.Recv(); err != nil {
		return nil, err
	}
	s.has = true
	return s, nil
}

// ValidID tells whether a request can be called so (Completion.ID).
func ValidID(id string) bool {
	return id != "" && len(id) <= 256 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// accept refuses an answer that is no stream of events.
func (e *Engine) accept(x *exchange, r *http.Response) error {
	if r.StatusCode == http.StatusOK && isEventStream(r.Header) {
		return nil
	}
	body := make([]byte, 0, 512)
	buffer := bytes.NewBuffer(body)
	_, err := io.Copy(buffer, io.LimitReader(x, e.cfg.Limits.ErrorBytes))
	if err != nil && r.StatusCode == http.StatusOK {
		return err
	}
	if r.StatusCode == http.StatusOK {
		if told := failure(buffer.Bytes(), 0); told != nil {
			return told
		}
		return fmt.Errorf("%w: content type %.100q, expected text/event-stream; it begins with %q", ErrProtocol, r.Header.Get("Content-Type"), clip(buffer.String(), 100))
	}
	told := failure(buffer.Bytes(), r.StatusCode)
	if told == nil {
		told = &StatusError{Code: r.StatusCode, Message: cmp.Or(clip(buffer.String(), 1000), http.StatusText(r.StatusCode)), Body: buffer.Bytes()}
	}
	told.Code, told.Header = r.StatusCode, handed(r.Header)
	return told
}

// EventError reads the error that the first event of a stream is; nil if it is none. What comes before its data is skipped.
func EventError(text []byte) *StatusError {
	v := newEvents(bytes.NewReader(text), len(text)+1)
	defer v.free()
	data, err := v.next()
	if err != nil || !bytes.Contains(data, []byte(`"error"`)) {
		return nil
	}
	return failure(data, 0)
}

// failure reads an error in one of the shapes that engines give it: {"error": {...}}, {"object": "error", ...}, {"detail": ...}; nil if it is none.
func failure(text []byte, code int) *StatusError {
	type info struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	var outer struct {
		Error  json.RawMessage `json:"error"`
		Object string          `json:"object"`
		Detail json.RawMessage `json:"detail"`
		info
	}
	if json.Unmarshal(text, &outer) != nil {
		return nil
	}
	e := &StatusError{Code: code, Body: bytes.Clone(text)}
	in := outer.info
	var plain string
	switch {
	case len(outer.Error) > 0 && string(outer.Error) != "null":
		if in = (info{}); json.Unmarshal(outer.Error, &in) != nil {
			_ = json.Unmarshal(outer.Error, &plain)
			in.Message = cmp.Or(plain, clip(string(outer.Error), 1000))
		}
	case outer.Object == "error":
	case len(outer.Detail) > 0 && code != 0:
		_ = json.Unmarshal(outer.Detail, &plain)
		in.Message = cmp.Or(plain, clip(string(outer.Detail), 1000))
	default:
		return nil
	}
	e.Message, e.Type = clip(in.Message, 4000), clip(in.Type, 200)
	if n, err := strconv.Atoi(strings.Trim(string(in.Code), `"`)); err == nil && n >= 100 && n < 600 && e.Code == 0 {
		e.Code = n
	}
	return e
}

// Stream is what is generated. Recv is for one goroutine at a time, Close for any.
type Stream struct {
	e *Engine
	x *exchange

	// Of Recv.
	in    *events
	byLog bool
	ahead Item // given next, if has
	has   bool
	err   error // given from now on
	count int   // events
	over  bool  // the last item was given
	usage *Usage
}

// Recv gives the next item. io.EOF: the answer is complete. Errors: those of Complete; what came before is no complete answer then.
func (s *Stream) Recv() (Item, error) {
	if s.has {
		s.has = false
		return s.ahead, nil
	}
	if s.err != nil {
		return Item{}, s.err
	}
	it, err := s.next()
	if err != nil {
		s.err = err
		s.in.free()
	}
	return it, err
}

// next reads until there is something to give.
func (s *Stream) next() (Item, error) {
	if s.over {
		return Item{}, io.EOF
	}
	for {
		s.patience()
		it, done, err := s.event()
		switch {
		case err != nil:
			return Item{}, err
		case done:
			return Item{}, s.x.end(fmt.Errorf("%w: the stream ended without a finish reason", ErrBroken))
		case it == nil:
			continue
		case it.FinishReason == "":
			return *it, nil
		}
		s.finish(it)
		return *it, nil
	}
}

// patience says until when the next event must be here.
func (s *Stream) patience() {
	if s.x.first.Load() {
		s.x.by = time.Now().Add(s.e.cfg.Limits.Between)
	}
}

// finish reads what follows the last item: the usage, the end. The item is complete without: nothing of that is an error.
func (s *Stream) finish(it *Item) {
	s.over = true
	s.x.by = time.Now().Add(time.Second)
	for range 8 {
		more, done, err := s.event()
		if err != nil {
			break
		}
		if more != nil {
			it.Tokens, it.Text = append(it.Tokens, more.Tokens...), it.Text+more.Text
		}
		if done {
			_, _ = io.CopyN(io.Discard, s.in.r, 4<<10) // to the end, so that the connection can be kept
			break
		}
	}
	it.Usage = s.usage
	s.x.end(nil)
}

// event reads one event. done: the engine says that nothing follows.
func (s *Stream) event() (it *Item, done bool, err error) {
	if s.count++; s.count > s.e.cfg.Limits.StreamEvents {
		return nil, false, s.x.end(fmt.Errorf("%w: more than %d events", ErrTooLarge, s.e.cfg.Limits.StreamEvents))
	}
	data, err := s.in.next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, true, nil
	case err != nil:
		return nil, false, s.x.end(err)
	case string(data) == "[DONE]":
		return nil, true, nil
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, false, s.x.end(fmt.Errorf("%w: event %q: %w", ErrProtocol, clip(string(data), 100), err))
	}
	if len(c.Error) > 0 || c.Object == "error" {
		if told := failure(data, 0); told != nil {
			return nil, false, s.x.end(told)
		}
	}
	if u := c.Usage; u != nil {
		s.usage = &Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens}
		if u.Details != nil && u.Details.CachedTokens != nil {
			s.usage.CachedTokens, s.usage.CachedKnown = *u.Details.CachedTokens, true
		}
	}
	if len(c.Choices) == 0 {
		return nil, false, nil
	}
	if len(c.Choices) > 1 || c.Choices[0].Index != 0 {
		return nil, false, s.x.end(fmt.Errorf("%w: several answers to one prompt", ErrProtocol))
	}
	return s.item(&c)
}

// item gives what an event says.
func (s *Stream) item(c *chunk) (*Item, bool, error) {
	o := &c.Choices[0]
	it := &Item{Tokens: o.TokenIDs, Text: o.Text}
	if len(o.Logprobs) > 0 && string(o.Logprobs) != "null" {
		if it.Tokens == nil {
			it.Tokens = idsOf(o.Logprobs)
		}
		if !s.byLog {
			it.Logprobs = o.Logprobs
		}
	}
	if o.FinishReason != nil {
		it.FinishReason = clip(*o.FinishReason, 100)
		for _, why := range []json.RawMessage{o.StopReason, o.MatchedStop} {
			if it.StopReason == nil && len(why) > 0 && string(why) != "null" {
				it.StopReason = why
			}
		}
	}
	if it.Tokens == nil && it.Text != "" && !s.byLog {
		s.e.noIDs()
	}
	if len(it.Tokens) == 0 && it.Text == "" && it.FinishReason == "" {
		return nil, false, nil
	}
	return it, false, nil
}

// noIDs remembers that this engine does not tell ids when asked for them: vLLM before 0.10.2 tells them among logprobs only.
func (e *Engine) noIDs() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idsByLog = e.idsByLog || e.kind == VLLM
}

// idsOf gives the ids that vLLM's logprobs name, "token_id:123" each; nil if they name others.
func idsOf(logprobs json.RawMessage) []uint32 {
	var l struct {
		Tokens []string `json:"tokens"`
	}
	if json.Unmarshal(logprobs, &l) != nil {
		return nil
	}
	ids := make([]uint32, 0, len(l.Tokens))
	for _, name := range l.Tokens {
		text, ok := strings.CutPrefix(name, "token_id:")
		id, err := strconv.ParseUint(text, 10, 32)
		if !ok || err != nil {
			return nil
		}
		ids = append(ids, uint32(id))
	}
	return ids
}

// Close ends the stream; the engine is told to stop, unless the answer is complete. It is idempotent.
func (s *Stream) Close() {
	s.x.Close()
}
