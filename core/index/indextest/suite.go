package indextest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Run checks the semantics of package index on an implementation. check verifies its invariants; it may be nil.
func Run(t *testing.T, factory Factory, check func(index.Index) error) {
	cases := []struct {
		name string
		run  func(*testing.T, index.Index)
	}{
		{"empty", empty},
		{"match appends to dst", matchAppends},
		{"depths of several holders", depths},
		{"a query of one length for both hashes", shortQuery},
		{"a block is known by what precedes it", sameContentElsewhere},
		{"hole hides and refill brings back", hole},
		{"what hung on a block that comes back is found", orphans},
		{"references counted", counted},
		{"references set", set},
		{"several names of a block", aliases},
		{"a name stored for another block leaves the old one", renamed},
		{"a name moves within its own chain", movedInChain},
		{"unknown parent refused", unknownParent},
		{"another slot's parent does not help", foreignParent},
		{"empty run checks the parent", emptyRun},
		{"block twice refused", blockTwice},
		{"removal of unknown names is counted", unknownRemoval},
		{"clear and drop", clearAndDrop},
		{"an event of no kind changes nothing", noKind},
		{"long chain", longChain},
		{"4096 holders", manyHolders},
		{"dump joins chains and keeps names", dumpShape},
		{"dump leaves out what is hidden", dumpHidden},
		{"runs keep names and references", runs},
		{"names of the blocks of a query", nameOf},
		{"an error ends the runs", runsEnd},
		{"a closed index is empty", closed},
		{"memory goes back", memoryBack},
	}
	for _, c := range append(cases, reports...) {
		t.Run(c.name, func(t *testing.T) {
			x := factory()
			c.run(t, x)
			if check != nil {
				require.NoError(t, check(x))
			}
		})
	}
	t.Run("random operations agree with the model", func(t *testing.T) {
		seeds := uint64(6)
		if Race || check == nil { // the model alone: it is compared with itself
			seeds = 1
		}
		for seed := range seeds {
			rng := rand.New(rand.NewPCG(seed, 1))
			data := make([]byte, 1200)
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			data[0] = byte(seed % 3)
			Drive(t, data, factory, check)
		}
	})
}

func empty(t *testing.T, x index.Index) {
	require.Empty(t, x.Match(nil, index.Query{}))
	require.Empty(t, x.Match(nil, asked(1, 2)))
	require.Zero(t, x.Blocks(0))
	require.Empty(t, x.Dump(5, 0))
	require.Zero(t, x.Stats().Blocks+x.Stats().Pairs)
	x.Drop(9)
	require.Equal(t, index.Applied{Unknown: 1}, apply(t, x, 1, removed(4)))
}

func matchAppends(t *testing.T, x index.Index) {
	apply(t, x, 2, chain(1, 2))
	dst := []index.Overlap{{Slot: 9, Depth: 9}}
	require.Equal(t, []index.Overlap{{Slot: 9, Depth: 9}, {Slot: 2, Depth: 2}}, x.Match(dst, asked(1, 2, 3)))
}

func depths(t *testing.T, x index.Index) {
	hashes := prompt(1, 100)
	want := make(map[worker.Slot]int)
	for i := 1; i <= 100; i++ {
		slot := worker.Slot(i * 3)
		require.Equal(t, index.Applied{Stored: i}, apply(t, x, slot, stored(hashes, 0, i)))
		want[slot] = i
	}
	require.Equal(t, want, match(t, x, query(hashes)))
	for slot, depth := range want {
		want[slot] = min(depth, 40)
	}
	require.Equal(t, want, match(t, x, query(hashes[:40])))
	st := x.Stats()
	require.Equal(t, []int{100, 5050}, []int{st.Blocks, st.Pairs})
	m := st.Memory
	require.Equal(t, st.Bytes, m.Blocks+m.Paths+m.Names+m.Heads+m.Sets+m.Rest)
}

