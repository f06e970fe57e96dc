package replay

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	truth "github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/tier"
)

func newLog(t testing.TB, events int) *Log {
	x := index.New(index.Options{OneShard: true})
	t.Cleanup(x.Close)
	l, err := New(Config{DPRank: 3, Events: events, Index: x, Lower: tier.New(0)})
	require.NoError(t, err)
	return l
}

// one stores a block of its own at the root.
func one(id uint64) event.Event {
	return event.Event{ID: id, Kind: event.Stored, Blocks: []event.Block{{Engine: block.EngineHash(1000 + id), Hash: block.Hash(5000 + id)}}}
}

func record(t testing.TB, l *Log, events ...event.Event) {
	t.Helper()
	for i := range events {
		_, err := l.Record(&events[i])
		require.NoError(t, err)
	}
}

func from(start uint64) *event.RangeQuery { return &event.RangeQuery{HasStart: true, Start: start} }

func between(start, end uint64) *event.RangeQuery {
	return &event.RangeQuery{HasStart: true, Start: start, HasEnd: true, End: end}
}

func ids(events []event.Event) (list []uint64) {
	for i := range events {
		list = append(list, events[i].ID)
	}
	return list
}

func TestBoundariesOfAnEmptyLog(t *testing.T) {
	l := newLog(t, 4)
	for _, q := range []*event.RangeQuery{{}, {HasEnd: true, End: 7}, from(0), from(1), from(math.MaxUint64), between(3, 3)} {
		a := l.Range(q)
		require.Equal(t, event.RangeDump, a.Kind)
		require.Empty(t, a.Events)
		require.Zero(t, a.LastID)
	}
	require.Equal(t, event.RangeInvalid, l.Range(between(3, 2)).Kind, "an end before the start comes first")
	require.False(t, l.Kept(0))
	require.Zero(t, l.Stats())
	record(t, l, one(0)) // and a dump made before the first event does not stand for it
	require.Len(t, l.Range(&event.RangeQuery{}).Events, 1)
}

func TestBoundariesOfAFullLog(t *testing.T) {
	l := newLog(t, 4)
	for id := uint64(10); id < 20; id++ {
		record(t, l, one(id))
	}
	require.Equal(t, Stats{Events: 4, First: 16, Last: 19}, l.Stats())
	for _, c := range []struct {
		q     *event.RangeQuery
		kind  event.RangeKind
		first uint64
	}{
		{&event.RangeQuery{}, event.RangeDump, 0},
		{&event.RangeQuery{HasEnd: true, End: 17}, event.RangeDump, 0},
		{&event.RangeQuery{HasEnd: true}, event.RangeDump, 0},
		{from(0), event.RangeDump, 0},
		{from(15), event.RangeDump, 0},
		{between(15, 15), event.RangeDump, 0},
		{from(16), event.RangeEvents, 16},
		{from(17), event.RangeEvents, 17},
		{from(19), event.RangeEvents, 19},
		{between(17, 17), event.RangeEvents, 17}, // an end does not shorten
		{between(17, math.MaxUint64), event.RangeEvents, 17},
		{from(20), event.RangeTooNew, 0},
		{between(20, 20), event.RangeTooNew, 0},
		{from(math.MaxUint64), event.RangeTooNew, 0},
		{between(17, 16), event.RangeInvalid, 0},
		{between(1, 0), event.RangeInvalid, 0},
		{between(math.MaxUint64, 0), event.RangeInvalid, 0},
	} {
		a := l.Range(c.q)
		require.Equal(t, c.kind, a.Kind, "%+v", *c.q)
		switch c.kind {
		case event.RangeDump:
			require.Len(t, a.Events, 10)
			require.Equal(t, uint64(19), a.LastID)
		case event.RangeEvents:
			var want []uint64
			for id := c.first; id < 20; id++ {
				want = append(want, id)
			}
			require.Equal(t, want, ids(a.Events))
			require.Equal(t, uint64(19), a.LastID)
		case event.RangeTooNew:
			end := uint64(19)
			if c.q.HasEnd {
				end = c.q.End
			}
			require.Equal(t, event.RangeAnswer{Kind: event.RangeTooNew, HasStart: true, Start: c.q.Start, HasEnd: true, End: end, Newest: 19}, a)
		case event.RangeInvalid:
			require.Equal(t, event.RangeAnswer{Kind: event.RangeInvalid, HasStart: true, Start: c.q.Start, HasEnd: true, End: c.q.End}, a)
		}
		require.Equal(t, c.q.HasStart && c.q.Start >= 16, l.Kept(c.q.Start) && c.q.HasStart)
	}
}

