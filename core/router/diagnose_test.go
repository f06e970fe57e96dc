package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// serve sends n prompts to a router whose only worker is worker 1, and has the engine report each as stored says.
func (k *kit) serve(e *engine, first, n int, request func(q *router.Request), stored func(ev *publish.Event)) {
	for i := range n {
		q := book(fmt.Sprint("request ", first+i), tokens(first+i, 64))
		if request != nil {
			request(q)
		}
		k.best(q)
		ev := publish.Stored(nil, e.names(4), tokens(first+i, 64), 16)
		if stored != nil {
			stored(&ev)
		}
		if ev.Kind != 0 {
			e.send(ev)
		}
		require.NoError(k.t, k.Free(q.ID))
	}
	k.heard(e)
	k.at = k.at.Add(3 * time.Second)
}

// names gives engine hashes that no block has yet.
func (e *engine) names(n int) (names []block.EngineHash) {
	for range n {
		e.next++
		names = append(names, block.EngineHash(e.next))
	}
	return names
}

// causes gives what health finds of worker 1.
func (k *kit) causes() (causes []diagnose.Cause) {
	for _, f := range k.health(1).Findings {
		require.NotEmpty(k.t, f.Evidence)
		require.NotEmpty(k.t, f.Action)
		causes = append(causes, f.Cause)
	}
	return causes
}

// heard waits until all that the engine sent is applied.
func (k *kit) heard(e *engine) {
	k.eventually("all batches", func() bool { return k.health(1).Counters["batches"] == e.sent })
}

// Every way in which an engine and its router can fail to understand each other has a name in the health of its rank. The
// first of them: https://github.com/ai-dynamo/dynamo/issues/1232 https://github.com/ai-dynamo/dynamo/pull/14673
func TestHealthNamesWhyNothingIsHit(t *testing.T) {
	for name, c := range map[string]struct {
		want    diagnose.Cause
		request func(q *router.Request)
		stored  func(ev *publish.Event)
		says    string
	}{
		"block size":                          {diagnose.BlockSizeDiffers, nil, func(ev *publish.Event) { ev.BlockSize, ev.BlockHashes = 64, ev.BlockHashes[:1] }, "is 64"},
		"other tokens":                        {diagnose.TokensDiffer, nil, func(ev *publish.Event) { ev.TokenIDs = append([]uint32{1}, ev.TokenIDs[:63]...) }, "the last 8 sampled prompts hit nothing"},
		"salt that the router is not told":    {diagnose.CacheSaltDiffers, nil, func(ev *publish.Event) { ev.CacheSalt = "tenant" }, "8 of them were stored under another"},
		"salt that the engine is not told":    {diagnose.CacheSaltDiffers, func(q *router.Request) { q.CacheNamespace = "tenant" }, nil, "with cache_namespace"},
		"adapter that the router is not told": {diagnose.LoRADiffers, nil, func(ev *publish.Event) { ev.LoRAName = "sql" }, `"sql"`},
		"adapter by another name":             {diagnose.LoRADiffers, func(q *router.Request) { q.LoRAName = "sql-v2" }, func(ev *publish.Event) { ev.LoRAName = "sql" }, `"sql"`},
		"no events":                           {diagnose.NoEvents, nil, func(ev *publish.Event) { *ev = publish.Event{} }, "no event came"},
		"storage":                             {diagnose.EventsUnusable, nil, func(ev *publish.Event) { ev.Medium = "FS" }, "unknown_medium"},
		"no main group":                       {diagnose.EventsUnusable, nil, func(ev *publish.Event) { ev.HasGroup, ev.GroupIdx, ev.SpecKind = true, 1, "mamba" }, "non_main_attention"},
		"elsewhere":                           {diagnose.EventsUnusable, nil, func(ev *publish.Event) { ev.Locality = "REMOTE" }, "non_local_locality"},
		"number only":                         {diagnose.EventsUnusable, nil, func(ev *publish.Event) { ev.HasLoRAID, ev.LoRAID = true, 3 }, "unnamed_lora"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, 16, router.DefaultConfig())
			e := newEngine(t, 0)
			require.NoError(t, k.AddWorker(follows(1, e)))
			k.exact(1)
			k.serve(e, 1, 8, c.request, c.stored)
			require.Equal(t, []diagnose.Cause{c.want}, k.causes())
			f := k.health(1).Findings[0]
			require.Contains(t, f.Evidence, c.says)
			t.Log(f.Evidence, "->", f.Action)
		})
	}
}

