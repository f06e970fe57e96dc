package tier_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/tier/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func apply(t testing.TB, x *tier.Tiers, slot worker.Slot, in event.Tier, ev *event.Event) index.Applied {
	t.Helper()
	ev.Tier = in
	done, err := x.Apply(slot, ev, index.Count)
	require.NoError(t, err)
	return done
}

func contents(blocks []event.Block) []block.Hash {
	var hashes []block.Hash
	for _, b := range blocks {
		hashes = append(hashes, b.Hash)
	}
	return hashes
}

func removal(blocks []event.Block) *event.Event {
	ev := &event.Event{Kind: event.Removed}
	for _, b := range blocks {
		ev.Removed = append(ev.Removed, b.Engine)
	}
	return ev
}

// TestTiersGoOnWhereTheOneBeforeEnds walks device, host, disk and external of one prompt, with blocks in several tiers.
func TestTiersGoOnWhereTheOneBeforeEnds(t *testing.T) {
	x, c := tier.New(0), chain(1, 0)
	require.True(t, x.Empty())
	apply(t, x, 7, event.HostPinned, below(c, 5, 20)) // the parent is in no tier below the device
	apply(t, x, 7, event.Disk, below(c, 0, 30))
	apply(t, x, 7, event.External, below(c, 25, 31))
	apply(t, x, 7, event.HostPinned, below(c, 33, 40)) // behind a hole
	require.False(t, x.Empty())
	require.Equal(t, []worker.Slot{7}, x.Holders(nil))
	extend := func(depth uint32) []tier.Extension {
		s := tier.Start{Slot: 7, Depth: depth}
		if depth > 0 {
			s.Parent = c[depth-1].Engine
		}
		return x.Extend(nil, contents(c), []tier.Start{s, {Slot: 8}})
	}
	require.Equal(t, []tier.Extension{{Slot: 7, Host: 10, Disk: 10, External: 1}}, extend(10))
	require.Equal(t, []tier.Extension{{Slot: 7, Disk: 30, External: 1}}, extend(0), "the walk does not go back to host")
	require.Equal(t, []tier.Extension{{Slot: 7, Disk: 27, External: 1}}, extend(3))
	require.Equal(t, []tier.Extension{{Slot: 7, External: 1}}, extend(30))
	require.Equal(t, []tier.Extension{{Slot: 7, Host: 7}}, extend(33))
	require.Empty(t, extend(31))
	require.Empty(t, extend(80), "nothing is left of the query")
	require.Equal(t, 22, x.Blocks(7, event.HostPinned))
	require.Zero(t, x.Blocks(7, event.Device))
}

func TestDeviceEventsAreRefused(t *testing.T) {
	x, c := tier.New(0), chain(0, 0)
	done, err := x.Apply(0, below(c, 0, 3), index.Count)
	require.ErrorIs(t, err, tier.ErrTier)
	require.ErrorContains(t, err, "device")
	require.Equal(t, index.Applied{Refused: 3}, done)
	_, err = x.Apply(0, removal(c[:3]), index.Count)
	require.ErrorIs(t, err, tier.ErrTier)
	_, err = x.Apply(index.MaxSlots, &event.Event{Kind: event.Stored, Tier: event.Disk, Blocks: c[:1]}, index.Count)
	require.ErrorIs(t, err, index.ErrSlotRange)
	require.Empty(t, x.Dump(0, event.Device, 0))
	require.ErrorIs(t, x.Runs(event.Device, nil), tier.ErrTier)
	require.Zero(t, x.Stats(event.Device))
}

func TestReferencesAreOfOneTierAndSlot(t *testing.T) {
	x, c := tier.New(0), chain(0, 0)
	for _, slot := range []worker.Slot{1, 2} {
		apply(t, x, slot, event.HostPinned, below(c, 0, 4))
		apply(t, x, slot, event.Disk, below(c, 0, 4))
	}
	require.Equal(t, index.Applied{Duplicate: 4}, apply(t, x, 1, event.Disk, below(c, 0, 4)))
	require.Zero(t, apply(t, x, 1, event.Disk, removal(c[:4])), "one reference of two")
	require.Equal(t, index.Applied{Removed: 4}, apply(t, x, 1, event.Disk, removal(c[:4])))
	require.Equal(t, index.Applied{Unknown: 4}, apply(t, x, 1, event.Disk, removal(c[:4])))
	require.Equal(t, 4, x.Blocks(1, event.HostPinned))
	require.Equal(t, 4, x.Blocks(2, event.Disk))
	apply(t, x, 2, event.Device, &event.Event{Kind: event.Cleared})
	require.False(t, x.Holds(2))
	require.Equal(t, 4, x.Blocks(1, event.HostPinned))
}

