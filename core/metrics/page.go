package metrics

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

// page collects rows.
type page struct {
	workerType string
	rows       []Row
}

func (p *page) add(metric int, value float64, labels ...string) {
	for i := range labels { // some are names that others chose
		labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
	}
	p.rows = append(p.rows, Row{Metric: metric, Value: value, Values: labels})
}

func (p *page) histogram(metric int, h *tally.Histogram) {
	p.rows = append(p.rows, Row{Metric: metric, Histogram: h})
}

func (p *page) decisions(t *tally.DecisionCounts) {
	for _, o := range t.Outcomes {
		if o.Name == tally.Chosen {
			p.add(requests, float64(o.Count))
		}
		p.add(decisions, float64(o.Count), o.Name)
	}
	p.add(requestsStarted, float64(t.Booked))
	p.histogram(inputTokens, &t.PromptTokens)
	p.histogram(hitRate, &t.HitRate)
	p.histogram(overheadHashing, &t.Hashing)
	p.histogram(overheadMatching, &t.Matching)
	p.histogram(overheadScheduling, &t.Scheduling)
	p.histogram(overheadTotal, &t.Total)
}

func (p *page) hits(h *tally.Hits) {
	p.add(hitRequests, float64(h.Requests))
	p.add(hitBlocks, float64(h.Blocks), "prompt")
	p.add(hitBlocks, float64(h.Predicted), "predicted")
	p.add(hitBlocks, float64(h.Actual), "actual")
}

// Dynamo's names; it has none for what is refused for another reason.
var (
	eventTypes = map[event.Kind]string{event.Stored: "stored", event.Removed: "removed", event.Cleared: "cleared"}
	statuses   = [tally.Statuses]string{
		tally.OK: "ok", tally.ParentNotFound: "parent_block_not_found", tally.BlockNotFound: "block_not_found",
		tally.InvalidBlocks: "invalid_block", tally.Refused: "refused",
	}
)

func (p *page) events(t *tally.EventCounts, s *router.Stats) {
	for kind, name := range eventTypes {
		for status, n := range t.Ends[kind] {
			p.add(eventsApplied, float64(n), name, statuses[status])
		}
	}
	p.add(eventWarnings, float64(t.DuplicateStores), "duplicate_store")
	p.add(eventsIgnored, float64(s.IgnoredEvents))
	for change, n := range map[string]uint64{
		"stored": t.Stored, "duplicate": t.Duplicate, "removed": t.Removed, "unknown": t.Unknown, "refused": t.Rejected,
	} {
		p.add(blockChanges, float64(n), change)
	}
}

func (p *page) index(s *router.Stats) {
	p.add(indexBlocks, float64(s.Blocks))
	p.add(indexPairs, float64(s.Pairs))
	p.add(indexPaths, float64(s.Paths))
	p.add(indexEvicted, float64(s.EvictedBlocks))
	p.add(indexPresumed, float64(s.PresumedBlocks))
	for i, parts := 0, reflect.ValueOf(s.Memory); i < parts.NumField(); i++ { // whatever parts there come to be
		p.add(indexBytes, float64(parts.Field(i).Int()), parts.Type().Field(i).Tag.Get("json"))
	}
	p.add(workers, float64(s.Workers))
	p.add(waitingRanks, float64(s.WaitingRanks))
}

func (p *page) queue(classes map[string]queue.Stats) {
	for name, s := range classes {
		p.add(queueRequests, float64(s.Requests), name, p.workerType)
		p.add(queueISL, float64(s.ISLTokens), name, p.workerType)
		p.add(queueCached, float64(s.CachedTokens), name, p.workerType)
		p.add(queuedRequests, float64(s.Pushed), name, p.workerType)
		p.add(queueBackpressure, float64(s.LimitRefused), name, "limit", p.workerType)
		p.add(queueBackpressure, float64(s.DeadlinePassed), name, "deadline", p.workerType)
	}
}

// other is the row of the ranks beyond the bound.
const other = "other"

func (p *page) ranks(loads []router.PotentialLoad, most int) {
	var rest router.PotentialLoad
	for i := range loads {
		l := &loads[i]
		if i >= most {
			rest.PotentialDecodeBlocks += l.PotentialDecodeBlocks
			rest.PotentialPrefillTokens += l.PotentialPrefillTokens
			rest.ActiveRequests += l.ActiveRequests
			continue
		}
		p.rank(l, 1, strconv.FormatUint(l.WorkerID, 10), strconv.FormatUint(uint64(l.DPRank), 10))
	}
	if n := len(loads) - most; n > 0 {
		p.rank(&rest, n, other, "")
	}
}

func (p *page) rank(l *router.PotentialLoad, ranks int, worker, dpRank string) {
	p.add(workerRegistered, float64(ranks), dpRank, worker, p.workerType)
	p.add(decodeBlocks, float64(l.PotentialDecodeBlocks), dpRank, worker, p.workerType)
	p.add(prefillTokens, float64(l.PotentialPrefillTokens), dpRank, worker, p.workerType)
	p.add(activeRequests, float64(l.ActiveRequests), dpRank, worker, p.workerType)
}

func (p *page) views(health []router.RankHealth, most int) {
	rest := 0
	found := map[diagnose.Cause]int{}
	states := map[feed.State]int{feed.Exact: 0, feed.Recovering: 0, feed.Partial: 0, feed.Disconnected: 0, router.Presumed: 0}
	for i := range health {
		h := &health[i]
		states[h.State]++
		for _, f := range h.Findings {
			found[f.Cause]++
		}
		exact := 0
		if h.State == feed.Exact {
			exact = 1
		}
		if i >= most {
			rest += exact
			continue
		}
		p.add(viewExact, float64(exact), strconv.FormatUint(uint64(h.DPRank), 10), strconv.FormatUint(h.WorkerID, 10), p.workerType)
	}
	if len(health) > most {
		p.add(viewExact, float64(rest), "", other, p.workerType)
	}
	for state, n := range states {
		p.add(ranks, float64(n), string(state))
	}
	for _, cause := range diagnose.Causes() {
		p.add(findings, float64(found[cause]), string(cause))
	}
}
