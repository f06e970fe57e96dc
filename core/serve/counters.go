package serve

import (
	"fmt"
	"io"
	"strconv"
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

func (t *times) write(w io.Writer, name, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
	n := uint64(0)
	for i := range t.counts {
		n += t.counts[i].Load()
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		fmt.Fprintf(w, "%s_bucket{le=%q} %d\n", name, le, n)
	}
	fmt.Fprintf(w, "%s_sum %v\n%s_count %d\n", name, time.Duration(t.nanos.Load()).Seconds(), name, n)
}

// outcome is how a request ended.
type outcome struct {
	chat   bool
	stream bool
	status int
}

// counters count requests.
type counters struct {
	inflight     atomic.Int64
	entered      atomic.Int64  // of these, those whose body is here
	disconnected atomic.Uint64 // clients that were gone before the end
	retries      atomic.Uint64 // engines that were asked after another one failed
	broken       atomic.Uint64 // answers that an engine did not end
	refused      atomic.Uint64 // for want of room here
	untokenized  atomic.Uint64 // prompts of text that were routed by load alone, because nobody gave token ids
	output       atomic.Uint64 // tokens, as far as answers tell
	cached       atomic.Uint64 // prompt tokens that engines had, likewise
	first, whole times

	mu   sync.Mutex
	ends map[outcome]uint64
}

func (c *counters) end(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[outcome]uint64{}
	}
	c.ends[o]++ // statuses are 100 .. 999
}

// write writes what there is besides the router's metrics, under the names of Dynamo's frontend where it has one.
func (c *counters) write(w io.Writer, buffered int64) {
	fmt.Fprint(w, "# HELP dynamo_frontend_requests_total Requests that ended, by HTTP status.\n# TYPE dynamo_frontend_requests_total counter\n")
	c.mu.Lock()
	for o, n := range c.ends {
		endpoint, kind := "completions", "unary"
		if o.chat {
			endpoint = "chat_completions"
		}
		if o.stream {
			kind = "stream"
		}
		fmt.Fprintf(w, "dynamo_frontend_requests_total{endpoint=%q,request_type=%q,status=\"%d\"} %d\n", endpoint, kind, o.status, n)
	}
	c.mu.Unlock()
	for _, row := range []struct {
		name, kind, help string
		n                uint64
	}{
		{"dynamo_frontend_inflight_requests", "gauge", "Requests that run.", uint64(max(c.inflight.Load(), 0))},
		{"dynamo_frontend_disconnected_clients", "counter", "Clients that were gone before the end of their answer.", c.disconnected.Load()},
		{"dynamo_frontend_output_tokens_total", "counter", "Generated tokens, of answers that tell.", c.output.Load()},
		{"dynamo_frontend_cached_tokens_total", "counter", "Prompt tokens that engines had cached, of answers that tell.", c.cached.Load()},
		{"dynamo_go_serve_retries_total", "counter", "Engines that were asked because another one failed.", c.retries.Load()},
		{"dynamo_go_serve_broken_answers_total", "counter", "Answers that an engine did not end.", c.broken.Load()},
		{"dynamo_go_serve_refused_requests_total", "counter", "Requests that were refused for want of room here.", c.refused.Load()},
		{"dynamo_go_serve_buffered_bytes", "gauge", "Of requests above 64 KiB, in memory.", uint64(max(buffered, 0))},
		{"dynamo_go_serve_untokenized_requests_total", "counter", "Text that was routed by load alone, because nobody gave token ids.", c.untokenized.Load()},
	} {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", row.name, row.help, row.name, row.kind, row.name, row.n)
	}
	c.first.write(w, "dynamo_frontend_time_to_first_token_seconds", "Time from a request to the first bytes of its answer.")
	c.whole.write(w, "dynamo_frontend_request_duration_seconds", "Time from a request to the end of its answer.")
}