// TestANameStoredElsewhereLeavesItsPlace checks that the last report about a name is believed, and that a second name for
// a place is not.
func TestANameStoredElsewhereLeavesItsPlace(t *testing.T) {
	x := tier.New(0)
	hashes := []block.Hash{1, 2, 3}
	stored := func(parent, engine block.EngineHash, h block.Hash) index.Applied {
		return apply(t, x, 0, event.Disk, &event.Event{Kind: event.Stored, HasParent: parent != 0, Parent: parent, Blocks: []event.Block{{Engine: engine, Hash: h}}})
	}
	stored(0, 11, 1)
	stored(11, 12, 2)
	require.Equal(t, index.Applied{Refused: 1}, stored(11, 22, 2))
	require.Equal(t, index.Applied{Removed: 1, Stored: 1}, stored(50, 12, 7))
	require.Equal(t, []tier.Extension{{Disk: 1}}, x.Extend(nil, hashes, []tier.Start{{}}))
	require.Equal(t, index.Applied{Stored: 1}, stored(11, 22, 2))
	require.Equal(t, []tier.Extension{{Disk: 2}}, x.Extend(nil, hashes, []tier.Start{{}}))
	_, err := x.Apply(0, &event.Event{Kind: event.Stored, Tier: event.Disk, HasParent: true, Parent: 5, Blocks: []event.Block{{Engine: 5}}}, index.Count)
	require.ErrorIs(t, err, index.ErrBadChain)
}

// TestSlotsWithTheSameNamesShareBlocks counts what the structure holds for many slots: the first block of each, and one
// of all others.
func TestSlotsWithTheSameNamesShareBlocks(t *testing.T) {
	x, c := tier.New(0), chain(2, 1)
	for slot := range worker.Slot(200) {
		apply(t, x, slot, event.HostPinned, below(c, 0, 60+int(slot%3)))
	}
	st := x.Stats(event.HostPinned)
	require.Equal(t, 200+61, st.Blocks)
	require.Equal(t, 67*60+67*61+66*62, st.Pairs)
	starts := make([]tier.Start, 200)
	for i := range starts {
		starts[i] = tier.Start{Slot: worker.Slot(i), Depth: uint32(i % 2 * 40), Parent: c[39].Engine}
	}
	rows := x.Extend(nil, contents(c), starts)
	require.Len(t, rows, 200)
	for _, r := range rows {
		require.Equal(t, 60+uint32(r.Slot%3)-uint32(r.Slot%2*40), r.Host)
	}
}

// TestBoundRefusesAndCounts fills tiers to their bound: what does not fit is refused, counted by slot.
func TestBoundRefusesAndCounts(t *testing.T) {
	const bound = 200_000
	x := tier.New(bound)
	rng := rand.New(rand.NewPCG(1, 1))
	full := 0
	for i := range 3000 {
		ev := &event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true, Parent: block.EngineHash(rng.Uint64())}
		for range 8 {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(rng.Uint64()), Hash: block.Hash(rng.Uint64())})
		}
		slot := worker.Slot(i % 5)
		before := x.Evicted(slot)
		done, err := x.Apply(slot, ev, index.Count)
		require.LessOrEqual(t, x.Bytes(), int64(bound))
		require.Equal(t, 8, done.Stored+done.Refused)
		require.Equal(t, uint64(done.Refused), x.Evicted(slot)-before)
		require.Equal(t, done.Refused > 0, errors.Is(err, tier.ErrFull))
		full += done.Refused
	}
	require.NotZero(t, full)
	require.Greater(t, x.Stats(event.HostPinned).Blocks, 2000, "most of the memory is used")
	require.NoError(t, tier.Check(x))
	x.Drop(3)
	require.Zero(t, x.Evicted(3))
	ev := below(chain(0, 0), 0, 80)
	ev.Tier = event.HostPinned
	_, err := x.Apply(3, ev, index.Count)
	require.NoError(t, err, "what was dropped is used again")
	x.SetMaxBytes(0)
	for slot := range worker.Slot(5) {
		apply(t, x, slot, event.Disk, below(chain(1, 0), 0, 80))
	}
}

