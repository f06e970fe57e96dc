package load_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const second = int64(1_000_000_000)

func seqs(hashes ...uint64) []block.Hash {
	out := make([]block.Hash, len(hashes))
	for i, h := range hashes {
		out[i] = block.Hash(h)
	}
	return out
}

// chain gives n hashes of a family: families differ from their first block on.
func chain(family uint64, n int) []block.Hash {
	out := make([]block.Hash, n)
	for i := range out {
		out[i] = block.Hash(family<<32 | uint64(i+1))
	}
	return out
}

func matched(l *load.Ledger, slots int, query []block.Hash) []uint32 {
	dst := make([]uint32, slots)
	l.Matched(dst, query)
	return dst
}

// potential gives the blocks a slot would hold if it took the prompt.
func potential(l *load.Ledger, slot worker.Slot, prompt []block.Hash) int64 {
	return l.Load(slot).ActiveBlocks + int64(len(prompt)) - int64(matched(l, int(slot)+1, prompt)[slot])
}

// The worked example of Dynamo's active sequences, seen on its slot tracker (4-token blocks).
func TestSharedPrefixCountsOnce(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "r1", Blocks: seqs(1, 2, 3), PrefillTokens: 12}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "r2", Blocks: seqs(1, 2, 9), PrefillTokens: 4}, 0))
	require.Equal(t, load.Load{ActivePrefillTokens: 16, ActiveBlocks: 4, ActiveRequests: 2}, l.Load(0))
	require.Equal(t, load.Load{}, l.Load(1))
	require.Equal(t, []uint32{2, 0}, matched(l, 2, seqs(1, 2, 5)))
	require.EqualValues(t, 5, potential(l, 0, seqs(1, 2, 5)))
	require.EqualValues(t, 3, potential(l, 1, seqs(1, 2, 5)))
	require.Equal(t, []uint32{0, 0}, matched(l, 2, seqs(7, 2, 3)), "membership is by prefix, not by set")
	require.EqualValues(t, 7, potential(l, 0, seqs(7, 2, 3)))

	require.NoError(t, l.PrefillComplete("r1", 0))
	require.Equal(t, load.Load{ActivePrefillTokens: 4, ActiveBlocks: 4, ActiveRequests: 2}, l.Load(0))
	require.NoError(t, l.Free("r1", 0))
	require.Equal(t, load.Load{ActivePrefillTokens: 4, ActiveBlocks: 3, ActiveRequests: 1}, l.Load(0))
	require.Equal(t, []uint32{2, 0}, matched(l, 2, seqs(1, 2, 3)))
}

// Seen on Dynamo's selection service: 4 blocks and one output block at decay 0.5 make 2.5, reported as 3.
func TestOutputBlocksDecay(t *testing.T) {
	half, whole, bad := 0.5, 1.0, math.NaN()
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Blocks: chain(1, 4)}, 0))
	require.NoError(t, l.AddOutputBlocks("a", 1, &half, 0))
	require.EqualValues(t, 3, l.Load(0).ActiveBlocks)
	require.NoError(t, l.AddOutputBlocks("a", 1, nil, 0))
	require.EqualValues(t, 4, l.Load(0).ActiveBlocks, "a block without a fraction weighs 1: 3.5")
	require.NoError(t, l.AddOutputBlocks("a", 0, &whole, 0))
	require.EqualValues(t, 4, l.Load(0).ActiveBlocks, "no blocks, no change")
	require.NoError(t, l.AddOutputBlocks("a", 1, &whole, 0))
	require.EqualValues(t, 7, l.Load(0).ActiveBlocks)

	require.ErrorIs(t, l.AddOutputBlocks("a", 1, &bad, 0), load.ErrInvalid)
	require.ErrorIs(t, l.AddOutputBlocks("a", -1, nil, 0), load.ErrInvalid)
	require.ErrorIs(t, l.AddOutputBlocks("a", math.MaxInt, nil, 0), load.ErrInvalid)
	require.ErrorIs(t, l.AddOutputBlocks("b", 1, nil, 0), load.ErrRequestNotFound)
	require.EqualValues(t, 7, l.Load(0).ActiveBlocks)
	require.NoError(t, l.Free("a", 0))
	require.Equal(t, load.Load{}, l.Load(0))
}

