package router_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// chaos is a fleet on a bad network, and the routers that follow it.
type chaos struct {
	t       *testing.T
	rng     *rand.Rand
	engines map[worker.Rank]*badEngine
	ids     []worker.Rank // of engines
	routers []*router.Router
	absent  map[*router.Router]uint64 // the worker that was removed from a router
}

const (
	chaosWorkers = 8
	chaosRanks   = 2
)

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 0)), engines: map[worker.Rank]*badEngine{}, absent: map[*router.Router]uint64{}}
	dir, err := os.MkdirTemp("", "dgo") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	for id := range uint64(chaosWorkers) {
		for dp := range uint32(chaosRanks) {
			rank := worker.Rank{ID: id, DPRank: dp}
			e := &badEngine{t: t, rank: rank, memory: memory(id % 4), at: "ipc://" + filepath.Join(dir, fmt.Sprintf("%d-%d", id, dp)),
				rng: rand.New(rand.NewPCG(seed, 1+id<<32+uint64(dp)))}
			e.start()
			t.Cleanup(e.stop)
			c.engines[rank] = e
			c.ids = append(c.ids, rank)
		}
	}
	return c
}

func (c *chaos) worker(id uint64) router.Worker {
	w := router.Worker{ID: id, DPSize: chaosRanks}
	for _, rank := range c.ids {
		if rank.ID == id {
			c.engines[rank].describe(&w)
		}
	}
	return w
}

// join starts a router, from a snapshot if there is one.
func (c *chaos) join(snapshot string) {
	r, err := router.New(chaosBlock, router.DefaultConfig(), router.Options{})
	require.NoError(c.t, err)
	c.t.Cleanup(r.Close)
	if snapshot != "" {
		_, err := r.Load(snapshot)
		require.NoError(c.t, err)
	}
	for id := range uint64(chaosWorkers) {
		require.NoError(c.t, r.AddWorker(c.worker(id)))
	}
	c.routers = append(c.routers, r)
}

func (c *chaos) save(r *router.Router) string {
	path := filepath.Join(c.t.TempDir(), "snapshot")
	require.NoError(c.t, r.Save(path))
	return path
}

// storm is so many events, with faults of all kinds between their batches: at least a few of each.
func (c *chaos) storm(events int) {
	const rare = 12_000
	for i, left := 0, events; left > 0; i++ {
		left -= c.engines[c.ids[c.rng.IntN(len(c.ids))]].step()
		switch p := c.rng.IntN(min(events/2, rare)); {
		case p < 3: // an engine starts anew
			e := c.engines[c.ids[c.rng.IntN(len(c.ids))]]
			e.stop()
			e.start()
		case p < 5: // a worker leaves a router, or comes back
			r := c.routers[c.rng.IntN(len(c.routers))]
			if id, absent := c.absent[r]; absent {
				require.NoError(c.t, r.AddWorker(c.worker(id)))
				delete(c.absent, r)
			} else {
				id := c.rng.Uint64N(chaosWorkers)
				require.NoError(c.t, r.RemoveWorker(id))
				c.absent[r] = id
			}
		case p < 6: // a router starts anew, with or without what it knew
			at := c.rng.IntN(len(c.routers))
			r, snapshot := c.routers[at], ""
			if c.rng.IntN(2) == 0 {
				snapshot = c.save(r)
			}
			r.Close()
			c.routers = slices.Delete(c.routers, at, at+1)
			delete(c.absent, r)
			c.join(snapshot)
		}
		if i%16 == 0 {
			time.Sleep(time.Millisecond) // engines publish once per step, not all at once
		}
	}
	for r, id := range c.absent {
		require.NoError(c.t, r.AddWorker(c.worker(id)))
		delete(c.absent, r)
	}
}

// patience is how long routers may take to agree once it is quiet. The race detector makes everything several times slower.
func patience() time.Duration {
	if raceEnabled {
		return time.Minute
	}
	return 10 * time.Second
}

// quiet waits until every router agrees with every engine, as far as that one's memory goes, and tells how long it took.
func (c *chaos) quiet() time.Duration {
	for _, e := range c.engines {
		e.settle(true)
	}
	began, wrong := time.Now(), ""
	ok := func() bool { wrong = c.disagreement(); return wrong == "" }
	for deadline := began.Add(patience()); !ok() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	require.Empty(c.t, wrong)
	took := time.Since(began)
	for _, e := range c.engines {
		e.settle(false)
	}
	return took
}

