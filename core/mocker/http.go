package mocker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
)

const (
	defaultMaxTokens = 16               // of the OpenAI API
	writeTimeout     = 30 * time.Second // for one chunk: a reader that takes none for so long is gone
	smallBody        = 256 << 10        // bytes for which a body needs no turn: some 40,000 token ids
)

// completionRequest is what is read of an OpenAI completion request; other fields are accepted and mean nothing to an
// engine that does not sample.
type completionRequest struct {
	Model         *string      `json:"model"`
	Prompt        promptTokens `json:"prompt"`
	MaxTokens     *int         `json:"max_tokens"`
	N             *int         `json:"n"`
	Stream        bool         `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// metrics is this engine's addition: what happened by its own clock, which the host's delays do not touch.
type metrics struct {
	QueueMS float64 `json:"queue_ms"` // from arrival to admission
	TTFTMS  float64 `json:"ttft_ms"`  // from arrival to the first token
}

func metricsOf(p progress) *metrics {
	return &metrics{QueueMS: float64(p.queue) / 1e6, TTFTMS: float64(p.ttft) / 1e6}
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func usageOf(prompt, completion, cached int) usage {
	u := usage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
	u.PromptDetails.CachedTokens = cached
	return u
}

// choice is the one choice of an answer or of a chunk of it. There is no tokenizer, so text is always empty.
type choice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	TokenIDs     []block.Token `json:"token_ids"`
	Logprobs     *struct{}     `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
	Metrics *metrics `json:"metrics,omitempty"` // wherever Usage is
}

// apiError is an error in the shape that OpenAI clients expect.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func badRequest(param, format string, args ...any) *apiError {
	e := &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if param != "" {
		e.Param = &param
	}
	return e
}

func refuse(status int, kind, code, format string, args ...any) *apiError {
	return &apiError{status: status, Message: fmt.Sprintf(format, args...), Type: kind, Code: &code}
}

func (e *apiError) write(w http.ResponseWriter) {
	writeJSON(w, e.status, map[string]*apiError{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here is the client gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}

func (m *Mocker) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", m.completions)
	mux.HandleFunc("POST /reset_prefix_cache", m.resetPrefixCache)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, m.Stats()) })
	mux.HandleFunc("GET /v1/models", m.models)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(http.StatusNotFound, "invalid_request_error", "unknown_url",
			"%s %s is not served here", r.Method, r.URL.Path).write(w)
	})
	return mux
}

func (m *Mocker) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list",
		"data": []map[string]any{{
			"id": m.cfg.Model, "object": "model", "created": m.start.Unix(), "owned_by": "dynamo-go",
			"max_model_len": m.cfg.MaxModelLen,
		}},
	})
}

func (m *Mocker) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	if !m.clear() {
		refuse(http.StatusConflict, "conflict_error", "cache_in_use", "the cache is in use by running requests").write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"reset": true})
}

// read parses and checks a completion request. It waits for a turn only when much of the body is here: a peer that sends
// nothing takes nobody's.
func (m *Mocker) read(w http.ResponseWriter, r *http.Request) (*completionRequest, *apiError) {
	body := http.MaxBytesReader(w, r.Body, m.cfg.MaxBodyBytes)
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), smallBody)) + bytes.MinRead)
	_, err := io.CopyN(&buf, body, smallBody)
	if err == nil {
		m.parsing <- struct{}{}
		defer func() { <-m.parsing }()
		buf.Grow(int(min(max(r.ContentLength-smallBody, 0), m.cfg.MaxBodyBytes)) + bytes.MinRead)
		_, err = buf.ReadFrom(body)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == io.EOF: // a small one
	case errors.As(err, &tooLarge):
		return nil, refuse(http.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large",
			"the body has more than %d bytes", tooLarge.Limit)
	case err != nil:
		return nil, badRequest("", "the body could not be read: %v", err)
	}
	req := &completionRequest{}
	if err := unmarshalRequest(buf.Bytes(), req); err != nil {
		var bad *apiError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &bad):
			return nil, bad
		case errors.As(err, &kind) && kind.Field != "":
			return nil, badRequest(kind.Field, "%s", jsonFault(err))
		}
		return nil, badRequest("", "the body is not a completion request: %s", jsonFault(err))
	}
	return req, m.check(req)
}