func TestDecaySparesSharedBlocks(t *testing.T) {
	tenth := 0.1
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Blocks: seqs(1, 2, 3, 4)}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "b", Blocks: seqs(1, 2)}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "c", Slot: 1, Blocks: seqs(1, 2, 3, 4)}, 0))
	require.NoError(t, l.AddOutputBlocks("a", 8, &tenth, 0))
	require.EqualValues(t, 3, l.Load(0).ActiveBlocks, "2 shared, and 10 at 0.1")
	require.EqualValues(t, 4, l.Load(1).ActiveBlocks, "another slot's blocks are its own")
}

func TestPrivateBlocksAreNotShared(t *testing.T) {
	l := load.New(load.Options{})
	for _, id := range []string{"a", "b"} {
		require.NoError(t, l.Book(&load.Booking{ID: id, Private: 4, PrefillTokens: 64}, 0))
	}
	require.Equal(t, load.Load{ActivePrefillTokens: 128, ActiveBlocks: 8, ActiveRequests: 2}, l.Load(0))
	half := 0.5
	require.NoError(t, l.AddOutputBlocks("a", 2, &half, 0))
	require.EqualValues(t, 7, l.Load(0).ActiveBlocks)
	require.NoError(t, l.Free("a", 0))
	require.EqualValues(t, 4, l.Load(0).ActiveBlocks)
}

// https://github.com/ai-dynamo/dynamo/pull/5105 https://github.com/ai-dynamo/dynamo/issues/5095
func TestUnknownRepeatedAndOutOfOrderCalls(t *testing.T) {
	l := load.New(load.Options{})
	require.ErrorIs(t, l.Free("ghost", 0), load.ErrRequestNotFound)
	require.ErrorIs(t, l.PrefillComplete("ghost", 0), load.ErrRequestNotFound)
	require.ErrorContains(t, l.Free("ghost", 0), `"ghost"`)

	require.NoError(t, l.Book(&load.Booking{ID: "a", Blocks: chain(1, 10), PrefillTokens: 160}, 0))
	err := l.Book(&load.Booking{ID: "a", Slot: 1, Blocks: chain(2, 3), PrefillTokens: 9}, 0)
	require.ErrorIs(t, err, load.ErrDuplicateRequest)
	require.Equal(t, load.Load{ActivePrefillTokens: 160, ActiveBlocks: 10, ActiveRequests: 1}, l.Load(0))
	require.Equal(t, load.Load{}, l.Load(1))

	require.NoError(t, l.PrefillComplete("a", 0))
	require.NoError(t, l.PrefillComplete("a", 0), "marking twice is fine")
	require.Equal(t, load.Load{ActiveBlocks: 10, ActiveRequests: 1}, l.Load(0))
	require.NoError(t, l.Free("a", 0))
	require.ErrorIs(t, l.Free("a", 0), load.ErrRequestNotFound)
	require.ErrorIs(t, l.PrefillComplete("a", 0), load.ErrRequestNotFound)

	require.NoError(t, l.Book(&load.Booking{ID: "", Blocks: chain(1, 2), PrefillTokens: 32}, 0), "the empty id is an id")
	require.NoError(t, l.Free("", 0), "free before prefill is complete")
	require.Equal(t, load.Load{}, l.Load(0))
	load.Check(t, l)
}

func TestDuplicateNamesTheWorker(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Rank: worker.Rank{ID: math.MaxUint64, DPRank: 3}}, 0))
	require.ErrorContains(t, l.Book(&load.Booking{ID: "a"}, 0), `"a", on worker 18446744073709551615/3`)
}

// https://github.com/ai-dynamo/dynamo/pull/1895 https://github.com/ai-dynamo/dynamo/issues/3694
func TestPrefillAndDecodeNumbersThroughALife(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Blocks: chain(1, 10), PrefillTokens: 96}, 0))
	require.Equal(t, load.Load{ActivePrefillTokens: 96, ActiveBlocks: 10, ActiveRequests: 1}, l.Load(0))
	require.NoError(t, l.PrefillComplete("a", 0))
	require.Equal(t, load.Load{ActiveBlocks: 10, ActiveRequests: 1}, l.Load(0))
	require.NoError(t, l.Free("a", 0))
	require.Equal(t, load.Load{}, l.Load(0))
}

