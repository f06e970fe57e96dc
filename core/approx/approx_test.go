package approx_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/approx"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const second = 1_000_000_000

func fresh(ttl int64) *approx.Approx {
	return approx.New(index.New(index.Options{}), approx.Options{TTLNanos: ttl})
}

// depth gives how much of a prompt a slot is presumed to hold.
func depth(x *approx.Approx, slot worker.Slot, q index.Query, now int64) int {
	for _, row := range x.Match(nil, q, now) {
		if row.Slot == slot {
			return int(row.Depth)
		}
	}
	return 0
}

// unlike gives a prompt that shares nothing with another of another family.
func unlike(family, length int) index.Query {
	hashes := make([]block.Hash, length)
	for i := range hashes {
		hashes[i] = block.Hash(family)<<20 + block.Hash(i) + 1
	}
	return index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
}

func TestBlocksLiveForTheTTLRoundedUpToTheBucket(t *testing.T) {
	x, q := fresh(2*second), unlike(1, 10)
	start := int64(30 * ms)
	require.NoError(t, x.Route(3, q, start))
	require.Equal(t, 10, depth(x, 3, q, start))
	require.Zero(t, depth(x, 2, q, start))
	require.Equal(t, 10, depth(x, 3, q, 2*second+100*ms-1))
	require.Zero(t, depth(x, 3, q, 2*second+100*ms))
	require.Zero(t, x.Blocks(3, 3*second))
}

func TestUseRenewsWhatItCoversOnly(t *testing.T) {
	x, q := fresh(2*second), unlike(1, 100)
	half := index.Query{Hashes: q.Hashes[:50], Sequences: q.Sequences[:50]}
	require.NoError(t, x.Route(0, q, 0))
	require.NoError(t, x.Route(0, half, second))
	require.Equal(t, 100, depth(x, 0, q, 2*second-1))
	require.Equal(t, 50, depth(x, 0, q, 2*second))
	require.Equal(t, 50, depth(x, 0, q, 3*second-1))
	require.Zero(t, depth(x, 0, q, 3*second))
	approx.Check(t, x)
}

func TestATTLOfZeroEndsAtOnce(t *testing.T) {
	x, q := fresh(0), unlike(1, 10)
	require.NoError(t, x.Route(0, q, 5))
	require.Zero(t, depth(x, 0, q, 5))
	require.NoError(t, x.Acquire(0, "a", q, 0, 5))
	require.Zero(t, depth(x, 0, q, 5))
}

func TestATTLBeyondTheClockNeverEnds(t *testing.T) {
	x, q := fresh(math.MaxInt64), unlike(1, 10)
	require.NoError(t, x.Route(0, q, 5*second))
	require.Equal(t, 10, depth(x, 0, q, math.MaxInt64-1))
}

func TestADroppedSlotStartsEmpty(t *testing.T) {
	x, q := fresh(second), unlike(1, 10)
	require.NoError(t, x.SetCapacity(1, 100, 7))
	for slot := range worker.Slot(2) {
		require.NoError(t, x.Acquire(slot, "a", q, 5, 0))
		x.Drop(slot)
		require.Zero(t, depth(x, slot, q, 0))
		require.ErrorIs(t, x.Release("a"), approx.ErrLeaseNotFound)
	}
	require.NoError(t, x.Route(1, q, 0))
	require.Zero(t, depth(x, 1, q, second), "the dropped rank's capacity is forgotten")
	x.Drop(1)
	x.Drop(99)
	require.True(t, x.Empty())
}