// check refuses what this engine cannot serve, and fills in defaults.
func (m *Mocker) check(req *completionRequest) *apiError {
	if req.MaxTokens == nil {
		n := defaultMaxTokens
		req.MaxTokens = &n
	}
	prompt, output := len(req.Prompt), *req.MaxTokens
	switch {
	case req.Model != nil && *req.Model != m.cfg.Model:
		return refuse(http.StatusNotFound, "invalid_request_error", "model_not_found",
			"model %q is not served here, only %q", *req.Model, m.cfg.Model)
	case prompt == 0:
		return badRequest("prompt", "prompt is missing or empty: at least one token id is expected")
	case output < 1:
		return badRequest("max_tokens", "max_tokens is %d, must be at least 1", output)
	case req.N != nil && *req.N != 1:
		return badRequest("n", "n is %d, only 1 is served", *req.N)
	case output > m.cfg.MaxModelLen || prompt+output > m.cfg.MaxModelLen:
		e := badRequest("prompt", "the prompt has %d tokens and max_tokens is %d; together at most %d are served",
			prompt, output, m.cfg.MaxModelLen)
		code := "context_length_exceeded"
		e.Code = &code
		return e
	case m.cfg.pagesNeeded(prompt, output) > m.cfg.Blocks:
		return badRequest("prompt", "the prompt has %d tokens and max_tokens is %d; the cache holds %d",
			prompt, output, m.cfg.Blocks*m.cfg.BlockSize)
	}
	return nil
}

func (m *Mocker) completions(w http.ResponseWriter, r *http.Request) {
	req, bad := m.read(w, r)
	if bad != nil {
		bad.write(w)
		return
	}
	box := newMailbox()
	q := newSequence(req.Prompt, *req.MaxTokens, m.cfg.BlockSize, m.cfg.HashSeed, box)
	if err := m.submit(q); err != nil {
		err.write(w)
		return
	}
	answer := completion{
		ID:      "cmpl-" + strconv.FormatUint(m.ids.Add(1), 10),
		Object:  "text_completion",
		Created: time.Now().Unix(),
		Model:   m.cfg.Model,
	}
	reply := m.whole
	if req.Stream {
		reply = m.stream
	}
	if !reply(w, r, req, box, &answer) {
		m.cancel(q)
	}
}

// whole answers with one JSON object. It tells whether the request ran to its end.
func (m *Mocker) whole(w http.ResponseWriter, r *http.Request, req *completionRequest, box *mailbox, answer *completion) bool {
	var tokens []block.Token
	for {
		more, p, ok := m.await(r, box)
		if !ok {
			return false
		}
		tokens = append(tokens, more...)
		if p.finished {
			u := usageOf(len(req.Prompt), len(tokens), p.cached)
			answer.Choices, answer.Usage = []choice{{TokenIDs: tokens, FinishReason: length()}}, &u
			answer.Metrics = metricsOf(p)
			writeJSON(w, http.StatusOK, answer)
			return true
		}
	}
}

// stream answers with server-sent events, one for the tokens that came due together. It tells whether the request ran to its end.
func (m *Mocker) stream(w http.ResponseWriter, r *http.Request, req *completionRequest, box *mailbox, answer *completion) bool {
	control := http.NewResponseController(w)
	defer control.SetWriteDeadline(time.Time{}) // it would outlive this request on a kept connection
	var out []byte
	event := func(v any) bool {
		data, err := json.Marshal(v)
		out = append(append(append(out, "data: "...), data...), "\n\n"...)
		return err == nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	sent := 0
	for {
		tokens, p, ok := m.await(r, box)
		if !ok {
			return false
		}
		sent += len(tokens)
		out = out[:0]
		answer.Choices = []choice{{TokenIDs: tokens}}
		if p.finished {
			answer.Choices[0].FinishReason = length()
		}
		ok = event(answer)
		if p.finished {
			if req.StreamOptions.IncludeUsage {
				u := usageOf(len(req.Prompt), sent, p.cached)
				answer.Choices, answer.Usage, answer.Metrics = []choice{}, &u, metricsOf(p)
				ok = event(answer) && ok
			}
			out = append(out, "data: [DONE]\n\n"...)
		}
		// A server that cannot set deadlines still notices a client that is gone.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(out); err != nil || control.Flush() != nil || !ok {
			return false
		}
		if p.finished {
			return true
		}
	}
}

// await waits for tokens; ok is false when the client or the engine is gone.
func (m *Mocker) await(r *http.Request, box *mailbox) (tokens []block.Token, p progress, ok bool) {
	for {
		select {
		case <-box.ready:
			// Nothing is there when the take before came between two deliveries.
			if tokens, p = box.take(); len(tokens) > 0 {
				return tokens, p, true
			}
		case <-r.Context().Done():
			return nil, progress{}, false
		case <-m.ctx.Done():
			return nil, progress{}, false
		}
	}
}

// length is the only reason for which a completion ends here.
func length() *string {
	reason := "length"
	return &reason
}
