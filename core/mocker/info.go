package mocker

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// version is told where engines tell theirs.
const version = "0.0.0-mock"

// tokenizeRequest is vLLM's and SGLang's: a prompt, or messages with what the chat template takes.
type tokenizeRequest struct {
	Prompt              *string   `json:"prompt"`
	Messages            []message `json:"messages"`
	AddGenerationPrompt *bool     `json:"add_generation_prompt"`
}

func (q *tokenizeRequest) check() error {
	if q.Prompt == nil && len(q.Messages) == 0 {
		return badRequest("prompt", "there is neither a prompt nor messages")
	}
	return nil
}

func (m *Mocker) tokenize(w http.ResponseWriter, r *http.Request) {
	var q tokenizeRequest
	if bad := m.decode(w, r, &q, "a request to tokenize"); bad != nil {
		bad.write(w)
		return
	}
	text := ""
	if q.Prompt != nil {
		text = *q.Prompt
	} else {
		text = template(q.Messages, q.AddGenerationPrompt == nil || *q.AddGenerationPrompt)
	}
	tokens := Tokenize(text)
	writeJSON(w, http.StatusOK, map[string]any{"count": len(tokens), "max_model_len": m.cfg.MaxModelLen, "tokens": tokens, "token_strs": nil})
}

type detokenizeRequest struct {
	Tokens []block.Token `json:"tokens"`
}

func (*detokenizeRequest) check() error { return nil }

// detokenize gives the text under both engines' names.
func (m *Mocker) detokenize(w http.ResponseWriter, r *http.Request) {
	var q detokenizeRequest
	if bad := m.decode(w, r, &q, "a request to detokenize"); bad != nil {
		bad.write(w)
		return
	}
	text := Detokenize(q.Tokens)
	writeJSON(w, http.StatusOK, map[string]string{"prompt": text, "text": text})
}

// serverInfo is SGLang's, as far as it tells of KV events.
func (m *Mocker) serverInfo(w http.ResponseWriter, _ *http.Request) {
	info := map[string]any{
		"version": version, "model_path": m.cfg.Model, "served_model_name": m.cfg.Model, "dp_size": 1, "page_size": m.cfg.BlockSize,
		"max_total_num_tokens": m.cfg.Blocks * m.cfg.BlockSize,
	}
	if host, port, ok := tcp(m.info.Events); ok {
		// A rank's port is base + rank, so the base may lie below what was given.
		events := map[string]any{
			"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port - int(m.cfg.DPRank), "topic": m.cfg.Topic,
			"block_size": m.cfg.BlockSize, "dp_size": 1,
		}
		if _, port, ok := tcp(m.info.Replay); ok {
			events["replay_endpoint_port_base"] = port - int(m.cfg.DPRank)
		}
		info["kv_events"] = events
	}
	writeJSON(w, http.StatusOK, info)
}

// tcp splits a ZeroMQ endpoint over TCP.
func tcp(endpoint string) (host string, port int, ok bool) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0, false
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	return host, port, err == nil
}

// prometheus is what a router looks at among vLLM's metrics.
func (m *Mocker) prometheus(w http.ResponseWriter, _ *http.Request) {
	s := m.Stats()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, row := range []struct {
		name, kind string
		value      float64
	}{
		{"num_requests_running", "gauge", float64(s.Running)},
		{"num_requests_waiting", "gauge", float64(s.Waiting)},
		{"kv_cache_usage_perc", "gauge", 1 - float64(s.IdleBlocks)/float64(s.Blocks)},
		{"prefix_cache_queries_total", "counter", float64(s.PromptTokens)},
		{"prefix_cache_hits_total", "counter", float64(s.CachedTokens)},
		{"prompt_tokens_total", "counter", float64(s.PromptTokens)},
		{"generation_tokens_total", "counter", float64(s.OutputTokens)},
	} {
		// An error here is the client gone.
		_, _ = fmt.Fprintf(w, "# TYPE vllm:%s %s\nvllm:%s{model_name=%q} %v\n", row.name, row.kind, row.name, m.cfg.Model, row.value)
	}
}