func TestAnswersBeginAtTheLastClear(t *testing.T) {
	l := newLog(t, 8)
	cleared := func(id uint64) event.Event { return event.Event{ID: id, Kind: event.Cleared} }
	record(t, l, one(1), cleared(2), one(3), cleared(4), one(5), one(6))
	for start, want := range map[uint64][]uint64{1: {4, 5, 6}, 2: {4, 5, 6}, 4: {4, 5, 6}, 5: {5, 6}, 6: {6}} {
		require.Equal(t, want, ids(l.Range(from(start)).Events))
	}
	require.Equal(t, uint32(3), l.Range(from(4)).Events[0].DPRank)
}

func TestIdsAreCheckedForContinuity(t *testing.T) {
	l := newLog(t, 8)
	record(t, l, one(5), one(6))
	for _, id := range []uint64{0, 5, 6} {
		ev := one(id)
		ev.Blocks[0].Engine = 9999
		_, err := l.Record(&ev)
		require.ErrorIs(t, err, ErrStale)
	}
	require.Len(t, l.Range(&event.RangeQuery{}).Events, 2, "what was refused changed nothing")
	require.Zero(t, l.Stats().Gaps)
	record(t, l, one(9))
	require.Equal(t, uint64(1), l.Stats().Gaps)
	require.Equal(t, []uint64{9}, ids(l.Range(from(7)).Events), "an id that never was")
	require.Equal(t, []uint64{6, 9}, ids(l.Range(from(6)).Events))
	a := l.Range(&event.RangeQuery{})
	require.Len(t, a.Events, 3)
	require.Equal(t, uint64(9), a.LastID)
}

func TestARefusedEventIsNotRemembered(t *testing.T) {
	l := newLog(t, 8)
	record(t, l, one(1))
	bad := one(2)
	bad.HasParent, bad.Parent = true, 77
	done, err := l.Record(&bad)
	require.ErrorIs(t, err, index.ErrUnknownParent)
	require.Equal(t, 1, done.Refused)
	record(t, l, one(2)) // its id is still free
	require.Zero(t, l.Stats().Gaps)

	device, err := New(Config{Events: 1, Index: truth.New()})
	require.NoError(t, err)
	low := one(1)
	low.Tier = event.Disk
	_, err = device.Record(&low)
	require.ErrorIs(t, err, tier.ErrTier)
	require.Equal(t, event.RangeDump, device.Range(from(1)).Kind)
}

func TestDumpsAreKept(t *testing.T) {
	l := newLog(t, 8)
	record(t, l, one(1), one(2))
	dump := func() event.RangeAnswer { return l.Range(&event.RangeQuery{}) }
	require.Equal(t, []uint64{0, 1}, ids(dump().Events))
	base := func() uint64 { require.True(t, l.dumped); return l.base }
	require.Equal(t, uint64(2), base())
	record(t, l, one(3), one(4), one(5), one(6)) // half of what is kept: the dump is still good
	a := dump()
	require.Equal(t, []uint64{0, 1, 3, 4, 5, 6}, ids(a.Events))
	require.Equal(t, uint64(6), a.LastID)
	require.Equal(t, uint64(2), base())
	record(t, l, one(7))
	require.Len(t, dump().Events, 7)
	require.Equal(t, uint64(7), base(), "it was made anew")
	record(t, l, event.Event{ID: 8, Kind: event.Cleared})
	require.False(t, l.dumped)
	require.Empty(t, dump().Events)
	record(t, l, one(20))
	require.False(t, l.dumped, "a gap")
	require.Len(t, dump().Events, 1)
}