// TestBoundHoldsWhenSetsPart checks that removals do not need memory beyond the bound, though sets of owners come about.
func TestBoundHoldsWhenSetsPart(t *testing.T) {
	x, want := tier.New(0), model.New()
	c := chain(0, 0)
	do := func(slot worker.Slot, ev *event.Event) {
		ev.Tier = event.Disk
		_, err := x.Apply(slot, ev, index.Count)
		require.NoError(t, err)
		_, err = want.Apply(slot, ev, index.Count)
		require.NoError(t, err)
	}
	for slot := range worker.Slot(2000) {
		do(slot, below(c, 40, 80))
	}
	bound := x.Bytes() + 3000
	x.SetMaxBytes(bound)
	rng := rand.New(rand.NewPCG(4, 4))
	for range 3000 {
		from := 40 + rng.IntN(40)
		do(worker.Slot(rng.IntN(2000)), removal(c[from:from+1]))
		require.LessOrEqual(t, x.Bytes(), bound)
	}
	require.NoError(t, tier.Check(x))
	evicted := uint64(0)
	for slot := range worker.Slot(2000) {
		evicted += x.Evicted(slot)
		s := tier.Start{Slot: slot, Depth: 40, Parent: c[39].Engine}
		for _, row := range x.Extend(nil, contents(c), []tier.Start{s}) {
			require.LessOrEqual(t, row.Disk, want.Extend(contents(c), s).Disk)
		}
	}
	require.NotZero(t, evicted)
}

// TestRingsAreDumped stores blocks each below the other, which no prompt does but an engine may say.
func TestRingsAreDumped(t *testing.T) {
	d := &driver{t: t, got: tier.New(0), want: model.New(), slots: 1}
	for i := range block.EngineHash(3) {
		ev := &event.Event{Kind: event.Stored, Tier: event.Disk, HasParent: true, Parent: (i + 2) % 3, Blocks: []event.Block{{Engine: i, Hash: 5}}}
		d.apply(0, ev, index.Count)
	}
	require.Equal(t, []tier.Extension{{Disk: 4}}, d.got.Extend(nil, []block.Hash{1, 5, 5, 5, 5}, []tier.Start{{Depth: 1, Parent: 2}}))
	d.compareCopies()
}

func TestRunsEndsWithTheFirstError(t *testing.T) {
	x := tier.New(0)
	apply(t, x, 1, event.Disk, below(chain(0, 0), 0, 9))
	stop, calls := errors.New("stop"), 0
	require.ErrorIs(t, x.Runs(event.Disk, func(*index.Run) error { calls++; return stop }), stop)
	require.Equal(t, 1, calls)
}

// TestChurnGivesMemoryBack stores and removes many times what is held at once: memory stays that of the most, and what is
// left when everything is gone does not depend on what was there.
func TestChurnGivesMemoryBack(t *testing.T) {
	x := tier.New(0)
	rng := rand.New(rand.NewPCG(2, 2))
	most := int64(0)
	var empty int64
	for round := range 30 {
		var events []*event.Event
		for slot := range worker.Slot(20) {
			ev := &event.Event{Kind: event.Stored}
			for range 100 {
				ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(rng.Uint64()), Hash: block.Hash(rng.Uint64())})
			}
			apply(t, x, slot, event.HostPinned, ev)
			apply(t, x, slot+1, event.HostPinned, ev)
			apply(t, x, slot, event.HostPinned, ev)
			events = append(events, ev)
		}
		if round == 0 {
			most = x.Bytes()
		}
		require.LessOrEqual(t, x.Bytes(), most*5/4, "round %d", round)
		for slot := range worker.Slot(20) {
			gone := removal(events[slot].Blocks)
			slices.Reverse(gone.Removed)
			apply(t, x, slot, event.HostPinned, gone)
			apply(t, x, slot, event.HostPinned, gone)
			if round%2 == 0 {
				apply(t, x, slot+1, event.HostPinned, gone)
			}
		}
		x.Drop(20)
		for slot := range worker.Slot(20) {
			x.Drop(slot)
		}
		require.True(t, x.Empty())
		if round == 0 {
			empty = x.Bytes()
		}
		require.Equal(t, empty, x.Bytes())
	}
}

// TestBytesAreWhatTheHeapHolds compares the count with the runtime's.
func TestBytesAreWhatTheHeapHolds(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	x := tier.New(0)
	load(x, 40, 2000, false)
	used, counted := heap()-before, x.Bytes()
	require.InEpsilon(t, counted, used, 0.1)
	runtime.KeepAlive(x)
}

func TestExtendDoesNotAllocate(t *testing.T) {
	x := tier.New(0)
	prompts := load(x, 64, 600, true)
	load(x, 8, 600, false)
	starts := startsOf(64, 100, prompts[0])
	dst := make([]tier.Extension, 0, 64)
	slots := make([]worker.Slot, 0, 64)
	require.Zero(t, testing.AllocsPerRun(50, func() {
		dst = x.Extend(dst[:0], prompts[0].hashes, starts)
		slots = x.Holders(slots[:0])
	}))
	require.Len(t, dst, 64)
	require.Len(t, slots, 64)
}

