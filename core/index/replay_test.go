package index_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/indextest"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A logged operation is an event, or the drop of the slot.
type logged struct {
	slot worker.Slot
	ev   *event.Event
}

// Writers change the index, each its own slots, and log what they do; readers query and check what holds under any
// order. At the end the logs are replayed into the model, one after the other: slots do not depend on each other.
//
// Reported as a race between queries and events: https://github.com/vllm-project/aibrix/issues/1131
// https://github.com/vllm-project/aibrix/pull/550
func TestConcurrentChangesEqualTheReplayOfTheirLog(t *testing.T) {
	for _, factory := range []indextest.Factory{sharded, short} {
		x := factory()
		want, prompts := concurrently(t, x, true)
		for slot := range still + 1 {
			require.Equal(t, want.Blocks(slot), x.Blocks(slot))
			require.Equal(t, namesOf(want.Dump(slot, 0)), namesOf(x.Dump(slot, 0)))
		}
		require.Equal(t, want.Stats().Blocks, x.Stats().Blocks)
		require.Equal(t, want.Stats().Pairs, x.Stats().Pairs)
		for _, q := range prompts {
			require.ElementsMatch(t, want.Match(nil, q), x.Match(nil, q))
		}
	}
}

// Under a bound the same, but for what was evicted: nothing is held that the replay does not hold.
func TestConcurrentChangesUnderABound(t *testing.T) {
	x, bound := index.NewBounded(2, 16, 200_000)
	want, prompts := concurrently(t, x, false)
	require.LessOrEqual(t, int64(x.Stats().Bytes), bound)
	evicted := uint64(0)
	for slot := range still + 1 {
		evicted += x.Evicted(slot)
		require.Subset(t, namesOf(want.Dump(slot, 0)), namesOf(x.Dump(slot, 0)))
	}
	require.NotZero(t, evicted)
	for _, q := range prompts {
		depths := make(map[worker.Slot]uint32)
		for _, r := range want.Match(nil, q) {
			depths[r.Slot] = r.Depth
		}
		for _, r := range x.Match(nil, q) {
			require.LessOrEqual(t, r.Depth, depths[r.Slot])
		}
	}
}

const (
	writers, slotsEach = 4, 17
	still              = worker.Slot(writers * slotsEach) // holds all of prompt 0, and never changes
)

// concurrently changes and reads an index, and gives the replay of the changes. whole tells that nothing may be evicted.
func concurrently(t *testing.T, x index.Index, whole bool) (index.Index, []index.Query) {
	const steps, readers = 600, 3
	prompts := make([]index.Query, 12)
	for i := range prompts {
		prompts[i] = forked(i, 90)
	}
	_, err := x.Apply(still, storeOf(prompts[0], 0, 90), index.Count)
	require.NoError(t, err)

	var writing, reading sync.WaitGroup
	var done atomic.Bool
	logs := make([][]logged, writers)
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 9))
			for range steps {
				op := randomChange(rng, worker.Slot(w*slotsEach+rng.IntN(slotsEach)), prompts)
				perform(x, op)
				logs[w] = append(logs[w], op)
			}
		})
	}
	faults := make(chan string, readers)
	for r := range readers {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 10))
			var rows []index.Overlap
			for !done.Load() {
				i := rng.IntN(len(prompts))
				q := prompts[i]
				if rng.IntN(2) == 0 {
					q.Sequences = nil
				}
				rows = x.Match(rows[:0], q)
				if fault := faultOf(rows, whole && i == 0); fault != "" {
					faults <- fault
					return
				}
				slot := worker.Slot(rng.IntN(int(still)))
				x.Dump(slot, 0)
				x.Name(slot, q, 1+rng.IntN(len(q.Hashes)))
				if rng.IntN(20) == 0 {
					_ = x.Runs(func(*index.Run) error { return nil }) // it has no error but the function's
					x.Stats()
				}
			}
		})
	}
	writing.Wait()
	done.Store(true)
	reading.Wait()
	require.Empty(t, faults)
	require.NoError(t, index.Check(x))

	want := model.New()
	perform(want, logged{still, storeOf(prompts[0], 0, 90)})
	for _, log := range logs {
		for _, op := range log {
			perform(want, op)
		}
	}
	return want, prompts
}

func perform(x index.Index, op logged) {
	if op.ev == nil {
		x.Drop(op.slot)
		return
	}
	_, _ = x.Apply(op.slot, op.ev, index.Count) // refused events are part of the log: the model refuses them too
}

// faultOf checks an answer that was given while others write.
func faultOf(rows []index.Overlap, whole bool) string {
	slices.SortFunc(rows, func(a, b index.Overlap) int { return int(a.Slot) - int(b.Slot) })
	for i, r := range rows {
		switch {
		case r.Depth == 0 || r.Depth > 90 || r.Slot > still:
			return "a row that no slot can have"
		case i > 0 && rows[i-1].Slot == r.Slot:
			return "two rows of a slot"
		}
	}
	if last := len(rows) - 1; whole && (last < 0 || rows[last] != index.Overlap{Slot: still, Depth: 90}) {
		return "the slot that never changes is not reported whole"
	}
	return ""
}

func randomChange(rng *rand.Rand, slot worker.Slot, prompts []index.Query) logged {
	q := prompts[rng.IntN(len(prompts))]
	from := rng.IntN(len(q.Hashes))
	to := from + 1 + rng.IntN(len(q.Hashes)-from)
	switch n := rng.IntN(100); {
	case n < 1:
		return logged{slot, nil}
	case n < 2:
		return logged{slot, &event.Event{Kind: event.Cleared}}
	case n < 45:
		ev := &event.Event{Kind: event.Removed}
		for _, seq := range q.Sequences[from:to] {
			ev.Removed = append(ev.Removed, block.EngineHash(seq+1))
		}
		return logged{slot, ev}
	case n < 70:
		return logged{slot, storeOf(q, from, to)}
	}
	return logged{slot, storeOf(q, 0, to)}
}

// forked gives the i-th prompt of n blocks: a third of it is common to all, another third to every other.
func forked(i, n int) index.Query {
	rng := rand.New(rand.NewPCG(uint64(i), 11))
	var q index.Query
	for j := range n {
		switch h := block.Hash(rng.Uint64()); {
		case j < n/3:
			q.Hashes = append(q.Hashes, block.Hash(j+1))
		case j < 2*n/3:
			q.Hashes = append(q.Hashes, block.Hash(j*2+i%2+1000))
		default:
			q.Hashes = append(q.Hashes, h)
		}
	}
	q.Sequences = block.Sequences(nil, q.Hashes)
	return q
}

// storeOf gives the event that stores blocks [from,to) of a prompt.
func storeOf(q index.Query, from, to int) *event.Event {
	ev := &event.Event{Kind: event.Stored}
	if from > 0 {
		ev.HasParent, ev.Parent = true, block.EngineHash(q.Sequences[from-1]+1)
	}
	for i := from; i < to; i++ {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(q.Sequences[i] + 1), Hash: q.Hashes[i]})
	}
	return ev
}

func namesOf(dump []event.Event) []event.Block {
	var names []event.Block
	for _, ev := range dump {
		names = append(names, ev.Blocks...)
	}
	slices.SortFunc(names, func(a, b event.Block) int {
		if a.Engine < b.Engine {
			return -1
		}
		return 1
	})
	return names
}
