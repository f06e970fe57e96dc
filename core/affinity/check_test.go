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
		if id != s.id || s.at >= len(s.tied.sessions) || s.tied.sessions[s.at] != s { // thousands of them: no call for each
			require.Fail(t, "a session is not in its place", "%q: %+v", id, s)
		}
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
		require.True(t, r.rank == rank && !r.gone && len(r.sessions) == of[r] && of[r] > 0, "%v", rank)
	}
	for at, r := range table.gone {
		require.True(t, r.gone && r.at == at && len(r.sessions) == of[r] && of[r] > 0, "%v", r.rank)
	}
}

// Kept counts the sessions that take memory.
func Kept(table *Table) int { return len(table.sessions) }