// https://github.com/ai-dynamo/dynamo/pull/11303 https://github.com/ai-dynamo/dynamo/pull/12078
func TestProgressRenewsAndOrphansExpire(t *testing.T) {
	l := load.New(load.Options{ExpiryNanos: 2 * second})
	for _, id := range []string{"busy", "orphan"} {
		require.NoError(t, l.Book(&load.Booking{ID: id, Blocks: chain(1, 4), PrefillTokens: 64}, 0))
	}
	require.NoError(t, l.PrefillComplete("busy", second))
	require.Zero(t, l.Expire(2*second), "exactly the period is not over it")
	require.Equal(t, 1, l.Expire(2*second+1))
	require.Equal(t, load.Load{ActiveBlocks: 4, ActiveRequests: 1}, l.Load(0))
	for s := int64(2); s <= 10; s++ {
		require.NoError(t, l.AddOutputBlocks("busy", 1, nil, s*second))
		require.Zero(t, l.Expire(s*second))
	}
	require.NoError(t, l.AddOutputBlocks("busy", 0, nil, 12*second), "no blocks are no progress")
	require.Equal(t, 1, l.Expire(12*second+1))
	require.Equal(t, load.Load{}, l.Load(0))
	load.Check(t, l)
}

func TestLateCallSucceedsOnce(t *testing.T) {
	book := func(l *load.Ledger, ids ...string) {
		for _, id := range ids {
			require.NoError(t, l.Book(&load.Booking{ID: id, Slot: 1, Blocks: chain(1, 4), PrefillTokens: 64}, 0))
		}
	}
	lost := map[string]func(l *load.Ledger){
		"expired":     func(l *load.Ledger) { require.Positive(t, l.Expire(2*second+1)) },
		"worker gone": func(l *load.Ledger) { l.DropSlot(1, 2*second+1) },
	}
	for name, lose := range lost {
		t.Run(name, func(t *testing.T) {
			l := load.New(load.Options{ExpiryNanos: 2 * second})
			book(l, "free", "mark", "late", "again")
			lose(l)
			require.Equal(t, load.Load{}, l.Load(1))
			now := 4*second + 1
			require.NoError(t, l.Free("free", now))
			require.ErrorIs(t, l.Free("free", now), load.ErrRequestNotFound)
			require.NoError(t, l.PrefillComplete("mark", now))
			require.ErrorIs(t, l.PrefillComplete("mark", now), load.ErrRequestNotFound)
			require.ErrorIs(t, l.Free("late", now+1), load.ErrRequestNotFound, "remembered for one period")
			book(l, "again")
			require.NoError(t, l.Free("again", now))
			require.ErrorIs(t, l.Free("again", now), load.ErrRequestNotFound, "booking again forgets the first life")
			require.Equal(t, load.Load{}, l.Load(1))
			load.Check(t, l)
		})
	}
}

func TestDropSlotSparesOthers(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Slot: 0, Blocks: chain(1, 6), PrefillTokens: 5}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "b", Slot: 1, Blocks: chain(1, 4), PrefillTokens: 7}, 0))
	require.Equal(t, 1, l.DropSlot(1, 0))
	require.Zero(t, l.DropSlot(9, 0))
	require.Equal(t, []uint32{6, 0}, matched(l, 2, chain(1, 8)))
	require.Equal(t, load.Load{ActivePrefillTokens: 5, ActiveBlocks: 6, ActiveRequests: 1}, l.Load(0))
	require.Equal(t, load.Load{}, l.Load(1))
}

// However many end at one moment, a call ends no more than a bound, looks at no more than a multiple of it, and forgets no more ids.
func TestOneCallEndsABoundedNumber(t *testing.T) {
	const n = 3 * load.MaxEnds
	ended := 0
	fill := func(origin load.Origin) *load.Ledger {
		l := load.New(load.Options{ExpiryNanos: 10, Ended: func(string, load.Placement, int64) { ended++ }})
		for i := range n {
			require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint(i), Origin: origin}, 0))
		}
		ended = 0
		return l
	}
	parts := func(call func() int) {
		t.Helper()
		for i := range 4 {
			before, want := ended, load.MaxEnds*min(i+1, 3)
			require.Equal(t, want-before, call())
			require.Equal(t, want, ended)
		}
	}
	l := fill(0)
	parts(func() int { return l.Expire(11) })
	require.Equal(t, n, load.Remembered(l))
	for _, left := range []int{2 * load.MaxEnds, load.MaxEnds, 0} {
		l.Expire(22)
		require.Equal(t, left, load.Remembered(l))
	}
	l = fill(0)
	parts(func() int { return l.DropSlot(0, 0) })
	l = fill(7)
	d := l.Departed(7, 0)
	parts(func() int { n, _ := l.DropOrigin(&d, 0); return n })
	l = fill(7)
	d = l.Departed(8, 0)
	require.NoError(t, l.Book(&load.Booking{ID: "other", Origin: 8}, 0))
	for i := range 20*load.MaxEnds - n {
		require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint("more", i)}, 0))
	}
	dropped, more := l.DropOrigin(&d, 0)
	require.Equal(t, 1, dropped)
	require.True(t, more, "it has not looked at all of them yet")
	dropped, more = l.DropOrigin(&d, 0)
	require.Zero(t, dropped)
	require.False(t, more)
}

