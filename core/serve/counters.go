package serve

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// bounds of the histograms of times, in seconds.
var bounds = [...]float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// times counts durations.
type times struct {
	counts [len(bounds) + 1]atomic.Uint64
	nanos  atomic.Int64
}

func (t *times) add(d time.Duration) {
	i := 0
	for i < len(bounds) && d.Seconds() > bounds[i] {
		i++
	}
	t.counts[i].Add(1)
	t.nanos.Add(int64(d))
}

// write writes the rows of a model, whose label it is given.
func (t *times) write(w io.Writer, name, label string) {
	n := uint64(0)
	for i := range t.counts {
		n += t.counts[i].Load()
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		fmt.Fprintf(w, "%s_bucket{%s,le=%q} %d\n", name, label, le, n)
	}
	fmt.Fprintf(w, "%s_sum{%s} %v\n%s_count{%s} %d\n", name, label, time.Duration(t.nanos.Load()).Seconds(), name, label, n)
}

// outcome is how a request ended.
type outcome struct {
	chat   bool
	stream bool
	status int
}

// ofModel counts the requests for a model.
type ofModel struct {
	inflight     atomic.Int64
	output       atomic.Uint64 // tokens, as far as answers tell
	cached       atomic.Uint64 // prompt tokens that engines had, likewise
	first, whole times

	mu   sync.Mutex
	ends map[outcome]uint64
}

func (m *ofModel) end(o outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ends == nil {
		m.ends = map[outcome]uint64{}
	}
	m.ends[o]++ // statuses are 100 .. 999
}

// idle tells whether there was never a request.
func (m *ofModel) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ends) == 0 && m.inflight.Load() == 0
}

// unknown is the model of requests that name none that is served, or none at all, or one of that name; mostModels bounds the others: adapters come and
// go, and each would keep its rows.
const (
	unknown    = "unknown"
	mostModels = 1000
)

// counters count requests.
type counters struct {
	inflight     atomic.Int64
	entered      atomic.Int64  // of these, those whose body is here
	disconnected atomic.Uint64 // clients that were gone before the end
	retries      atomic.Uint64 // engines that were asked after another one failed
	broken       atomic.Uint64 // answers that an engine did not end
	refused      atomic.Uint64 // for want of room here
	untokenized  atomic.Uint64 // prompts of text that were routed by load alone, because nobody gave token ids

	nameless ofModel // unknown

	mu     sync.RWMutex
	models map[string]*ofModel
}

// of gives what counts the requests for a model. What clients name is only remembered if it is served.
func (c *counters) of(name string, served func(string) bool) *ofModel {
	c.mu.RLock()
	m := c.models[name]
	c.mu.RUnlock()
	if m != nil || name == "" || name == unknown || !served(name) {
		if m == nil {
			m = &c.nameless
		}
		return m
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m = c.models[name]; m != nil { // it came meanwhile
		return m
	}
	if len(c.models) >= mostModels {
		return &c.nameless
	}
	if c.models == nil {
		c.models = map[string]*ofModel{}
	}
	m = &ofModel{}
	c.models[name] = m
	return m
}

// labelled is a model and the label of its rows.
type labelled struct {
	*ofModel
	label string
}

var escapeLabel = strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n")

func (c *counters) labelled() (all []labelled) {
	label := func(name string) string {
		return `model="` + escapeLabel.Replace(strings.ToValidUTF8(name, "\uFFFD")) + `"`
	}
	if !c.nameless.idle() {
		all = append(all, labelled{&c.nameless, label(unknown)})
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(c.models)) {
		all = append(all, labelled{c.models[name], label(name)})
	}
	return all
}

// write writes what there is besides the router's metrics, under the names and labels of Dynamo's frontend where it has one.
func (c *counters) write(w io.Writer, buffered int64) {
	models := c.labelled()
	head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	head("dynamo_frontend_requests_total", "counter", "Requests that ended, by HTTP status.")
	for _, m := range models {
		m.mu.Lock()
		for o, n := range m.ends {
			endpoint, kind := "completions", "unary"
			if o.chat {
				endpoint = "chat_completions"
			}
			if o.stream {
				kind = "stream"
			}
			fmt.Fprintf(w, "dynamo_frontend_requests_total{%s,endpoint=%q,request_type=%q,status=\"%d\"} %d\n", m.label, endpoint, kind, o.status, n)
		}
		m.mu.Unlock()
	}
	for _, row := range []struct {
		name, kind, help string
		n                func(*ofModel) uint64
	}{
		{"dynamo_frontend_inflight_requests", "gauge", "Requests that run.", func(m *ofModel) uint64 { return uint64(max(m.inflight.Load(), 0)) }},
		{"dynamo_frontend_output_tokens_total", "counter", "Generated tokens, of answers that tell.", func(m *ofModel) uint64 { return m.output.Load() }},
		{"dynamo_frontend_cached_tokens_total", "counter", "Prompt tokens that engines had cached, of answers that tell.", func(m *ofModel) uint64 { return m.cached.Load() }},
	} {
		head(row.name, row.kind, row.help)
		for _, m := range models {
			fmt.Fprintf(w, "%s{%s} %d\n", row.name, m.label, row.n(m.ofModel))
		}
	}
	for _, row := range []struct {
		name, kind, help string
		n                uint64
	}{
		{"dynamo_frontend_disconnected_clients", "counter", "Clients that were gone before the end of their answer.", c.disconnected.Load()},
		{"dynamo_go_serve_retries_total", "counter", "Engines that were asked because another one failed.", c.retries.Load()},
		{"dynamo_go_serve_broken_answers_total", "counter", "Answers that an engine did not end.", c.broken.Load()},
		{"dynamo_go_serve_refused_requests_total", "counter", "Requests that were refused for want of room here.", c.refused.Load()},
		{"dynamo_go_serve_buffered_bytes", "gauge", "Of requests above 64 KiB, in memory.", uint64(max(buffered, 0))},
		{"dynamo_go_serve_untokenized_requests_total", "counter", "Text that was routed by load alone, because nobody gave token ids.", c.untokenized.Load()},
	} {
		head(row.name, row.kind, row.help)
		fmt.Fprintf(w, "%s %d\n", row.name, row.n)
	}
	for _, row := range []struct {
		name, help string
		of         func(*ofModel) *times
	}{
		{"dynamo_frontend_time_to_first_token_seconds", "Time from a request to the first bytes of its answer.", func(m *ofModel) *times { return &m.first }},
		{"dynamo_frontend_request_duration_seconds", "Time from a request to the end of its answer.", func(m *ofModel) *times { return &m.whole }},
	} {
		head(row.name, "histogram", row.help)
		for _, m := range models {
			row.of(m.ofModel).write(w, row.name, m.label)
		}
	}
}
