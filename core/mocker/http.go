package mocker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
)

const (
	defaultMaxTokens = 16               // of the OpenAI API
	writeTimeout     = 30 * time.Second // for one chunk: a reader that takes none for so long is gone
	smallBody        = 256 << 10        // bytes for which a body needs no turn: some 40,000 token ids
)

// completionRequest is what is read of an OpenAI completion or chat completion request; other fields are accepted and mean nothing to an
// engine that does not sample.
type completionRequest struct {
	Model         *string      `json:"model"`
	Prompt        promptTokens `json:"prompt"`
	Messages      []message    `json:"messages"`
	MaxTokens     *int         `json:"max_tokens"`
	MaxCompletion *int         `json:"max_completion_tokens"` // of a chat, instead
	N             *int         `json:"n"`
	Stream        bool         `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	ReturnTokenIDs      bool  `json:"return_token_ids"`      // vLLM's and SGLang's
	AddGenerationPrompt *bool `json:"add_generation_prompt"` // of a chat; true

	// The data-parallel rank in SGLang's way, of today and before. vLLM's is the header X-data-parallel-rank.
	RoutedRank *uint32 `json:"routed_dp_rank"`
	ParRank    *uint32 `json:"data_parallel_rank"`
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

// choice is the one choice of an answer or of a chunk of it: text of a completion, message or delta of a chat.
type choice struct {
	Index        int           `json:"index"`
	Text         *string       `json:"text,omitempty"`
	Message      *spoken       `json:"message,omitempty"`
	Delta        *spoken       `json:"delta,omitempty"`
	TokenIDs     []block.Token `json:"token_ids,omitempty"`        // if the request asked for them
	PromptIDs    []block.Token `json:"prompt_token_ids,omitempty"` // likewise, in the first chunk; of a chat they are beside the choices
	Logprobs     *struct{}     `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// spoken is a message of the engine, or a piece of it.
type spoken struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type completion struct {
	ID        string        `json:"id"`
	Object    string        `json:"object"`
	Created   int64         `json:"created"`
	Model     string        `json:"model"`
	Choices   []choice      `json:"choices"`
	PromptIDs []block.Token `json:"prompt_token_ids,omitempty"`
	Usage     *usage        `json:"usage,omitempty"`
	Metrics   *metrics      `json:"metrics,omitempty"` // wherever Usage is
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
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { m.completions(w, r, false) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { m.completions(w, r, true) })
	mux.HandleFunc("POST /tokenize", m.tokenize)
	mux.HandleFunc("POST /v1/tokenize", m.tokenize)
	mux.HandleFunc("POST /detokenize", m.detokenize)
	mux.HandleFunc("POST /v1/detokenize", m.detokenize)
	mux.HandleFunc("POST /reset_prefix_cache", m.resetPrefixCache)
	mux.HandleFunc("POST /fault", m.setFault)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, m.Stats()) })
	mux.HandleFunc("GET /v1/models", m.models)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": version})
	})
	mux.HandleFunc("GET /server_info", m.serverInfo)
	mux.HandleFunc("GET /get_server_info", m.serverInfo)
	mux.HandleFunc("GET /metrics", m.prometheus)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(http.StatusNotFound, "invalid_request_error", "unknown_url",
			"%s %s is not served here", r.Method, r.URL.Path).write(w)
	})
	return mux
}

func (m *Mocker) models(w http.ResponseWriter, _ *http.Request) {
	list := []map[string]any{{
		"id": m.cfg.Model, "object": "model", "created": m.start.Unix(), "owned_by": "dynamo-go", "parent": nil,
		"max_model_len": m.cfg.MaxModelLen,
	}}
	for _, name := range m.cfg.Adapters {
		list = append(list, map[string]any{"id": name, "object": "model", "created": m.start.Unix(), "owned_by": "dynamo-go", "parent": m.cfg.Model})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (m *Mocker) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	if !m.clear() {
		refuse(http.StatusConflict, "conflict_error", "cache_in_use", "the cache is in use by running requests").write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"reset": true})
}