// What is remembered beyond its time because there was more to forget is not heard any more.
func TestWhatIsForgottenLateIsNotHeard(t *testing.T) {
	l := load.New(load.Options{ExpiryNanos: 10})
	load.SetMaxEnds(l, 2)
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, l.Book(&load.Booking{ID: id}, 0))
	}
	require.Equal(t, 2, l.Expire(11))
	require.Equal(t, 1, l.Expire(11))
	require.Zero(t, l.Expire(22))
	require.Equal(t, 1, load.Remembered(l))
	require.ErrorIs(t, l.Free("c", 22), load.ErrRequestNotFound)
	load.Check(t, l)
}

func TestRememberedIDsAreBounded(t *testing.T) {
	const bound = 1 << 16
	l := load.New(load.Options{})
	for i := range 3 * bound {
		require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint(i)}, 0))
		l.DropSlot(0, 0)
	}
	load.Check(t, l)
	require.ErrorIs(t, l.Free(fmt.Sprint(2*bound-1), 0), load.ErrRequestNotFound, "the oldest go first")
	require.NoError(t, l.Free(fmt.Sprint(2*bound), 0))
	require.NoError(t, l.Free(fmt.Sprint(3*bound-1), 0))
}

// Ids of any length may be booked; those that are owed a late call take a bounded memory, and no message repeats all of one.
func TestLongIDs(t *testing.T) {
	const size = 1 << 20
	l := load.New(load.Options{})
	id := func(i int) string { return strings.Repeat(string(rune('a'+i)), size) }
	for i := range 20 {
		require.NoError(t, l.Book(&load.Booking{ID: id(i)}, 0))
		require.Less(t, len(l.Book(&load.Booking{ID: id(i)}, 0).Error()), 1000)
		require.Equal(t, 1, l.DropSlot(0, 0))
		load.Check(t, l)
	}
	require.Equal(t, 16, load.Remembered(l))
	err := l.Free(id(3), 0)
	require.ErrorIs(t, err, load.ErrRequestNotFound)
	require.Less(t, len(err.Error()), 1000)
	for i := range 16 {
		require.NoError(t, l.Free(id(4+i), 0))
	}
	require.NoError(t, l.Book(&load.Booking{ID: strings.Repeat(id(0), 17)}, 0))
	require.Equal(t, 1, l.DropSlot(0, 0))
	require.Zero(t, load.Remembered(l), "it alone is too long")
	load.Check(t, l)
}

func TestBookRefusesWhatDoesNotFit(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Private: 1 << 31, PrefillTokens: 1 << 52}, 0))
	for name, b := range map[string]load.Booking{
		"slot 1048576": {Slot: load.MaxSlots},
		"-1 private":   {Private: -1},
		"private":      {Private: math.MaxInt},
		"-1 prefill":   {PrefillTokens: -1},
		"prefill":      {PrefillTokens: 1<<52 + 1},
	} {
		b.ID = "b"
		err := l.Book(&b, 0)
		require.ErrorIs(t, err, load.ErrInvalid, name)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, l.Free("b", 0), load.ErrRequestNotFound)
	}
	require.NoError(t, l.Book(&load.Booking{ID: "b", Private: 1 << 31, PrefillTokens: 1 << 52}, 0))
	require.ErrorIs(t, l.AddOutputBlocks("b", 1, nil, 0), load.ErrInvalid)
	require.Equal(t, load.Load{ActivePrefillTokens: 1 << 53, ActiveBlocks: 1 << 32, ActiveRequests: 2}, l.Load(0))
}