func shortQuery(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3))
	q := asked(1, 2, 3)
	require.Equal(t, map[worker.Slot]int{0: 1}, match(t, x, index.Query{Hashes: q.Hashes[:1], Sequences: q.Sequences[:1]}))
}

func sameContentElsewhere(t *testing.T, x index.Index) {
	h := prompt(3, 1)[0]
	same := []block.Hash{h, h, h, h}
	apply(t, x, 1, stored(same, 0, 3))
	require.Equal(t, map[worker.Slot]int{1: 3}, match(t, x, query(same)))
	require.Equal(t, map[worker.Slot]int{1: 1}, match(t, x, query([]block.Hash{h, 5, h})))
	require.Equal(t, none(), match(t, x, query([]block.Hash{5, h})))
}

func hole(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3, 4))
	apply(t, x, 1, chain(1, 2, 3, 4))
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 0, removed(2)))
	require.Equal(t, map[worker.Slot]int{0: 1, 1: 4}, match(t, x, asked(1, 2, 3, 4)))
	require.Equal(t, 3, x.Blocks(0))
	require.Equal(t, index.Applied{Stored: 1}, apply(t, x, 0, below(1, chain(2))))
	require.Equal(t, map[worker.Slot]int{0: 4, 1: 4}, match(t, x, asked(1, 2, 3, 4)))
	// Below a hidden block, too, blocks are stored; they appear with it.
	apply(t, x, 1, removed(1))
	require.Equal(t, index.Applied{Stored: 1}, apply(t, x, 1, below(4, chain(5))))
	apply(t, x, 1, chain(1))
	require.Equal(t, map[worker.Slot]int{0: 4, 1: 5}, match(t, x, asked(1, 2, 3, 4, 5)))
}

// A branch outlives the blocks it hangs on. They come back alone, for a holder who has the branch, and for one who has not.
func orphans(t *testing.T, x index.Index) {
	for slot := range worker.Slot(2) {
		apply(t, x, slot, chain(1, 2, 3))
		apply(t, x, slot, below(2, chain(4, 5)))
	}
	for slot := range worker.Slot(2) {
		require.Equal(t, index.Applied{Removed: 3}, apply(t, x, slot, removed(3, 2, 1)))
	}
	require.Equal(t, none(), match(t, x, asked(1, 2, 4, 5)))
	apply(t, x, 2, chain(1, 2))
	require.Equal(t, map[worker.Slot]int{2: 2}, match(t, x, asked(1, 2, 4, 5)))
	apply(t, x, 1, chain(1, 2))
	require.Equal(t, map[worker.Slot]int{1: 4, 2: 2}, match(t, x, asked(1, 2, 4, 5)))
}

func counted(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	require.Equal(t, index.Applied{Duplicate: 2}, apply(t, x, 0, chain(1, 2)))
	require.Equal(t, index.Applied{}, apply(t, x, 0, removed(1, 2)))
	require.Equal(t, map[worker.Slot]int{0: 2}, match(t, x, asked(1, 2)))
	require.Equal(t, index.Applied{Removed: 2}, apply(t, x, 0, removed(1, 2)))
	require.Equal(t, index.Applied{Unknown: 2}, apply(t, x, 0, removed(1, 2)))
	require.Equal(t, none(), match(t, x, asked(1, 2)))
	// Nothing is left of the old references.
	apply(t, x, 0, chain(1, 2))
	require.Equal(t, index.Applied{Removed: 2}, apply(t, x, 0, removed(1, 2)))
}

func set(t *testing.T, x index.Index) {
	for _, want := range []index.Applied{{Stored: 2}, {Duplicate: 2}} {
		done, err := x.Apply(0, chain(1, 2), index.Set)
		require.NoError(t, err)
		require.Equal(t, want, done)
	}
	require.Equal(t, index.Applied{Removed: 2}, apply(t, x, 0, removed(1, 2)))
	// Set ends what was counted before.
	apply(t, x, 0, chain(1))
	apply(t, x, 0, chain(1))
	_, err := x.Apply(0, chain(1), index.Set)
	require.NoError(t, err)
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 0, removed(1)))
}