func TestLowerTiersAreInTheDump(t *testing.T) {
	l := newLog(t, 2)
	record(t, l, one(1))
	for i, tr := range []event.Tier{event.HostPinned, event.Disk, event.External} {
		ev := one(uint64(i + 2))
		ev.Tier = tr
		record(t, l, ev)
	}
	a := l.Range(&event.RangeQuery{})
	require.Equal(t, []uint64{0, 1, 2, 3}, ids(a.Events))
	for i, ev := range a.Events {
		require.Equal(t, event.Tier(i), ev.Tier)
		require.Equal(t, uint32(3), ev.DPRank)
	}
	record(t, l, event.Event{ID: 5, Kind: event.Cleared})
	require.Empty(t, l.Range(&event.RangeQuery{}).Events)
}

func TestAnswersMayBeKept(t *testing.T) {
	l := newLog(t, 8)
	kept := map[uint64][2]event.RangeAnswer{}
	for id := uint64(1); id <= 200; id++ {
		ev := one(id)
		record(t, l, ev)
		ev.Blocks[0].Hash = 1 // the caller's memory is its own again
		start := max(id, 8) - 7
		kept[id] = [2]event.RangeAnswer{l.Range(from(start)), l.Range(&event.RangeQuery{})}
		for _, q := range []*event.RangeQuery{from(start), {}} { // what one does with its list is nothing to the others
			mine := l.Range(q).Events
			for i := range mine {
				mine[i] = event.Event{ID: 1 << 40}
			}
			_ = append(mine[:0], event.Event{ID: 1 << 41})
		}
		require.LessOrEqual(t, cap(l.array), 24, "what is kept is bounded")
	}
	for id, answers := range kept {
		events, dump := answers[0].Events, answers[1].Events
		require.Len(t, events, int(min(id, 8)))
		for i, ev := range events {
			want := one(id - uint64(len(events)-1-i))
			want.DPRank = 3
			require.Equal(t, want, ev)
		}
		stored := map[block.Hash]bool{}
		for _, ev := range dump {
			stored[ev.Blocks[0].Hash] = true
		}
		require.Len(t, stored, int(id))
		_, _ = append(events, event.Event{}), append(dump, event.Event{}) // are the caller's own, and race with nothing
	}
}

func TestBadConfigurations(t *testing.T) {
	for _, cfg := range []Config{{}, {Events: 1}, {Index: truth.New()}, {Events: -1, Index: truth.New()}, {Events: MaxEvents + 1, Index: truth.New()}} {
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrConfig)
	}
}

// Asked while events come, every answer must make of what the asker had what was held after the event it names.
func TestConcurrentAskers(t *testing.T) {
	const events, askers = 4000, 4
	l := newLog(t, 64)
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			held, cursor := map[block.EngineHash]bool{}, uint64(0)
			for n := 0; cursor < events; n++ {
				q := from(cursor + 1)
				if n%3 == 0 {
					q.HasStart = false
				}
				a := l.Range(q)
				switch a.Kind {
				case event.RangeTooNew:
					continue
				case event.RangeDump:
					clear(held)
				}
				for _, ev := range a.Events {
					for _, b := range ev.Blocks {
						held[b.Engine] = true
					}
					for _, h := range ev.Removed {
						delete(held, h)
					}
				}
				if cursor = a.LastID; cursor > 0 {
					// Event i stores block 1000+i, and from the 11th on removes block 1000+i-10 if i is even.
					if err := consistent(held, cursor); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for id := uint64(1); id <= events; id++ {
		if id%2 == 0 && id > 10 {
			record(t, l, event.Event{ID: id, Kind: event.Removed, Removed: []block.EngineHash{block.EngineHash(1000 + id - 9)}})
			continue
		}
		record(t, l, one(id))
	}
	wg.Wait()
}

// consistent checks what is held after an event of TestConcurrentAskers.
func consistent(held map[block.EngineHash]bool, last uint64) error {
	want := map[block.EngineHash]bool{}
	for id := uint64(1); id <= last; id++ {
		if id%2 == 0 && id > 10 {
			delete(want, block.EngineHash(1000+id-9))
		} else {
			want[block.EngineHash(1000+id)] = true
		}
	}
	if len(want) != len(held) {
		return fmt.Errorf("%d blocks after event %d, expected %d", len(held), last, len(want))
	}
	for h := range want {
		if !held[h] {
			return fmt.Errorf("no block %d after event %d", h, last)
		}
	}
	return nil
}