// What looks like a fault and is none has no name: prompts that never repeat, few of them, none yet, requests under way,
// tenants with salts of their own, an engine whose cache turns over, one that just started.
func TestHealthAccusesNoHealthyEngine(t *testing.T) {
	for name, c := range map[string]struct {
		run func(k *kit, e *engine)
	}{
		"cold":           {func(*kit, *engine) {}},
		"tiny":           {func(k *kit, e *engine) { k.serve(e, 1, 7, nil, func(ev *publish.Event) { ev.CacheSalt = "x" }) }},
		"unique prompts": {func(k *kit, e *engine) { k.serve(e, 1, 40, nil, nil) }},
		"same prompt": {func(k *kit, e *engine) {
			for range 20 {
				k.serve(e, 1, 1, nil, nil)
			}
		}},
		"tenants": {func(k *kit, e *engine) {
			for i := range 40 {
				salt := fmt.Sprint("tenant ", i)
				k.serve(e, i, 1, func(q *router.Request) { q.CacheNamespace = salt }, func(ev *publish.Event) { ev.CacheSalt = salt })
			}
		}},
		"under way": {func(k *kit, e *engine) {
			for i := range 20 {
				k.best(book(fmt.Sprint(i), tokens(i, 64)))
			}
			k.at = k.at.Add(time.Minute)
		}},
		"only asked": {func(k *kit, e *engine) {
			for i := range 20 {
				k.best(ask(tokens(i, 64)))
			}
			k.at = k.at.Add(50 * time.Second)
		}},
		"short prompts": {func(k *kit, e *engine) {
			for i := range 20 {
				k.best(book(fmt.Sprint(i), tokens(i, 16)))
				require.NoError(k.t, k.Free(fmt.Sprint(i)))
			}
			k.at = k.at.Add(time.Minute)
		}},
		"cache that turns over": {func(k *kit, e *engine) {
			for i := range 40 {
				k.serve(e, i, 1, nil, nil)
				e.send(publish.Removed([]block.EngineHash{block.EngineHash(e.next - 3), block.EngineHash(e.next - 2), block.EngineHash(e.next - 1), block.EngineHash(e.next)}))
			}
		}},
		"cleared": {func(k *kit, e *engine) {
			k.serve(e, 1, 8, nil, nil)
			e.send(publish.Cleared())
		}},
		"partial blocks of other sizes": {func(k *kit, e *engine) {
			k.serve(e, 1, 20, nil, func(ev *publish.Event) {
				e.send(publish.Stored(nil, e.names(1), tokens(99, 4), 4))
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, 16, router.DefaultConfig())
			e := newEngine(t, 0)
			require.NoError(t, k.AddWorker(follows(1, e)))
			k.exact(1)
			c.run(k, e)
			k.heard(e)
			require.Empty(t, k.causes())
			k.at = k.at.Add(3 * time.Second)
			require.Empty(t, k.causes())
		})
	}
}

// A cause goes away when it is gone: the engine was started anew with the right block size, the requests carry the salt.
func TestFindingsEnd(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	e := newEngine(t, 0)
	require.NoError(t, k.AddWorker(follows(1, e)))
	k.serve(e, 1, 8, nil, func(ev *publish.Event) { ev.CacheSalt = "tenant" })
	require.Equal(t, []diagnose.Cause{diagnose.CacheSaltDiffers}, k.causes())
	hit := ask(tokens(1, 64))
	hit.CacheNamespace = "tenant"
	require.EqualValues(t, 4, k.best(hit).OverlapBlocks)
	require.Equal(t, []diagnose.Cause{diagnose.CacheSaltDiffers}, k.causes(), "requests without a salt still hit nothing")
	k.serve(e, 50, 1, nil, nil)
	require.Empty(t, k.causes())
	require.Equal(t, feed.Exact, k.health(1).State)
}

// A rank that holds everything in host memory is healthy, and events that the host applies are watched like a feed's.
func TestHealthOfEventsThatTheHostApplies(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	place := func(i, held int, tier event.Tier) {
		k.best(book(fmt.Sprint(i), tokens(i, 64)))
		k.storeIn(tier, 1, tokens(held, 64), 0, 4)
		require.NoError(t, k.Free(fmt.Sprint(i)))
		k.at = k.at.Add(3 * time.Second)
	}
	for i := range 20 {
		place(i, i, event.HostPinned)
		require.Empty(t, k.causes())
	}
	for i := 100; i < 108; i++ {
		place(i, i+1000, event.Device)
	}
	require.Equal(t, []diagnose.Cause{diagnose.TokensDiffer}, k.causes())

	silent := newKit(t, 16, router.DefaultConfig()).workers(1)
	for i := range 8 {
		silent.best(book(fmt.Sprint(i), tokens(i, 64)))
		require.NoError(t, silent.Free(fmt.Sprint(i)))
	}
	require.Empty(t, silent.causes(), "events take a moment")
	silent.at = silent.at.Add(3 * time.Second)
	require.Equal(t, []diagnose.Cause{diagnose.NoEvents}, silent.causes())
	require.NoError(t, silent.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	require.Empty(t, silent.causes())

	config := router.DefaultConfig()
	config.UseKVEvents = false
	k = newKit(t, 16, config).workers(1)
	for i := range 20 {
		k.best(book(fmt.Sprint(i), tokens(i, 64)))
		require.NoError(t, k.Free(fmt.Sprint(i)))
	}
	k.at = k.at.Add(time.Minute)
	require.Empty(t, k.causes(), "a router without events expects none")
}

// What the host applies is counted by the names that a feed has for it, also what is not used.
func TestCountersOfEventsThatTheHostApplies(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	k.store(1, 0, tokens(1, 64))
	k.store(1, 0, tokens(1, 64))
	blocks := []event.Block{{Engine: 1, Hash: 2}}
	require.ErrorIs(t, k.ApplyEvent(1, &event.Event{Kind: event.Stored, HasParent: true, Parent: 77, Blocks: blocks}, index.Count), router.ErrEventRefused)
	require.ErrorIs(t, k.ApplyEvent(1, &event.Event{Kind: event.Stored, HasParent: true, Parent: 1, Blocks: blocks}, index.Count), router.ErrEventRefused)
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{77}}, index.Count))
	require.NoError(t, k.LoadEvents([]byte(`[{"worker_id":1,"residency_domain":"cache_owner","event":{"data":"cleared"}}]`)))
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	require.Error(t, k.ApplyEvent(2, &event.Event{Kind: event.Cleared}, index.Count))
	counted := k.health(1).Counters
	refused := counted["bad_chain"] + counted["unknown_parent"]
	delete(counted, "bad_chain")
	delete(counted, "unknown_parent")
	require.EqualValues(t, 2, refused)
	require.Equal(t, map[string]uint64{
		"events": 6, "stored_blocks": 4, "duplicate_stores": 4, "removed_blocks": 4, "unknown_removals": 1, "cleared": 1, "foreign_events": 1,
	}, counted)

	config := router.DefaultConfig()
	config.UseKVEvents = false
	k = newKit(t, 16, config).workers(1)
	k.store(1, 0, tokens(1, 64))
	require.EqualValues(t, 1, k.health(1).Counters["events_off"])
	require.Zero(t, k.health(1).Counters["stored_blocks"])
}