// also names the block of chain(1) again.
func also(name block.EngineHash) *event.Event {
	ev := chain(1)
	ev.Blocks[0].Engine = name
	return ev
}

func aliases(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	require.Equal(t, index.Applied{Duplicate: 1}, apply(t, x, 0, also(11)))
	require.Equal(t, index.Applied{Duplicate: 1}, apply(t, x, 0, also(12)))
	require.Equal(t, 2, x.Blocks(0))
	require.Equal(t, index.Applied{Stored: 1}, apply(t, x, 0, below(12, chain(3))))
	require.Equal(t, map[worker.Slot]int{0: 2}, match(t, x, asked(1, 3)))
	require.Equal(t, index.Applied{}, apply(t, x, 0, removed(1)))
	require.Equal(t, index.Applied{}, apply(t, x, 0, removed(12)))
	require.Equal(t, map[worker.Slot]int{0: 2}, match(t, x, asked(1, 2)))
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 0, removed(11)))
	require.Equal(t, none(), match(t, x, asked(1, 2)))
}

func renamed(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	apply(t, x, 0, chain(1, 2))
	ev := chain(7)
	ev.Blocks[0].Engine = 2 // with both its references
	require.Equal(t, index.Applied{Stored: 1, Removed: 1}, apply(t, x, 0, ev))
	require.Equal(t, map[worker.Slot]int{0: 1}, match(t, x, asked(1, 2)))
	require.Equal(t, map[worker.Slot]int{0: 1}, match(t, x, asked(7)))
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 0, removed(2)))
	require.Equal(t, none(), match(t, x, asked(7)))
}

func movedInChain(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3))
	// The first block's name comes back below the last: the chain now begins with a hole.
	ev := chain(9)
	ev.Blocks[0].Engine = 1
	require.Equal(t, index.Applied{Stored: 1, Removed: 1}, apply(t, x, 0, below(3, ev)))
	require.Equal(t, none(), match(t, x, asked(1, 2, 3)))
	require.Equal(t, 3, x.Blocks(0))
	require.Empty(t, x.Dump(0, 0))
	ev = chain(1)
	ev.Blocks[0].Engine = 50
	apply(t, x, 0, ev)
	require.Equal(t, map[worker.Slot]int{0: 4}, match(t, x, asked(1, 2, 3, 9)))
}

func refuse(t *testing.T, x index.Index, slot worker.Slot, ev *event.Event, want error) {
	t.Helper()
	before := x.Stats()
	done, err := x.Apply(slot, ev, index.Count)
	require.ErrorIs(t, err, want)
	require.Equal(t, index.Applied{Refused: len(ev.Blocks)}, done)
	require.Equal(t, []int{before.Blocks, before.Pairs}, []int{x.Stats().Blocks, x.Stats().Pairs})
}

func unknownParent(t *testing.T, x index.Index) {
	refuse(t, x, 0, below(1, chain(2, 3)), index.ErrUnknownParent)
	require.Equal(t, none(), match(t, x, asked(2, 3)))
	apply(t, x, 0, chain(1))
	apply(t, x, 0, removed(1))
	refuse(t, x, 0, below(1, chain(2, 3)), index.ErrUnknownParent)
}

func foreignParent(t *testing.T, x index.Index) {
	apply(t, x, 1, chain(1))
	refuse(t, x, 0, below(1, chain(2)), index.ErrUnknownParent)
}

func emptyRun(t *testing.T, x index.Index) {
	require.Equal(t, index.Applied{}, apply(t, x, 0, chain()))
	refuse(t, x, 0, below(1, chain()), index.ErrUnknownParent)
	apply(t, x, 0, chain(1))
	require.Equal(t, index.Applied{}, apply(t, x, 0, below(1, chain())))
}

func blockTwice(t *testing.T, x index.Index) {
	refuse(t, x, 0, chain(1, 2, 1), index.ErrBadChain)
	apply(t, x, 0, chain(1))
	refuse(t, x, 0, below(1, chain(2, 3, 1)), index.ErrBadChain)
	require.Equal(t, map[worker.Slot]int{0: 1}, match(t, x, asked(1, 2)))
}