func TestTimeAtTheEdges(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "early", PrefillTokens: 10, PrefillModeled: true, PrefillNanos: 1}, math.MinInt64))
	require.EqualValues(t, 10, l.Load(0).ActivePrefillTokens)
	require.NoError(t, l.Book(&load.Booking{ID: "late"}, math.MaxInt64))
	require.Zero(t, l.Load(0).ActivePrefillTokens, "all of time has passed")
	require.NoError(t, l.PrefillComplete("late", 0))
	require.NoError(t, l.Book(&load.Booking{ID: "later"}, 0))
	require.Equal(t, 1, l.Expire(0), "a clock that goes back stands still: early has expired")
	require.NoError(t, l.Free("early", math.MaxInt64))
	require.NoError(t, l.Free("late", math.MaxInt64))
	require.NoError(t, l.Free("later", math.MaxInt64))
}

func TestQueriesAllocateNothing(t *testing.T) {
	l := filled(64, 16, 256)
	dst, query := make([]uint32, 64), chain(1, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.Matched(dst, query)
		_ = l.Loads()
	}))
}

// A queue of requests, each with an id of its own: whatever is kept by id, by time or by prompt is replaced all the time.
func TestBookAndFreeAllocateNothingOnceWarm(t *testing.T) {
	const live, lives = 1000, 30_000
	l := load.New(load.Options{})
	ids := make([]string, live+2*lives)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	half, prompt := 0.5, append(chain(1, 250), chain(99, 6)...)
	next := 0
	run := func(n int) {
		for range n {
			now, slot := int64(next)*1000, worker.Slot(next%7)
			prompt[255] = block.Hash(next)
			_ = l.Book(&load.Booking{ID: ids[next], Slot: slot, Blocks: prompt, PrefillTokens: 96, PrefillModeled: next%2 == 0, PrefillNanos: 5000}, now)
			if done := next - 10; done >= 0 {
				_ = l.PrefillComplete(ids[done], now)
				_ = l.AddOutputBlocks(ids[done], 1, &half, now)
			}
			if old := next - live; old >= 0 {
				if err := l.Free(ids[old], now); err != nil {
					t.Fatal(err)
				}
			}
			l.Loads()
			next++
		}
	}
	run(live)
	require.Zero(t, testing.AllocsPerRun(1, func() { run(lives) })) // of both calls it counts the second
	load.Check(t, l)
}

// An edge of several slots takes what one before it left, and of what a large one took nothing is kept.
func TestHoldersOfEdgesThatEndAreUsedAgain(t *testing.T) {
	l := load.New(load.Options{})
	for round := range 100 {
		for slot := range 2 + 60*(round%2) {
			require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint(slot), Slot: worker.Slot(slot), Blocks: chain(uint64(round), 4)}, 0))
		}
		lists, _ := load.Crowds(l)
		require.Equal(t, 1, lists)
		for slot := range 2 + 60*(round%2) {
			require.NoError(t, l.Free(fmt.Sprint(slot), 0))
		}
		_, room := load.Crowds(l)
		require.LessOrEqual(t, room, 16)
		load.Check(t, l)
	}
}

// Requests that leave a long-lived prefix at every depth must not leave it cut to pieces.
func TestPrefixHealsAfterBranchesLeave(t *testing.T) {
	const depth, perEdge = 1000, 32
	book := func(l *load.Ledger, d int) {
		require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint(d), Blocks: append(chain(1, d), 7)}, 0))
	}
	free := func(l *load.Ledger, d int) { require.NoError(t, l.Free(fmt.Sprint(d), 0)) }
	for name, branch := range map[string]func(l *load.Ledger){
		"one after the other, downwards": func(l *load.Ledger) {
			for d := 1; d < depth; d++ {
				book(l, d)
				free(l, d)
			}
		},
		"one after the other, upwards": func(l *load.Ledger) {
			for d := depth - 1; d > 0; d-- {
				book(l, d)
				free(l, d)
			}
		},
		"all at once": func(l *load.Ledger) {
			for d := 1; d < depth; d++ {
				book(l, d)
			}
			require.Equal(t, 2*depth-1, load.Edges(l))
			for i := 1; i < depth; i++ {
				free(l, i*387%depth) // 387 and 1000 have no common factor: every depth, in a scattered order
			}
		},
	} {
		l := load.New(load.Options{})
		require.NoError(t, l.Book(&load.Booking{ID: "keep", Blocks: chain(1, depth)}, 0))
		branch(l)
		require.LessOrEqual(t, load.Edges(l), 1+depth/perEdge, name)
		require.Equal(t, []uint32{depth}, matched(l, 1, chain(1, depth)))
		load.Check(t, l)
	}
}