// The rest of a rank's blocks after prompts of the capacity test came: which are evicted, and in what order.
func TestTheOldestReleaseGoesFirstAndItsSuffixBeforeItsPrefix(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.SetCapacity(0, 10, 1))
	a, b, c := unlike(1, 4), unlike(2, 4), unlike(3, 4)
	require.NoError(t, x.Acquire(0, "a", a, 0, 0))
	require.NoError(t, x.Acquire(0, "b", b, 0, 0))
	require.NoError(t, x.Release("b"))
	require.NoError(t, x.Release("a"))
	require.NoError(t, x.Acquire(0, "c", c, 0, 0)) // 12 blocks: two go
	require.Equal(t, []int{4, 2, 4}, []int{depth(x, 0, a, 0), depth(x, 0, b, 0), depth(x, 0, c, 0)})
	require.NoError(t, x.Acquire(0, "d", b, 3, 0)) // reuses two, needs two and three private ones
	require.Equal(t, []int{0, 4, 4}, []int{depth(x, 0, a, 0), depth(x, 0, b, 0), depth(x, 0, c, 0)})
	require.Equal(t, 8, x.Blocks(0, 0))
	approx.Check(t, x)
}

func TestASharedBlockCountsFromItsLastRelease(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.SetCapacity(0, 6, 1))
	long := unlike(1, 4)
	short := index.Query{Hashes: long.Hashes[:2], Sequences: long.Sequences[:2]}
	require.NoError(t, x.Acquire(0, "long", long, 0, 0))
	require.NoError(t, x.Acquire(0, "short", short, 0, 0))
	require.NoError(t, x.Release("long"))
	require.NoError(t, x.Route(0, unlike(2, 2), 0))
	require.NoError(t, x.Release("short"))
	require.NoError(t, x.Acquire(0, "next", unlike(3, 4), 0, 0))
	require.Equal(t, 2, depth(x, 0, long, 0), "released before the two of the second prompt, but for what was shared")
	require.Zero(t, depth(x, 0, unlike(2, 2), 0))
}

func TestActiveBlocksAreNeverEvicted(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.SetCapacity(0, 5, 1))
	a, b := unlike(1, 8), unlike(2, 8)
	require.NoError(t, x.Acquire(0, "a", a, 0, 0))
	require.NoError(t, x.Acquire(0, "b", b, 0, 0))
	require.Equal(t, 16, x.Blocks(0, 0), "over the capacity")
	require.NoError(t, x.Release("a"))
	require.Equal(t, 8, x.Blocks(0, 0), "a release settles it")
	require.NoError(t, x.Release("b"))
	require.Equal(t, 5, x.Blocks(0, 0))
	require.Equal(t, 5, depth(x, 0, b, 0))
	require.Equal(t, uint64(11), x.Stats(0).Evicted)
}

func TestMaterialisedBlocksContinueThePrompt(t *testing.T) {
	x, q := fresh(second), unlike(1, 12)
	part := func(from, to int) index.Query {
		return index.Query{Hashes: q.Hashes[from:to], Sequences: q.Sequences[from:to]}
	}
	require.NoError(t, x.SetCapacity(0, 100, 1))
	require.NoError(t, x.Acquire(0, "a", part(0, 4), 0, 0))
	require.NoError(t, x.Materialise("a", part(4, 6)))
	require.NoError(t, x.Materialise("a", part(6, 9)))
	require.Equal(t, 9, depth(x, 0, q, 0))
	require.NoError(t, x.Acquire(0, "b", part(0, 4), 0, 0))
	require.NoError(t, x.Materialise("b", part(4, 12))) // five of eight are copies of a's
	require.Equal(t, 12, x.Blocks(0, 0))
	require.NoError(t, x.SetCapacity(0, 17, 1))
	require.Equal(t, 12, x.Blocks(0, 0))
	require.NoError(t, x.Route(0, unlike(2, 1), 0))
	require.Zero(t, depth(x, 0, unlike(2, 1), 0), "the copies take room")
	require.NoError(t, x.Release("b"))
	require.NoError(t, x.Release("a"))
	require.NoError(t, x.Route(0, unlike(2, 5), 0))
	require.Equal(t, 17, x.Blocks(0, 0), "until they are released")
	approx.Check(t, x)
}

