package fleet

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Rank tells how the router follows one rank of an engine; see router.RankHealth.
type Rank struct {
	DPRank   uint32             `json:"dp_rank"`
	State    feed.State         `json:"state"`
	Reason   string             `json:"reason"`
	Since    float64            `json:"since"`     // Unix seconds
	KVEvents string             `json:"kv_events"` // where its events are looked for; "": nowhere
	Replay   string             `json:"replay"`
	Findings []diagnose.Finding `json:"findings"`
}

// Ranks tells how the router follows the engines, by their ids. An engine that is no worker of the router has no ranks.
func (f *Fleet) Ranks() map[uint64][]Rank {
	rows, err := f.router.Health()
	if err != nil { // it is closed
		return nil
	}
	all := make(map[uint64][]Rank)
	for i := range rows {
		row := &rows[i]
		r := Rank{DPRank: row.DPRank, State: row.State, Reason: row.Reason, Since: row.Since, Findings: row.Findings}
		if m, ok := f.routed.Load(row.WorkerID); ok {
			m := m.(*member)
			m.mu.Lock()
			kvEvents, replay := m.kvEvents, m.replay
			m.mu.Unlock()
			r.KVEvents, r.Replay = endpoint(kvEvents, m.engine.Host(), row.DPRank), endpoint(replay, m.engine.Host(), row.DPRank)
		}
		all[row.WorkerID] = append(all[row.WorkerID], r)
	}
	return all
}

// endpoint is that of a rank; "" if there is none.
func endpoint(e router.Endpoints, host string, rank uint32) string {
	base := e.Base
	if base == "" {
		base, rank = e.ByRank[rank], 0
	}
	if base == "" {
		return ""
	}
	at, err := zmq.RankEndpoint(base, host, rank)
	if err != nil {
		return base
	}
	return at
}

// overlook says of healthy engines whose events stay away, once each time, that they do.
func (f *Fleet) overlook() {
	type place struct {
		id   uint64
		rank uint32
	}
	type outage struct {
		since time.Time
		told  bool
	}
	out := make(map[place]outage)
	ticker := time.NewTicker(f.opts.Silence / 2)
	defer ticker.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-ticker.C:
		}
		now, ranks := make(map[place]outage), f.Ranks()
		for _, m := range f.candidates() {
			for _, r := range ranks[m.spec.ID] {
				if r.State != feed.Disconnected || m.engine.State() != engine.Healthy {
					continue
				}
				p := place{m.spec.ID, r.DPRank}
				o, was := out[p]
				if !was {
					o.since = time.Now()
				}
				if !o.told && time.Since(o.since) >= f.opts.Silence {
					o.told = true
					f.opts.Log.Warn("engine's KV events are not connected: prompts do not hit it", "url", m.spec.URL, "worker_id", m.spec.ID,
						"dp_rank", r.DPRank, "kv_events", r.KVEvents, "reason", r.Reason)
				}
				now[p] = o
			}
		}
		out = now
	}
}