// filled gives a ledger with live requests per slot: a third of each prompt is shared by all, a third by its slot.
func filled(slots, perSlot, blocks int) *load.Ledger {
	l := load.New(load.Options{})
	for s := range slots {
		for r := range perSlot {
			p := chain(1, blocks)
			copy(p[blocks/3:], chain(uint64(2+s), blocks))
			copy(p[blocks*2/3:], chain(uint64(10_000+s*perSlot+r), blocks))
			id := fmt.Sprintf("%d-%d", s, r)
			if err := l.Book(&load.Booking{ID: id, Slot: worker.Slot(s), Blocks: p, PrefillTokens: 100}, 0); err != nil {
				panic(err)
			}
		}
	}
	return l
}

func TestEndedHearsOfEveryEndOnce(t *testing.T) {
	var ended []string
	var times []int64
	l := load.New(load.Options{ExpiryNanos: 10, Ended: func(id string, at load.Placement, now int64) {
		require.EqualValues(t, len(ended), at.Slot)
		ended, times = append(ended, id), append(times, now)
	}})
	for i, id := range []string{"freed", "gone", "another router's", "expired"} {
		b := load.Booking{ID: id, Slot: worker.Slot(i)}
		if i == 2 {
			b.Origin = 7
		}
		require.NoError(t, l.Book(&b, 0))
	}
	require.NoError(t, l.PrefillComplete("freed", 1))
	require.Empty(t, ended)
	require.NoError(t, l.Free("freed", 1))
	l.DropSlot(1, 1)
	require.Equal(t, 1, dropOrigin(t, l, 7, 1))
	l.Expire(100)
	require.NoError(t, l.Free("expired", 100), "late")
	require.Equal(t, []string{"freed", "gone", "another router's", "expired"}, ended)
	require.Equal(t, []int64{1, 1, 1, 100}, times)
}

func TestBookingAfterAQueryThatIsOutOfDate(t *testing.T) {
	for name, meanwhile := range map[string]func(l *load.Ledger) error{
		"another was booked": func(l *load.Ledger) error {
			return l.Book(&load.Booking{ID: "new", Blocks: append(chain(1, 6), 7, 7)}, 0)
		},
		"one was cut": func(l *load.Ledger) error { return l.Book(&load.Booking{ID: "new", Blocks: chain(1, 2)}, 0) },
		"one ended":   func(l *load.Ledger) error { return l.Free("old", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			l := load.New(load.Options{})
			require.NoError(t, l.Book(&load.Booking{ID: "old", Blocks: chain(1, 4)}, 0))
			require.Equal(t, []uint32{4}, matched(l, 1, chain(1, 8)))
			require.NoError(t, meanwhile(l))
			require.NoError(t, l.Book(&load.Booking{ID: "asked", Blocks: chain(1, 8), Walked: true}, 0))
			load.Check(t, l)
			require.Equal(t, []uint32{8}, matched(l, 1, chain(1, 8)))
			require.EqualValues(t, name == "another was booked", l.Load(0).ActiveBlocks == 10, "the two that are its own, and eight")
		})
	}
}

// An id that expired and is booked again is the new request's: when that is freed nothing is owed for the old one.
func TestIDThatIsBookedAgainIsOwedNothing(t *testing.T) {
	l := load.New(load.Options{ExpiryNanos: 10})
	require.NoError(t, l.Book(&load.Booking{ID: "a"}, 0))
	require.Equal(t, 1, l.Expire(11))
	require.NoError(t, l.Book(&load.Booking{ID: "a"}, 12))
	require.NoError(t, l.Free("a", 13))
	require.ErrorIs(t, l.Free("a", 14), load.ErrRequestNotFound)
}

// A query may leave out slots, and a booking that says it was asked for is checked at least for its length.
func TestEdgesOfQueries(t *testing.T) {
	l := load.New(load.Options{})
	for slot := range worker.Slot(3) {
		require.NoError(t, l.Book(&load.Booking{ID: fmt.Sprint(slot), Slot: slot, Blocks: chain(1, 8)}, 0))
	}
	for n := range 4 {
		got := matched(l, n, chain(1, 8))
		require.Len(t, got, n)
		for _, depth := range got {
			require.EqualValues(t, 8, depth)
		}
	}
	require.NoError(t, l.Book(&load.Booking{ID: "shorter", Slot: 4, Blocks: chain(1, 4), Walked: true}, 0))
	require.EqualValues(t, 4, l.Load(4).ActiveBlocks)
	load.Check(t, l)
}