func TestANewIncarnationClearsTheRankAndFencesLateCalls(t *testing.T) {
	x, q := fresh(second), unlike(1, 4)
	require.NoError(t, x.SetCapacity(0, 100, 1))
	require.NoError(t, x.Acquire(0, "a", q, 0, 0))
	require.NoError(t, x.SetCapacity(0, 200, 1))
	require.Equal(t, 4, depth(x, 0, q, 0), "the same engine, with more room")
	require.NoError(t, x.SetCapacity(0, 200, 2))
	require.Zero(t, depth(x, 0, q, 0))
	require.ErrorIs(t, x.Release("a"), approx.ErrLeaseNotFound)
	require.ErrorIs(t, x.Materialise("a", q), approx.ErrLeaseNotFound)
	require.Zero(t, x.Blocks(0, 0))
}

func TestARankWithoutCapacityFollowsTheTTL(t *testing.T) {
	x, q := fresh(second), unlike(1, 4)
	require.NoError(t, x.SetCapacity(0, 100, 1))
	require.NoError(t, x.Acquire(0, "a", q, 0, 0))
	require.Equal(t, 4, depth(x, 0, q, 100*second))
	require.NoError(t, x.SetCapacity(0, 0, 1))
	require.Zero(t, depth(x, 0, q, 0), "the policy changed")
	require.NoError(t, x.Acquire(0, "a", q, 0, 0))
	require.Equal(t, 4, depth(x, 0, q, 0))
	require.Zero(t, depth(x, 0, q, second))
}