// body reads the body of a request. It waits for a turn only when much of the body is here: a peer that sends nothing takes nobody's. The
// caller calls done when it has parsed it.
func (m *Mocker) body(w http.ResponseWriter, r *http.Request) (data []byte, done func(), bad *apiError) {
	body := http.MaxBytesReader(w, r.Body, m.cfg.MaxBodyBytes)
	done = func() {}
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), smallBody)) + bytes.MinRead)
	_, err := io.CopyN(&buf, body, smallBody)
	if err == nil {
		m.parsing <- struct{}{}
		done = func() { <-m.parsing }
		buf.Grow(int(min(max(r.ContentLength-smallBody, 0), m.cfg.MaxBodyBytes)) + bytes.MinRead)
		_, err = buf.ReadFrom(body)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil || err == io.EOF: // EOF: a small one
		return buf.Bytes(), done, nil
	case errors.As(err, &tooLarge):
		bad = refuse(http.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large",
			"the body has more than %d bytes", tooLarge.Limit)
	default:
		bad = badRequest("", "the body could not be read: %v", err)
	}
	done()
	return nil, nil, bad
}

// decode reads the body of a request into v, and checks it.
func (m *Mocker) decode(w http.ResponseWriter, r *http.Request, v interface{ check() error }, what string) *apiError {
	data, done, bad := m.body(w, r)
	if bad != nil {
		return bad
	}
	defer done()
	err := json.Unmarshal(data, v)
	if err == nil {
		err = v.check()
	}
	return refusal(err, what)
}

// refusal gives an error of what was read the shape of an answer.
func refusal(err error, what string) *apiError {
	var bad *apiError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad):
		return bad
	case errors.As(err, &kind) && kind.Field != "":
		return badRequest(kind.Field, "%s", jsonFault(err))
	}
	return badRequest("", "the body is not %s: %s", what, jsonFault(err))
}

// read parses and checks a request for an answer.
func (m *Mocker) read(w http.ResponseWriter, r *http.Request, chat bool) (*completionRequest, *apiError) {
	data, done, bad := m.body(w, r)
	if bad != nil {
		return nil, bad
	}
	defer done()
	req, what := &completionRequest{}, "a completion request"
	var err error
	if chat {
		what = "a chat completion request"
		err = json.Unmarshal(data, req)
	} else {
		err = unmarshalRequest(data, req)
	}
	if err != nil {
		return nil, refusal(err, what)
	}
	if chat {
		if len(req.Messages) == 0 {
			return nil, badRequest("messages", "messages is missing or empty: at least one is expected")
		}
		req.Prompt = Tokenize(template(req.Messages, req.AddGenerationPrompt == nil || *req.AddGenerationPrompt))
		if req.MaxCompletion != nil {
			req.MaxTokens = req.MaxCompletion
		}
	}
	if bad := m.checkRank(r, req); bad != nil {
		return nil, bad
	}
	return req, m.check(req)
}

// checkRank refuses a request for another data-parallel rank than this engine's, in whichever way it says so.
func (m *Mocker) checkRank(r *http.Request, req *completionRequest) *apiError {
	ranks := []*uint32{req.RoutedRank, req.ParRank}
	if text := r.Header.Get("X-Data-Parallel-Rank"); text != "" {
		if v, err := strconv.ParseUint(text, 10, 32); err == nil { // vLLM minds no other text
			rank := uint32(v)
			ranks = append(ranks, &rank)
		}
	}
	for _, rank := range ranks {
		if rank != nil && *rank != m.cfg.DPRank {
			return badRequest("data_parallel_rank", "data-parallel rank %d is not here, only %d", *rank, m.cfg.DPRank)
		}
	}
	return nil
}

