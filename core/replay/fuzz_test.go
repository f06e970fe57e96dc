package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	truth "github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/replay/model"
)

// script reads an operation after the other from fuzz bytes.
type script struct{ b []byte }

func (s *script) next(n int) int {
	if len(s.b) == 0 {
		return 0
	}
	v := int(s.b[0]) % n
	s.b = s.b[1:]
	return v
}

func (s *script) event(id uint64) event.Event {
	ev := event.Event{ID: id, DPRank: 3}
	switch s.next(8) {
	case 0:
		ev.Kind = event.Cleared
	case 1, 2, 3:
		ev.Kind = event.Removed
		for range 1 + s.next(3) {
			ev.Removed = append(ev.Removed, block.EngineHash(s.next(12)))
		}
	default:
		ev.Kind = event.Stored
		ev.HasParent, ev.Parent = s.next(2) == 1, block.EngineHash(s.next(12))
		if !ev.HasParent {
			ev.Parent = 0
		}
		for range 1 + s.next(3) {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(s.next(12)), Hash: block.Hash(s.next(4))})
		}
	}
	return ev
}

// restore gives what an asker holds who had nothing, or what applying made of x, after an answer.
func restore(x index.Index, a *event.RangeAnswer) index.Index {
	if a.Kind == event.RangeDump {
		x = truth.New()
	}
	for i := range a.Events {
		_, _ = x.Apply(0, &a.Events[i], index.Set) // what hangs on a hidden block is refused
	}
	return x
}

// depth of the longest match of every prompt of four blocks of the script's four contents.
func depths(x index.Index) (all [256]uint32) {
	for p := range all {
		q := index.Query{Hashes: []block.Hash{block.Hash(p & 3), block.Hash(p >> 2 & 3), block.Hash(p >> 4 & 3), block.Hash(p >> 6)}}
		for _, row := range x.Match(nil, q) {
			all[p] = row.Depth
		}
	}
	return all
}

// whole tells whether nothing held is hidden behind a removed block.
func whole(x index.Index) bool {
	n := 0
	restored := truth.New()
	for _, ev := range x.Dump(0, 0) {
		_, _ = restored.Apply(0, &ev, index.Set)
	}
	n = restored.Blocks(0)
	return n == x.Blocks(0)
}

func FuzzLog(f *testing.F) {
	f.Add([]byte{3, 4, 0, 0, 2, 1, 1, 2, 2, 3, 3, 9, 9, 9, 1, 0, 4, 1, 3, 0, 2, 5})
	f.Add([]byte{1, 1, 1, 4, 4, 4, 4, 0, 0, 7, 7, 7})
	seed := make([]byte, 200)
	for i := range seed {
		seed[i] = byte(i * i >> 3 * 7)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := script{data[:min(len(data), 200)]}
		limit := 1 + s.next(6)
		l, m := newLog(t, limit), model.New(limit)
		follower, cursor, had, hidden := truth.New(), uint64(0), false, false
		next := uint64(s.next(2))
		for len(s.b) > 0 {
			switch s.next(4) {
			case 0, 1:
				id := next
				switch s.next(8) {
				case 0:
					id += uint64(s.next(3)) // a gap
				case 1:
					id -= uint64(s.next(3)) // stale, or beyond everything
				}
				if id > next+3 {
					id = next
				}
				ev := s.event(id)
				_, err := l.Record(&ev)
				require.Equal(t, m.Record(ev), err == nil, "%+v", ev)
				if err == nil {
					next = id + 1
				}
				hidden = hidden || !whole(m.Held())
			case 2:
				q := event.RangeQuery{HasStart: s.next(4) > 0, HasEnd: s.next(2) == 1}
				q.Start, q.End = next-uint64(s.next(8)), next-uint64(s.next(8))
				got, want := l.Range(&q), m.Range(&q)
				if want.Kind == event.RangeDump {
					require.Equal(t, want.Kind, got.Kind)
					require.Equal(t, want.LastID, got.LastID)
					checkRestored(t, restore(truth.New(), &got), m.Held(), hidden)
				} else {
					got.Events = append([]event.Event(nil), got.Events...)
					require.Equal(t, want, got)
				}
			case 3: // one who follows asks for what is next
				q := event.RangeQuery{HasStart: had, Start: cursor + 1}
				a := l.Range(&q)
				if a.Kind != event.RangeTooNew {
					follower, cursor, had = restore(follower, &a), a.LastID, l.Stats().Events > 0
				}
				if had {
					checkRestored(t, follower, m.Held(), hidden)
				}
			}
		}
	})
}

// checkRestored: who restores never holds more than there is, and all of it if nothing was ever hidden.
func checkRestored(t *testing.T, got, want index.Index, hidden bool) {
	t.Helper()
	g, w := depths(got), depths(want)
	if !hidden {
		require.Equal(t, w, g)
		require.Equal(t, want.Blocks(0), got.Blocks(0))
	}
	for p := range g {
		require.LessOrEqual(t, g[p], w[p])
	}
}
