package engineworker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

type options = map[string]json.RawMessage

// asked is the request that a router sends to a worker; what is not here does not matter to an engine.
type asked struct {
	Model    string   `json:"model"`
	Tokens   []uint32 `json:"token_ids"`
	Stop     options  `json:"stop_conditions"`
	Sampling options  `json:"sampling_options"`
	Output   options  `json:"output_options"`
	Routing  struct {
		DPRank   *uint32 `json:"dp_rank"`
		LoRAName string  `json:"lora_name"`
	} `json:"routing"`
}

// passed are the options that engines know by the same name.
var passed = []string{
	"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos",
	"presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed",
	"logprobs", "skip_special_tokens",
}

// completion is the request as the engine gets it.
func (w *Worker) completion(id string, q *asked) (*engine.Completion, error) {
	c := &engine.Completion{Tokens: q.Tokens, Fields: make(options)}
	if engine.ValidID(id) {
		c.ID = id
	}
	given := func(v json.RawMessage) bool { return len(v) > 0 && string(v) != "null" }
	for _, group := range []options{q.Stop, q.Sampling, q.Output} {
		for _, name := range passed {
			if v := group[name]; given(v) {
				c.Fields[name] = v
			}
		}
	}
	if n := q.Sampling["n"]; given(n) {
		c.Fields["n"] = n // which may only be 1
	}
	if v := q.Sampling["include_stop_str_in_output"]; string(v) == "true" {
		c.Fields[map[bool]string{true: "no_stop_trim", false: "include_stop_str_in_output"}[w.engine.Kind() == engine.SGLang]] = v
	}
	var ids, more []uint32
	for _, name := range []string{"stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"} {
		if v := q.Stop[name]; given(v) {
			if err := json.Unmarshal(v, &more); err != nil {
				return nil, fmt.Errorf("%w: %s: %w", plane.ErrInvalidArgument, name, err)
			}
			ids = append(ids, more...)
		}
	}
	if len(ids) > 0 {
		slices.Sort(ids)
		c.Fields["stop_token_ids"], _ = json.Marshal(slices.Compact(ids))
	}
	if v := q.Sampling["guided_decoding"]; given(v) {
		if err := w.guide(v, c.Fields); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	about, start, size := w.about, w.spec.DPStart, w.size
	w.mu.Unlock()
	// An adapter is asked for as a model, and may have been loaded after the engine was asked what it has.
	if name := q.Routing.LoRAName; name != "" {
		c.Fields["model"], _ = json.Marshal(name)
	} else if slices.Contains(about.Models, q.Model) {
		c.Fields["model"], _ = json.Marshal(q.Model)
	}
	if _, told := c.Fields["max_tokens"]; !told && about.MaxModelLen > len(q.Tokens) { // the API's default is 16, a worker's is all there is room for
		c.Fields["max_tokens"], _ = json.Marshal(about.MaxModelLen - len(q.Tokens))
	}
	if r := q.Routing.DPRank; r != nil {
		if *r < start || *r-start >= size {
			return nil, fmt.Errorf("%w: dp_rank=%d, the worker has %d to %d", plane.ErrInvalidArgument, *r, start, start+size-1)
		}
		c.DPRank = *r - start
	}
	return c, nil
}

// guide passes on what the answer must look like, as the engine calls it.
func (w *Worker) guide(v json.RawMessage, to options) error {
	var g options
	if err := json.Unmarshal(v, &g); err != nil {
		return fmt.Errorf("%w: guided_decoding: %w", plane.ErrInvalidArgument, err)
	}
	if w.engine.Kind() != engine.SGLang {
		some := make(options)
		for _, name := range []string{"json", "regex", "choice", "grammar"} {
			if len(g[name]) > 0 && string(g[name]) != "null" {
				some[name] = g[name]
			}
		}
		if len(some) > 0 {
			to["structured_outputs"], _ = json.Marshal(some)
		}
		return nil
	}
	for name, its := range map[string]string{"json": "json_schema", "regex": "regex", "grammar": "ebnf", "choice": ""} {
		switch v := g[name]; {
		case len(v) == 0 || string(v) == "null":
		case its == "":
			return fmt.Errorf("%w: guided_decoding.%s: SGLang's completions know none", plane.ErrInvalidArgument, name)
		case name == "json" && v[0] != '"':
			to[its], _ = json.Marshal(string(v)) // it wants the schema as a text
		default:
			to[its] = v
		}
	}
	return nil
}

// generate answers one request.
func (w *Worker) generate(c *runtime.Call) error {
	text, err := wire.ToJSON(nil, c.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	var q asked
	if err := json.Unmarshal(text, &q); err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	ask, err := w.completion(c.ID, &q)
	if err != nil {
		return err
	}
	s, err := w.engine.Complete(c.Stopped(), ask)
	if err != nil {
		return w.failure(c, err, false)
	}
	defer s.Close()
	for first := true; ; first = false {
		it, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return w.failure(c, err, !first)
		}
		if err := c.Send(item(&it)); err != nil {
			return err
		}
	}
}

// failure gives an error the kind that routers go by.
func (w *Worker) failure(c *runtime.Call, err error, begun bool) error {
	var told *engine.StatusError
	switch {
	case c.Stopped().Err() != nil:
		return fmt.Errorf("%w: %w", plane.ErrCancelled, err)
	case errors.Is(err, engine.ErrInvalid), errors.As(err, &told) && !engine.Elsewhere(err) && told.Code < 500:
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	case begun:
		return &plane.WorkerError{Failure: wire.Failure{Type: "StreamIncomplete", Backend: true, Class: "Unavailable", Reason: "backend.stream_incomplete", Message: err.Error()}}
	case errors.Is(err, engine.ErrFull), told != nil && told.Code == 429:
		return fmt.Errorf("%w: %w", plane.ErrOverloaded, err)
	case errors.Is(err, context.Canceled), errors.Is(err, engine.ErrClosed):
		return &plane.WorkerError{Failure: wire.Failure{Type: "EngineShutdown", Backend: true, Class: "Unavailable", Reason: "backend.engine_shutdown", Message: err.Error()}}
	}
	return &plane.WorkerError{Failure: wire.Failure{Type: "CannotConnect", Backend: true, Class: "Unavailable", Reason: "backend.cannot_connect", Message: err.Error()}}
}

// reasons are the finish reasons that Dynamo calls otherwise.
var reasons = map[string]string{"abort": "cancelled", "tool_calls": "stop"}

// item is what a worker sends, a map as those of Dynamo's workers: fields that would be empty are left out.
func item(it *engine.Item) []byte {
	fields := 2
	last := it.FinishReason != ""
	for _, is := range []bool{it.Text != "", last, last && it.Usage != nil, len(it.StopReason) > 0} {
		if is {
			fields++
		}
	}
	logs := logProbs(it.Logprobs)
	if logs != nil {
		fields++
	}
	p := wire.Pack{}.Map(fields).String("token_ids").Array(len(it.Tokens))
	for _, t := range it.Tokens {
		p = p.Uint(uint64(t))
	}
	p = p.String("index").Uint(0)
	if it.Text != "" {
		p = p.String("text").String(it.Text)
	}
	if logs != nil {
		p = p.String("log_probs").Array(len(logs))
		for _, l := range logs {
			p = p.Float(l)
		}
	}
	if last {
		p = p.String("finish_reason").String(cmp.Or(reasons[it.FinishReason], it.FinishReason))
	}
	if len(it.StopReason) > 0 {
		v, err := wire.FromJSON(nil, it.StopReason)
		if err != nil {
			v = wire.Pack{}.Nil()
		}
		p = p.String("stop_reason").Value(v)
	}
	if u := it.Usage; last && u != nil {
		p = p.String("completion_usage").Map(3 + map[bool]int{true: 1}[u.CachedKnown])
		p = p.String("prompt_tokens").Uint(uint64(max(u.PromptTokens, 0))).String("completion_tokens").Uint(uint64(max(u.CompletionTokens, 0)))
		p = p.String("total_tokens").Uint(uint64(max(u.PromptTokens, 0) + max(u.CompletionTokens, 0)))
		if u.CachedKnown {
			p = p.String("prompt_tokens_details").Map(1).String("cached_tokens").Uint(uint64(max(u.CachedTokens, 0)))
		}
	}
	return p
}

// logProbs gives the tokens' log probabilities, if there is one for each.
func logProbs(raw json.RawMessage) []float64 {
	if raw == nil {
		return nil
	}
	var l struct {
		Tokens []*float64 `json:"token_logprobs"`
	}
	if json.Unmarshal(raw, &l) != nil || len(l.Tokens) == 0 {
		return nil
	}
	all := make([]float64, len(l.Tokens))
	for i, v := range l.Tokens {
		if v == nil {
			return nil
		}
		all[i] = *v
	}
	return all
}
