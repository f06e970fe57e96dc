package metrics

import (
	"reflect"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

func (c *Collector) decisions(to chan<- prometheus.Metric, t *tally.DecisionCounts) {
	for _, o := range t.Outcomes {
		if o.Name == tally.Chosen {
			counter(to, c.descs.requests, o.Count)
		}
		counter(to, c.descs.outcomes, o.Count, o.Name)
	}
	counter(to, c.descs.booked, t.Booked)
	histogram(to, c.descs.prompts, &t.PromptTokens)
	histogram(to, c.descs.hitRates, &t.HitRate)
	histogram(to, c.descs.hashing, &t.Hashing)
	histogram(to, c.descs.matching, &t.Matching)
	histogram(to, c.descs.scheduling, &t.Scheduling)
	histogram(to, c.descs.total, &t.Total)
}

// Dynamo's names; it has none for what is refused for another reason.
var (
	eventTypes = map[event.Kind]string{event.Stored: "stored", event.Removed: "removed", event.Cleared: "cleared"}
	statuses   = [tally.Statuses]string{
		tally.OK: "ok", tally.ParentNotFound: "parent_block_not_found", tally.BlockNotFound: "block_not_found",
		tally.InvalidBlocks: "invalid_block", tally.Refused: "refused",
	}
)

func (c *Collector) events(to chan<- prometheus.Metric, t *tally.EventCounts, s *router.Stats) {
	for kind, name := range eventTypes {
		for status, n := range t.Ends[kind] {
			counter(to, c.descs.eventsApplied, n, name, statuses[status])
		}
	}
	counter(to, c.descs.eventWarnings, t.DuplicateStores, "duplicate_store")
	counter(to, c.descs.eventsIgnored, s.IgnoredEvents)
	for change, n := range map[string]uint64{
		"stored": t.Stored, "duplicate": t.Duplicate, "removed": t.Removed, "unknown": t.Unknown, "refused": t.Rejected,
	} {
		counter(to, c.descs.blockChanges, n, change)
	}
}

func (c *Collector) index(to chan<- prometheus.Metric, s *router.Stats) {
	gauge(to, c.descs.indexBlocks, s.Blocks)
	gauge(to, c.descs.indexPairs, s.Pairs)
	gauge(to, c.descs.indexPaths, s.Paths)
	gauge(to, c.descs.indexEvicted, s.EvictedBlocks)
	gauge(to, c.descs.indexPresumed, s.PresumedBlocks)
	for i, parts := 0, reflect.ValueOf(s.Memory); i < parts.NumField(); i++ { // whatever parts there come to be
		gauge(to, c.descs.indexBytes, parts.Field(i).Int(), parts.Type().Field(i).Tag.Get("json"))
	}
	gauge(to, c.descs.workers, s.Workers)
	gauge(to, c.descs.waiting, s.WaitingRanks)
}

// other is the row of the ranks beyond the bound.
const other = "other"

func (c *Collector) ranks(to chan<- prometheus.Metric, r *reading) {
	var rest router.PotentialLoad
	for i := range r.loads {
		l := &r.loads[i]
		if i >= c.maxRanks {
			rest.PotentialDecodeBlocks += l.PotentialDecodeBlocks
			rest.PotentialPrefillTokens += l.PotentialPrefillTokens
			rest.ActiveRequests += l.ActiveRequests
			continue
		}
		c.rank(to, l, 1, strconv.FormatUint(l.WorkerID, 10), strconv.FormatUint(uint64(l.DPRank), 10))
	}
	if n := len(r.loads) - c.maxRanks; n > 0 {
		c.rank(to, &rest, n, other, "")
	}
}

func (c *Collector) rank(to chan<- prometheus.Metric, l *router.PotentialLoad, ranks int, worker, dpRank string) {
	gauge(to, c.descs.registered, ranks, worker, dpRank, c.workerType)
	gauge(to, c.descs.decodeBlocks, l.PotentialDecodeBlocks, worker, dpRank, c.workerType)
	gauge(to, c.descs.prefillTokens, l.PotentialPrefillTokens, worker, dpRank, c.workerType)
	gauge(to, c.descs.activeRequests, l.ActiveRequests, worker, dpRank, c.workerType)
}

func (c *Collector) views(to chan<- prometheus.Metric, health []router.RankHealth) {
	states, rest := map[feed.State]int{feed.Exact: 0, feed.Recovering: 0, feed.Partial: 0, feed.Disconnected: 0}, 0
	for i := range health {
		h := &health[i]
		states[h.State]++
		exact := 0
		if h.State == feed.Exact {
			exact = 1
		}
		if i >= c.maxRanks {
			rest += exact
			continue
		}
		gauge(to, c.descs.exact, exact, strconv.FormatUint(h.WorkerID, 10), strconv.FormatUint(uint64(h.DPRank), 10), c.workerType)
	}
	if len(health) > c.maxRanks {
		gauge(to, c.descs.exact, rest, other, "", c.workerType)
	}
	for state, n := range states {
		gauge(to, c.descs.states, n, string(state))
	}
	c.feeds.add(health)
	for name, n := range c.feeds.totals {
		counter(to, c.descs.feedCounts, n, name)
	}
}

func (c *Collector) queue(to chan<- prometheus.Metric, classes map[string]queue.Stats) {
	for name, s := range classes {
		gauge(to, c.descs.pending, s.Requests, c.workerType, name)
		gauge(to, c.descs.pendingISL, s.ISLTokens, c.workerType, name)
		gauge(to, c.descs.pendingCached, s.CachedTokens, c.workerType, name)
		counter(to, c.descs.queued, s.Pushed, c.workerType, name)
		counter(to, c.descs.queueRefused, s.LimitRefused, c.workerType, name, "limit")
		counter(to, c.descs.queueRefused, s.DeadlinePassed, c.workerType, name, "deadline")
	}
}
