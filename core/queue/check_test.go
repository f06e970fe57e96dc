package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Check verifies the invariants of a queue; see the comments of Queue and class.
func Check[T any](t testing.TB, q *Queue[T]) {
	t.Helper()
	waiting, timed := 0, 0
	for _, c := range q.classes {
		sum := Stats{Pushed: c.held.Pushed, LimitRefused: c.held.LimitRefused, DeadlinePassed: c.held.DeadlinePassed}
		for name, l := range c.lanes {
			require.Equal(t, name, l.name)
			require.Positive(t, l.items.Len(), "C1")
			first, _ := l.items.Min()
			require.Same(t, first.item, l.head)
			if l.place < 0 {
				found, ok := c.heads.Get(l)
				require.True(t, ok && found == l, "C2")
			} else {
				require.Same(t, l, c.blocked[l.kind][l.place], "C2")
			}
			l.items.Scan(func(e entry[T]) bool {
				it := e.item
				require.Equal(t, it.key, e.key)
				require.Same(t, l, it.lane)
				require.True(t, it.Waiting())
				sum.add(&it.Request)
				waiting++
				if it.Deadline != 0 {
					found, ok := q.deadlines.Get(it)
					require.True(t, ok && found == it)
					timed++
				}
				return true
			})
		}
		for kind := range kinds {
			require.True(t, c.toAsk[kind] >= 0 && c.toAsk[kind] <= len(c.blocked[kind]), "C5")
		}
		require.Equal(t, len(c.lanes), c.heads.Len()+len(c.blocked[open])+len(c.blocked[bound]), "C2")
		require.Equal(t, sum, c.held, "C3")
		require.True(t, c.deficit >= 0 && (c.deficit == 0 || !c.empty()), "C4")
	}
	require.Equal(t, waiting, q.waiting)
	require.Equal(t, timed, q.deadlines.Len())
	for _, it := range q.ring.candidates {
		require.Nil(t, it)
	}
}