func TestBadArgumentsChangeNothing(t *testing.T) {
	x, q := fresh(second), unlike(1, 4)
	require.NoError(t, x.SetCapacity(0, 100, 1))
	torn := index.Query{Hashes: q.Hashes, Sequences: q.Sequences[:3]}
	require.ErrorIs(t, x.Route(0, torn, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.Acquire(0, "a", torn, 0, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.Materialise("a", torn), approx.ErrInvalid)
	require.ErrorIs(t, x.Acquire(0, "a", q, -1, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.Acquire(0, "a", q, math.MaxInt, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.Route(math.MaxUint32, q, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.SetCapacity(approx.MaxSlots, 1, 0), approx.ErrInvalid)
	require.ErrorIs(t, x.SetCapacity(0, math.MaxUint64, 0), approx.ErrInvalid)
	require.Error(t, x.Route(approx.MaxSlots-1, q, 0), "the index knows fewer")
	loop := index.Query{Hashes: append(q.Hashes, 9), Sequences: append(q.Sequences[:4:4], q.Sequences[1])}
	for slot := range worker.Slot(2) {
		require.ErrorIs(t, x.Route(slot, loop, 0), index.ErrBadChain)
	}
	require.ErrorIs(t, x.Acquire(0, "a", loop, 0, 0), index.ErrBadChain)
	require.Zero(t, x.Stats(0).Index.Pairs)
	require.NoError(t, x.Acquire(0, "a", q, 0, 0))
	require.ErrorIs(t, x.Acquire(0, "a", q, 0, 0), approx.ErrDuplicateLease)
	require.ErrorIs(t, x.Acquire(1, "a", q, 0, 0), approx.ErrDuplicateLease)
	approx.Check(t, x)
}

// TestARequestThatGeneratesMoreThanThereIsRoomForHoldsNothing: the others go first, then its own lease.
func TestARequestThatGeneratesMoreThanThereIsRoomForHoldsNothing(t *testing.T) {
	const most = 512 << 10
	x := approx.New(index.New(index.Options{}), approx.Options{MaxBytes: most})
	require.NoError(t, x.SetCapacity(0, 1<<30, 1))
	require.NoError(t, x.Acquire(0, "other", unlike(1, 10), 0, 0))
	require.NoError(t, x.Acquire(0, "a", index.Query{}, 0, 0))
	all, i := unlike(2, 100_000), 0
	for step := 40; ; i += step {
		err := x.Materialise("a", index.Query{Hashes: all.Hashes[i : i+step], Sequences: all.Sequences[i : i+step]})
		require.LessOrEqual(t, x.Stats(0).Bytes, most)
		if err != nil {
			require.ErrorIs(t, err, approx.ErrLeaseNotFound)
			break
		}
		require.Equal(t, i+step, depth(x, 0, all, 0))
	}
	require.Positive(t, i)
	require.Zero(t, depth(x, 0, unlike(1, 10), 0))
	approx.Check(t, x)
}

// bounded is an index with a byte bound that the test decides about.
type bounded struct {
	index.Index
	evicted uint64
}

func (b *bounded) Evicted(worker.Slot) uint64 { return b.evicted }

func (b *bounded) evict(seqs ...block.SequenceHash) {
	ev := event.Event{Kind: event.Removed}
	for _, h := range seqs {
		ev.Removed = append(ev.Removed, block.EngineHash(h))
	}
	_, _ = b.Apply(0, &ev, index.Set)
	b.evicted += uint64(len(seqs))
}

func TestWhatTheIndexEvictedIsStoredAgainWhenUsed(t *testing.T) {
	for _, capacity := range []uint64{0, 100} {
		inner := &bounded{Index: index.New(index.Options{})}
		x := approx.New(inner, approx.Options{TTLNanos: second})
		require.NoError(t, x.SetCapacity(0, capacity, 0))
		old, q := unlike(2, 10), unlike(1, 12)
		part := index.Query{Hashes: q.Hashes[:10], Sequences: q.Sequences[:10]}
		require.NoError(t, x.Route(0, old, 0))
		require.NoError(t, x.Route(0, part, 0))
		inner.evict(q.Sequences[7:10]...)
		require.Equal(t, 7, depth(x, 0, q, 0))
		require.NoError(t, x.Route(0, part, 0))
		require.Equal(t, 10, depth(x, 0, q, 0))
		require.Equal(t, 7, depth(x, 0, old, 0), "for what the index took, as many of the oldest go")
		inner.evict(q.Sequences[9])
		require.NoError(t, x.Route(0, q, 0))
		require.Equal(t, 12, depth(x, 0, q, 0))
		require.Equal(t, uint64(4), x.Stats(0).Evicted)
		approx.Check(t, x)
	}
}

// dropless counts the times that all of an index is looked at to drop a slot.
type dropless struct {
	index.Index
	drops int
}

func (d *dropless) Drop(slot worker.Slot) {
	d.drops++
	d.Index.Drop(slot)
}

func TestDroppingASmallRankLooksAtItsBlocksOnly(t *testing.T) {
	for _, capacity := range []uint64{0, 1000} {
		inner := &dropless{Index: index.New(index.Options{})}
		x := approx.New(inner, approx.Options{TTLNanos: second})
		for i := range 1000 {
			require.NoError(t, x.Route(1, unlike(i, 1), 0))
		}
		require.NoError(t, x.SetCapacity(0, capacity, 1))
		inner.drops = 0
		require.NoError(t, x.Acquire(0, "a", unlike(1, 100), 0, 0))
		x.Drop(0)
		require.Zero(t, inner.Blocks(0))
		require.Zero(t, inner.drops)
		approx.Check(t, x)
		x.Drop(1)
		require.Equal(t, 1, inner.drops)
		require.True(t, x.Empty())
	}
}

// TestAClearedRankHasLostNothing: what the index evicted before is not taken from what came since.
func TestAClearedRankHasLostNothing(t *testing.T) {
	inner := &bounded{Index: index.New(index.Options{})}
	x := approx.New(inner, approx.Options{TTLNanos: second})
	require.NoError(t, x.SetCapacity(0, 100, 1))
	q, old := unlike(1, 10), unlike(2, 10)
	for incarnation := range uint64(3) {
		require.NoError(t, x.SetCapacity(0, 100, incarnation+1))
		require.NoError(t, x.Route(0, old, 0))
		require.NoError(t, x.Route(0, q, 0))
		inner.evict(q.Sequences[7:10]...)
		require.NoError(t, x.Route(0, q, 0))
		require.Equal(t, []int{10, 7}, []int{depth(x, 0, q, 0), depth(x, 0, old, 0)})
		inner.evicted = 0 // as Drop does, which is next
	}
}

// TestMemoryOfWhatIsPresumedIsBounded: whatever ranks are told to hold, and however short it is.
func TestMemoryOfWhatIsPresumedIsBounded(t *testing.T) {
	const most = 1 << 20
	for _, length := range []int{0, 1, 20, 500, 100_000} {
		for _, capacity := range []uint64{0, 1 << 40} {
			x := approx.New(index.New(index.Options{}), approx.Options{TTLNanos: second, MaxBytes: most})
			require.NoError(t, x.SetCapacity(1, capacity, 1))
			last, n := index.Query{}, 1+100_000/(length+15)
			for i := range n {
				last = unlike(i, length)
				require.NoError(t, x.Acquire(1, fmt.Sprint("request ", i), last, 1, 0))
				if i%97 == 0 {
					_ = x.Materialise(fmt.Sprint("request ", i), unlike(1_000_000+i, 30))
					require.LessOrEqual(t, x.Stats(0).Bytes, most)
				}
			}
			st := x.Stats(0)
			require.LessOrEqual(t, st.Bytes, most)
			require.LessOrEqual(t, x.Blocks(1, 0), n*(length+1))
			approx.Check(t, x)
			if length > 0 {
				require.Greater(t, st.Bytes, most/3, "it is made use of")
				require.Positive(t, st.Evicted)
				require.Equal(t, st.Evicted, x.Evicted(1))
				require.Positive(t, depth(x, 1, last, 0), "the latest is known")
			}
			if length == 500 {
				require.Equal(t, length, depth(x, 1, last, 0))
				require.Zero(t, depth(x, 1, unlike(0, length), 0), "the oldest went")
			}
			for i := range n {
				_ = x.Release(fmt.Sprint("request ", i))
			}
			approx.Check(t, x)
			x.Drop(1)
			require.Zero(t, x.Evicted(1))
			require.True(t, x.Empty())
		}
	}
}

// TestLeasesGoBeforeTheBoundIsBroken: the oldest request holds nothing any more; ending it is no harm.
func TestLeasesGoBeforeTheBoundIsBroken(t *testing.T) {
	x := approx.New(index.New(index.Options{}), approx.Options{MaxBytes: 1 << 20})
	require.NoError(t, x.SetCapacity(0, 1<<30, 1))
	for i := range 5000 {
		require.NoError(t, x.Acquire(0, fmt.Sprint(i), unlike(i, 64), 0, 0))
	}
	require.ErrorIs(t, x.Release("0"), approx.ErrLeaseNotFound)
	require.Zero(t, depth(x, 0, unlike(0, 64), 0))
	require.Equal(t, 64, depth(x, 0, unlike(4999, 64), 0))
	require.NoError(t, x.Release("4999"))
	require.ErrorIs(t, x.Acquire(0, "4998", unlike(1, 1), 0, 0), approx.ErrDuplicateLease)
	approx.Check(t, x)
	require.NoError(t, x.Acquire(0, string(make([]byte, 1<<20)), unlike(1, 1), 0, 0), "an id that alone is too long is not held")
	require.LessOrEqual(t, x.Stats(0).Bytes, 1<<20)
	approx.Check(t, x)
}

func TestAfterCloseNothingIsHeld(t *testing.T) {
	x, q := fresh(second), unlike(1, 4)
	require.NoError(t, x.Route(0, q, 0))
	x.Close()
	require.Empty(t, x.Match(nil, q, 0))
	require.ErrorIs(t, x.Route(0, unlike(2, 4), 0), index.ErrClosed)
	x.Expire(second)
	require.True(t, x.Empty())
}

// TestSequenceHashesThatAreNoneLeaveNothingBehind: a caller's wrong hashes, or ones that collide, may hide or misplace
// blocks, but they end as all others.
func TestSequenceHashesThatAreNoneLeaveNothingBehind(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.SetCapacity(1, 20, 1))
	rng := rand.New(rand.NewPCG(3, 3))
	longest := 0
	for i := range 20_000 {
		q := index.Query{Hashes: make([]block.Hash, rng.IntN(6)), Sequences: make([]block.SequenceHash, 0, 6)}
		for j := range q.Hashes {
			q.Hashes[j] = block.Hash(rng.IntN(3))
			q.Sequences = append(q.Sequences, block.SequenceHash(rng.IntN(8)))
		}
		slot, id, now := worker.Slot(rng.IntN(2)), string(rune('a'+rng.IntN(4))), int64(i)*ms
		switch rng.IntN(4) {
		case 0:
			_ = x.Release(id)
		case 1:
			_ = x.Materialise(id, q)
		case 2:
			_ = x.Acquire(slot, id, q, 0, now)
		case 3:
			if x.Route(slot, q, now) == nil {
				longest = max(longest, len(q.Hashes))
			}
		}
		x.Match(nil, q, now)
	}
	require.Equal(t, 5, longest)
	x.Drop(1)
	require.Zero(t, x.Stats(100*second).Index.Pairs)
	require.True(t, x.Empty())
}

func TestTheEmptyPromptHoldsNothing(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.SetCapacity(0, 1, 1))
	require.NoError(t, x.Acquire(0, "a", index.Query{}, 3, 0))
	require.NoError(t, x.Materialise("a", unlike(1, 2)))
	require.Equal(t, 2, depth(x, 0, unlike(1, 2), 0))
	require.NoError(t, x.Release("a"))
	require.NoError(t, x.Route(1, index.Query{}, 0))
	require.Empty(t, x.Match(nil, index.Query{}, 0))
	approx.Check(t, x)
}

func TestADumpNamesBlocksByTheirSequenceHashes(t *testing.T) {
	x, q := fresh(second), unlike(1, 3)
	require.NoError(t, x.Route(0, q, 0))
	dump := x.Dump(0, 5, 0)
	require.Len(t, dump, 1)
	require.Equal(t, uint64(5), dump[0].ID)
	for i, b := range dump[0].Blocks {
		require.Equal(t, block.EngineHash(q.Sequences[i]), b.Engine)
		require.Equal(t, q.Hashes[i], b.Hash)
	}
	require.Empty(t, x.Dump(0, 0, second))
}

// TestManyBlocksDueAtOnceAreHiddenBeforeTheyAreGone: the first match after a great many deadlines ends one section of them,
// and yet shows none.
func TestManyBlocksDueAtOnceAreHiddenBeforeTheyAreGone(t *testing.T) {
	inner := index.New(index.Options{})
	x := approx.New(inner, approx.Options{TTLNanos: second})
	x.SetSection(100)
	for i := range 100 {
		require.NoError(t, x.Route(worker.Slot(i%3), unlike(i, 50), 0))
	}
	keep := unlike(99, 10)
	require.NoError(t, x.Route(0, keep, second/2))
	before := inner.Stats().Pairs
	for i := range 10 {
		require.Empty(t, x.Match(nil, unlike(i*9+3, 50), second))
		require.Equal(t, before-100*(i+1), inner.Stats().Pairs, "one section a match")
	}
	dst := x.Match([]index.Overlap{{Slot: 7, Depth: 7}}, index.Query{Hashes: unlike(99, 50).Hashes}, second)
	require.Equal(t, []index.Overlap{{Slot: 7, Depth: 7}, {Slot: 0, Depth: 10}}, dst)
	require.Equal(t, 10, x.Stats(second).Index.Pairs)
	require.Equal(t, uint64(4990), x.Stats(second).Expired, "all but the ten that were used again")
}

func TestRoutingPaysForWhatIsDue(t *testing.T) {
	inner := index.New(index.Options{})
	x := approx.New(inner, approx.Options{TTLNanos: second})
	x.SetSection(1)
	for i := range 200 {
		require.NoError(t, x.Route(0, unlike(i, 50), 0))
	}
	for i := range 100 {
		require.NoError(t, x.Route(0, unlike(1000+i, 100), second))
	}
	require.Equal(t, 100*100, inner.Stats().Pairs, "what was due is gone when half as much came")
}

func TestNothingIsLeftWhenAllExpired(t *testing.T) {
	x := fresh(second)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 100_000 {
		q := unlike(rng.IntN(50_000), 1+rng.IntN(2))
		require.NoError(t, x.Route(worker.Slot(i%16), q, int64(i)*ms/10))
	}
	now := int64(100 * second)
	st := x.Stats(now)
	require.Zero(t, st.Index.Blocks)
	require.Zero(t, st.Index.Pairs)
	require.Zero(t, st.Runs)
	require.True(t, x.Empty())
	approx.Check(t, x)
	require.Less(t, st.Bytes, 300_000)
}

func TestTheBufferOfALongPromptIsNotKept(t *testing.T) {
	x := fresh(second)
	require.NoError(t, x.Route(0, unlike(1, 20_000), 0))
	require.Less(t, x.Stats(2*second).Bytes, 20_000*8)
}

func TestAUseAllocatesNothing(t *testing.T) {
	x, q := fresh(second), unlike(1, 512)
	now := int64(0)
	require.NoError(t, x.SetCapacity(1, 1000, 1))
	for slot := range worker.Slot(2) {
		for i := range 5 {
			require.NoError(t, x.Route(slot, index.Query{Hashes: q.Hashes[:512-i*100], Sequences: q.Sequences[:512-i*100]}, now))
		}
		require.Zero(t, testing.AllocsPerRun(50, func() {
			now += ms
			_ = x.Route(slot, q, now)
		}), "slot %d", slot)
	}
	dst := make([]index.Overlap, 0, 8)
	require.Zero(t, testing.AllocsPerRun(50, func() { dst = x.Match(dst[:0], q, now) }))
	require.Len(t, dst, 2)
	approx.Check(t, x)
}

// TestAPromptThatOthersLeftIsOneRunAgain: what comes and goes leaves no cuts in what stays.
func TestAPromptThatOthersLeftIsOneRunAgain(t *testing.T) {
	x, q := fresh(second), unlike(1, 300)
	for i := range 100 {
		side := unlike(2+i, 300)
		side.Hashes = append(append([]block.Hash(nil), q.Hashes[:3*i+1]...), side.Hashes[:2]...)
		side.Sequences = block.Sequences(nil, side.Hashes)
		require.NoError(t, x.Route(0, side, 0))
	}
	require.NoError(t, x.Route(0, q, second/2))
	require.Greater(t, x.Stats(second/2).Runs, 150)
	require.NoError(t, x.Route(0, q, second))
	require.LessOrEqual(t, x.Stats(second).Runs, 1+300/8)
	approx.Check(t, x)
}

// TestConcurrentUse: whatever the interleaving, a match never exceeds the prompts routed, and in the end nothing is left.
func TestConcurrentUse(t *testing.T) {
	x := fresh(20 * ms)
	x.SetSection(16)
	var clock atomic.Int64
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	require.NoError(t, x.SetCapacity(3, 200, 1))
	for g := range 3 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 1500 {
				now := clock.Add(ms / 10)
				family := rng.IntN(20)
				_ = x.Route(worker.Slot(rng.IntN(4)), unlike(family, 10+family), now)
				id := string(rune('a' + g))
				_ = x.Acquire(3, id, unlike(family, 10+family), 2, now)
				if i%3 == 0 {
					_ = x.Release(id)
				}
				if i%500 == 7 {
					x.Drop(worker.Slot(rng.IntN(3)))
				}
			}
			_ = x.Release(string(rune('a' + g)))
		})
	}
	for g := range 2 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for !done.Load() {
				family := rng.IntN(20)
				for _, row := range x.Match(nil, unlike(family, 60), clock.Load()) {
					if int(row.Depth) > 10+family {
						t.Errorf("depth %d of %d", row.Depth, 10+family)
					}
				}
				x.Stats(clock.Load())
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	approx.Check(t, x)
	x.Drop(3)
	x.Expire(clock.Load() + second)
	require.True(t, x.Empty())
}
