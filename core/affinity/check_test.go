package affinity

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Check verifies the invariants of a table.
func Check(t testing.TB, table *Table) {
	left, idle := 0, 0
	of := map[*tied]int{}
	for id, s := range table.sessions {
		require.Equal(t, id, s.id)
		require.Same(t, s, s.tied.sessions[s.at])
		of[s.tied]++
		if s.tied.gone {
			left++
		}
		if s.leases == 0 {
			idle++
		}
	}
	require.Equal(t, left, table.left)
	require.Equal(t, idle, table.idle.Len())
	require.Len(t, of, len(table.ranks)+len(table.gone))
	for rank, r := range table.ranks {
		require.Equal(t, rank, r.rank)
		require.False(t, r.gone)
		require.Len(t, r.sessions, of[r])
	}
	for at, r := range table.gone {
		require.True(t, r.gone)
		require.Equal(t, at, r.at)
		require.Len(t, r.sessions, of[r])
	}
}

// Kept counts the sessions that take memory.
func Kept(table *Table) int { return len(table.sessions) }