// TestConcurrentChangesEqualTheReplayOfTheirLog lets writers change tiers, each its own slots, while readers ask; then the
// model does what the writers did. One slot never changes, and is always found whole.
func TestConcurrentChangesEqualTheReplayOfTheirLog(t *testing.T) {
	const writers, slotsEach, steps, readers = 3, 9, 400, 2
	const still = worker.Slot(writers * slotsEach)
	x := tier.New(0)
	apply(t, x, still, event.HostPinned, below(chain(0, 0), 0, 50))
	apply(t, x, still, event.Disk, below(chain(0, 0), 50, 80))
	type logged struct {
		slot worker.Slot
		ev   *event.Event
	}
	logs := make([][]logged, writers)
	var writing, reading sync.WaitGroup
	var done atomic.Bool
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 8))
			for range steps {
				slot := worker.Slot(w*slotsEach + rng.IntN(slotsEach))
				c := chain(rng.IntN(3), rng.IntN(2))
				from := rng.IntN(79)
				ev := below(c, from, from+1+rng.IntN(79-from))
				switch n := rng.IntN(100); {
				case n < 2:
					ev = &event.Event{Kind: event.Cleared}
				case n < 45:
					ev = removal(ev.Blocks)
				}
				ev.Tier = tiers[rng.IntN(3)]
				_, _ = x.Apply(slot, ev, index.Count)
				logs[w] = append(logs[w], logged{slot, ev})
			}
		})
	}
	var faults atomic.Int64
	for r := range readers {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 9))
			var rows []tier.Extension
			for !done.Load() {
				c := chain(rng.IntN(3), rng.IntN(2))
				depth := rng.IntN(79)
				starts := []tier.Start{{Slot: still}}
				for slot := range still {
					starts = append(starts, tier.Start{Slot: slot, Depth: uint32(depth), Parent: c[max(depth-1, 0)].Engine})
				}
				rows = x.Extend(rows[:0], contents(chain(0, 0)), starts)
				i := slices.IndexFunc(rows, func(r tier.Extension) bool { return r.Slot == still })
				if i < 0 || rows[i] != (tier.Extension{Slot: still, Host: 50, Disk: 30}) {
					faults.Add(1)
				}
				for _, row := range rows {
					if row.Host+row.Disk+row.External > 80 {
						faults.Add(1)
					}
				}
				x.Dump(worker.Slot(rng.IntN(int(still))), tiers[rng.IntN(3)], 0)
				_ = x.Runs(tiers[rng.IntN(3)], func(*index.Run) error { return nil })
				x.Stats(event.Disk)
			}
		})
	}
	writing.Wait()
	done.Store(true)
	reading.Wait()
	require.Zero(t, faults.Load())
	require.NoError(t, tier.Check(x))
	want := model.New()
	for _, log := range logs {
		for _, op := range log {
			_, _ = want.Apply(op.slot, op.ev, index.Count)
		}
	}
	d := &driver{t: t, got: x, want: want, slots: still}
	for slot := range still {
		d.compareSlot(slot)
	}
	d.queries()
}

// TestSlotsThatNameBlocksInTheirOwnWayCrowdNothing: many slots have their own children below one parent, or one child below
// parents of their own; few edges are found under one hash (E6 of Check), and what is found is right.
func TestSlotsThatNameBlocksInTheirOwnWayCrowdNothing(t *testing.T) {
	const slots = 300
	x := tier.New(0)
	store := func(slot worker.Slot, parent, child block.EngineHash) {
		ev := &event.Event{Kind: event.Stored, Tier: event.Disk, HasParent: true, Parent: parent, Blocks: []event.Block{{Engine: child, Hash: 9}}}
		done, err := x.Apply(slot, ev, index.Count)
		require.NoError(t, err)
		require.Equal(t, index.Applied{Stored: 1}, done)
	}
	starts := make([]tier.Start, slots)
	for slot := range worker.Slot(slots) {
		store(slot, 1, 1000+block.EngineHash(slot))
		store(slot, 2000+block.EngineHash(slot), 2)
		starts[slot] = tier.Start{Slot: slot, Depth: 1, Parent: 1}
	}
	require.NoError(t, tier.Check(x))
	require.Positive(t, tier.Owned(x, event.Disk))
	require.Len(t, x.Extend(nil, []block.Hash{8, 9, 10}, starts), slots, "together")
	for slot := range worker.Slot(slots) {
		require.Equal(t, []tier.Extension{{Slot: slot, Disk: 1}}, x.Extend(nil, []block.Hash{8, 9, 10}, starts[slot:slot+1]))
		done, err := x.Apply(slot, &event.Event{Kind: event.Removed, Tier: event.Disk, Removed: []block.EngineHash{2, 1000 + block.EngineHash(slot)}}, index.Count)
		require.NoError(t, err)
		require.Equal(t, index.Applied{Removed: 2}, done)
	}
	require.True(t, x.Empty())
	require.NoError(t, tier.Check(x))
}