// check refuses what this engine cannot serve, and fills in defaults.
func (m *Mocker) check(req *completionRequest) *apiError {
	if req.MaxTokens == nil {
		n := defaultMaxTokens
		req.MaxTokens = &n
	}
	prompt, output := len(req.Prompt), *req.MaxTokens
	switch {
	case req.Model != nil && *req.Model != m.cfg.Model && !slices.Contains(m.cfg.Adapters, *req.Model):
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

// completions answers both kinds of requests.
func (m *Mocker) completions(w http.ResponseWriter, r *http.Request, chat bool) {
	f := m.fail()
	if m.suffer(f, w, r) {
		return
	}
	req, bad := m.read(w, r, chat)
	if bad != nil {
		bad.write(w)
		return
	}
	box := newMailbox()
	adapter := ""
	if req.Model != nil && *req.Model != m.cfg.Model {
		adapter = *req.Model
	}
	q := newAdapted(req.Prompt, *req.MaxTokens, m.cfg.BlockSize, m.cfg.HashSeed, adapter, box)
	if err := m.submit(q); err != nil {
		err.write(w)
		return
	}
	a := &reply{Mocker: m, w: w, r: r, req: req, box: box, chat: chat, fault: f}
	a.completion = completion{ID: "cmpl-", Object: "text_completion", Created: time.Now().Unix(), Model: m.cfg.Model}
	if chat {
		a.ID, a.Object = "chatcmpl-", "chat.completion"
	}
	a.ID += strconv.FormatUint(m.ids.Add(1), 10)
	serve := a.whole
	if req.Stream {
		serve = a.stream
	}
	ended := false
	defer func() { // also when a fault cuts the connection
		if !ended {
			m.cancel(q)
		}
	}()
	ended = serve()
}

// A reply is an answer on its way.
type reply struct {
	*Mocker
	completion
	w     http.ResponseWriter
	r     *http.Request
	req   *completionRequest
	box   *mailbox
	chat  bool
	fault *fault
}

// whole answers with one JSON object. It tells whether the request ran to its end.
func (a *reply) whole() bool {
	var tokens []block.Token
	for {
		more, p, ok := a.await(a.r, a.box)
		if !ok {
			return false
		}
		tokens = append(tokens, more...)
		if p.finished {
			u, c, text := usageOf(len(a.req.Prompt), len(tokens), p.cached), choice{FinishReason: length()}, Detokenize(tokens)
			if a.chat {
				c.Message = &spoken{Role: "assistant", Content: text}
			} else {
				c.Text = &text
			}
			a.ids(&c, tokens, true)
			a.Choices, a.Usage, a.Metrics = []choice{c}, &u, metricsOf(p)
			writeJSON(a.w, http.StatusOK, &a.completion)
			return true
		}
	}
}

// ids adds token ids to a choice, and those of the prompt to the first one, if the request asks for them, where vLLM has them.
func (a *reply) ids(c *choice, tokens []block.Token, first bool) {
	a.PromptIDs = nil
	if !a.req.ReturnTokenIDs {
		return
	}
	c.TokenIDs = tokens
	switch {
	case !first:
	case a.chat:
		a.PromptIDs = a.req.Prompt
	default:
		c.PromptIDs = a.req.Prompt
	}
}

// stream answers with server-sent events, one for the tokens that came due together. It tells whether the request ran to its end.
func (a *reply) stream() bool {
	control := http.NewResponseController(a.w)
	defer control.SetWriteDeadline(time.Time{}) // it would outlive this request on a kept connection
	var out []byte
	event := func(v any) bool {
		data, err := json.Marshal(v)
		out = append(append(append(out, "data: "...), data...), "\n\n"...)
		return err == nil
	}
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	if a.chat {
		a.Object = "chat.completion.chunk"
	}
	sent, events := 0, 0
	for {
		tokens, p, ok := a.await(a.r, a.box)
		if !ok {
			return false
		}
		out = out[:0]
		c, text := choice{}, Detokenize(tokens)
		if a.chat {
			c.Delta = &spoken{Content: text}
			if sent == 0 {
				c.Delta.Role = "assistant"
			}
		} else {
			c.Text = &text
		}
		a.ids(&c, tokens, sent == 0)
		sent += len(tokens)
		if p.finished {
			c.FinishReason = length()
		}
		a.Choices = []choice{c}
		ok = event(&a.completion)
		events++
		if p.finished {
			if a.req.StreamOptions.IncludeUsage {
				u := usageOf(len(a.req.Prompt), sent, p.cached)
				a.Choices, a.PromptIDs, a.Usage, a.Metrics = []choice{}, nil, &u, metricsOf(p)
				ok = event(&a.completion) && ok
			}
			out = append(out, "data: [DONE]\n\n"...)
		}
		// A server that cannot set deadlines still notices a client that is gone.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := a.w.Write(out); err != nil || control.Flush() != nil || !ok {
			return false
		}
		if a.fault != nil && a.fault.CutAfter != nil && events >= *a.fault.CutAfter {
			panic(http.ErrAbortHandler)
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