func unknownRemoval(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	require.Equal(t, index.Applied{Removed: 1, Unknown: 3}, apply(t, x, 0, removed(8, 2, 2, 9)))
	require.Equal(t, map[worker.Slot]int{0: 1}, match(t, x, asked(1, 2)))
}

func clearAndDrop(t *testing.T, x index.Index) {
	for slot := range worker.Slot(3) {
		apply(t, x, slot, stored(prompt(1, 80), 0, 80))
		apply(t, x, slot, chain(1, 2))
		apply(t, x, slot, also(11))
	}
	require.Equal(t, index.Applied{Removed: 82}, apply(t, x, 0, &event.Event{Kind: event.Cleared}))
	x.Drop(1)
	require.Equal(t, []int{0, 0, 82}, []int{x.Blocks(0), x.Blocks(1), x.Blocks(2)})
	require.Equal(t, map[worker.Slot]int{2: 80}, match(t, x, query(prompt(1, 80))))
	require.Equal(t, 82, x.Stats().Pairs)
	require.Equal(t, index.Applied{Unknown: 1}, apply(t, x, 1, removed(1)))
	require.Equal(t, index.Applied{Stored: 2}, apply(t, x, 1, chain(1, 2)))
}

func noKind(t *testing.T, x index.Index) {
	require.Equal(t, index.Applied{}, apply(t, x, 0, &event.Event{Blocks: chain(1).Blocks, Removed: []block.EngineHash{1}}))
	require.Zero(t, x.Blocks(0))
}

func longChain(t *testing.T, x index.Index) {
	const n = 20_000
	hashes := prompt(1, n)
	require.Equal(t, index.Applied{Stored: n}, apply(t, x, 0, stored(hashes, 0, n)))
	require.Equal(t, index.Applied{Stored: n - 1}, apply(t, x, 1, stored(hashes, 0, n-1)))
	require.Equal(t, map[worker.Slot]int{0: n, 1: n - 1}, match(t, x, query(hashes)))
	require.Len(t, contents(t, x.Dump(0, 0), 0), n)
	require.Equal(t, index.Applied{Removed: n}, apply(t, x, 0, removed(engineNames(hashes)...)))
	require.Equal(t, map[worker.Slot]int{1: n - 1}, match(t, x, query(hashes)))
}

func manyHolders(t *testing.T, x index.Index) {
	slots, n := 4096, 40
	if Race {
		slots = 512
	}
	hashes := prompt(1, n)
	want := make(map[worker.Slot]int)
	for slot := range worker.Slot(slots) {
		depth := 1 + int(slot)%n
		apply(t, x, slot, stored(hashes, 0, depth))
		want[slot] = depth
	}
	require.Equal(t, want, match(t, x, query(hashes)))
	for slot := range worker.Slot(slots) {
		if slot%7 == 0 {
			x.Drop(slot)
			delete(want, slot)
		}
	}
	require.Equal(t, want, match(t, x, query(hashes)))
}

func dumpShape(t *testing.T, x index.Index) {
	apply(t, x, 4, chain(1, 2, 3))
	apply(t, x, 4, below(3, chain(4, 5)))
	require.Equal(t, []event.Event{{ID: 100, Kind: event.Stored, Blocks: chain(1, 2, 3, 4, 5).Blocks}}, x.Dump(4, 100))
	apply(t, x, 4, below(2, chain(6, 7)))
	require.Len(t, x.Dump(4, 0), 2)
	apply(t, x, 4, also(11))
	require.Len(t, x.Dump(4, 0), 3)
	require.Len(t, contents(t, x.Dump(4, 50), 50), 8)
}

func dumpHidden(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3))
	apply(t, x, 0, below(1, chain(5)))
	apply(t, x, 0, removed(2))
	require.Equal(t, []event.Event{{Kind: event.Stored, Blocks: chain(1, 5).Blocks}}, x.Dump(0, 0))
	apply(t, x, 0, removed(1))
	require.Empty(t, x.Dump(0, 0))
	require.Equal(t, 2, x.Blocks(0))
}