func (c *chaos) disagreement() string {
	for i, r := range c.routers {
		rows, err := r.Health()
		require.NoError(c.t, err)
		require.Len(c.t, rows, chaosWorkers*chaosRanks)
		views := c.views(r)
		for _, row := range rows {
			rank := worker.Rank{ID: row.WorkerID, DPRank: row.DPRank}
			e, view := c.engines[rank], views[rank]
			held := e.blocks()
			where := fmt.Sprintf("router %d, rank %v: %s %s", i, rank, row.State, row.Reason)
			switch {
			case row.State == feed.Exact && !maps.Equal(view, held):
				return fmt.Sprintf("%s: has %d blocks, the engine %d", where, len(view), len(held))
			case row.State == feed.Exact:
			case row.State != feed.Partial || e.memory == everything || e.memory == state:
				return where
			}
			for name := range view {
				if _, ok := held[name]; !ok {
					return fmt.Sprintf("%s: claims block %d, which is gone", where, name)
				}
			}
			delete(views, rank)
		}
		require.Empty(c.t, views, "blocks of nobody")
	}
	return ""
}

// views gives what a router says that each rank holds.
func (c *chaos) views(r *router.Router) map[worker.Rank]map[block.EngineHash]holding {
	dump, err := r.DumpEvents()
	require.NoError(c.t, err)
	events, err := event.ParseRouterEvents(dump)
	require.NoError(c.t, err)
	views := map[worker.Rank]map[block.EngineHash]holding{}
	for _, rank := range c.ids {
		views[rank] = map[block.EngineHash]holding{}
	}
	for _, e := range events {
		view, parent := views[worker.Rank{ID: e.WorkerID, DPRank: e.Event.DPRank}], e.Event.Parent
		for _, b := range e.Event.Blocks {
			view[b.Engine] = holding{parent: parent, hash: b.Hash}
			parent = b.Engine
		}
	}
	return views
}

// TestRoutersAgreeWithEnginesOnABadNetwork loses live messages, cuts, repeats and delays answers, restarts engines and
// routers, removes workers and adds them again. Whenever it is quiet, every rank that can be recovered is exact and holds
// what its engine holds; no other claims what is gone. Routers that joined early, late, or from another's snapshot or dump agree.
// DGO_CHAOS_EVENTS makes it longer, DGO_CHAOS_SEED another one.
func TestRoutersAgreeWithEnginesOnABadNetwork(t *testing.T) {
	setting := func(name string, value int) int {
		if text := os.Getenv(name); text != "" {
			var err error
			value, err = strconv.Atoi(text)
			require.NoError(t, err)
		}
		return value
	}
	events, seed := setting("DGO_CHAOS_EVENTS", 10_000), setting("DGO_CHAOS_SEED", 1)
	const rounds = 3
	c := newChaos(t, uint64(seed))
	for range rounds { // a router more in each
		c.join("")
		c.storm(events / rounds)
		t.Logf("agreed %v after the last batch", c.quiet())
	}
	c.join(c.save(c.routers[0]))
	t.Logf("the one from a snapshot agreed after %v", c.quiet())
	dump, err := c.routers[0].DumpEvents()
	require.NoError(t, err)
	c.join("")
	require.NoError(t, c.routers[len(c.routers)-1].LoadEvents(dump))
	t.Logf("the one from a dump agreed after %v", c.quiet())
	restored, met := 0, map[string]uint64{}
	for _, r := range c.routers {
		rows, err := r.Health()
		require.NoError(t, err)
		for _, row := range rows {
			for name, n := range row.Counters {
				met[name] += n
			}
			if row.State == feed.Exact {
				restored++
			}
		}
	}
	t.Logf("%d ranks exact: %v", restored, met)
	require.GreaterOrEqual(t, restored, len(c.routers)*chaosWorkers*chaosRanks/2)
	for _, name := range []string{"gaps", "restarts", "replayed_batches", "replay_failures", "dumps", "duplicate_batches", "probes"} {
		require.NotZero(t, met[name], "%s: the network is not bad enough", name)
	}
}