func runs(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3))
	apply(t, x, 0, chain(1, 2))
	apply(t, x, 0, also(11))
	apply(t, x, 1, chain(1, 2, 3, 4))
	apply(t, x, 1, removed(2)) // 3 and 4 are hidden
	again := model.New()
	restore(t, x, again)
	require.Equal(t, []int{3, 1}, []int{again.Blocks(0), again.Blocks(1)})
	require.Equal(t, index.Applied{Removed: 1}, apply(t, again, 0, removed(1, 2, 3)))
	require.Equal(t, index.Applied{}, apply(t, again, 0, removed(1)))
	require.Equal(t, index.Applied{Removed: 2}, apply(t, again, 0, removed(2, 11)))
}

func nameOf(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2, 3))
	apply(t, x, 1, chain(1, 2, 3))
	apply(t, x, 1, removed(2))
	ev := chain(1, 2)
	ev.Blocks[0].Engine, ev.Blocks[1].Engine = 11, 12
	apply(t, x, 2, ev)
	for _, c := range []struct {
		slot  worker.Slot
		depth int
		want  block.EngineHash
	}{{0, 1, 1}, {0, 3, 3}, {0, 4, 0}, {0, 0, 0}, {0, -1, 0}, {1, 1, 1}, {1, 3, 0}, {2, 1, 11}, {2, 2, 12}, {2, 3, 0}, {9, 1, 0}} {
		name, ok := x.Name(c.slot, asked(1, 2, 3, 4), c.depth)
		require.Equal(t, c.want, name, "%+v", c)
		require.Equal(t, c.want != 0, ok, "%+v", c)
	}
	_, ok := x.Name(0, index.Query{}, 1)
	require.False(t, ok)
}

func runsEnd(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	apply(t, x, 1, chain(3))
	stop, n := errors.New("stop"), 0
	require.ErrorIs(t, x.Runs(func(*index.Run) error { n++; return stop }), stop)
	require.Equal(t, 1, n)
}

func closed(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	for range 2 {
		x.Close()
		done, err := x.Apply(0, chain(1), index.Count)
		require.ErrorIs(t, err, index.ErrClosed)
		require.Equal(t, index.Applied{Refused: 1}, done)
		require.Empty(t, x.Match(nil, asked(1)))
		require.Zero(t, x.Blocks(0))
		require.Empty(t, x.Dump(0, 0))
		require.Zero(t, x.Stats().Blocks+x.Stats().Pairs)
		_, ok := x.Name(0, asked(1), 1)
		require.False(t, ok)
		require.NoError(t, x.Runs(func(*index.Run) error { return errors.New("a run") }))
		x.Drop(0)
	}
}

// memoryBack stores and removes the same amount again and again: no byte more, and nearly none at the end.
func memoryBack(t *testing.T, x index.Index) {
	apply(t, x, 0, chain(1, 2))
	start := x.Stats().Bytes
	rng := rand.New(rand.NewPCG(1, 2))
	peak := 0
	for round := range 6 {
		for family := range 40 {
			hashes := prompt(1000*round+family, 50)
			for slot := range worker.Slot(3) {
				apply(t, x, slot, stored(hashes, 0, 50))
			}
		}
		if bytes := x.Stats().Bytes; round == 0 {
			peak = bytes
		} else {
			require.LessOrEqual(t, bytes, peak+peak/4, fmt.Sprintf("round %d", round))
		}
		for family := range 40 {
			names := engineNames(prompt(1000*round+family, 50))
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for slot := range worker.Slot(3) {
				apply(t, x, slot, removed(names...))
			}
		}
		require.Equal(t, 2, x.Stats().Pairs)
	}
	for _, name := range []block.EngineHash{1, 2} {
		apply(t, x, 0, removed(name))
	}
	require.LessOrEqual(t, x.Stats().Bytes, start+4096*3)
}
