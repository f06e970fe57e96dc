package worker

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table, want := NewTable(), map[Rank]Slot{}
	most := 0
	for range 20_000 {
		r := Rank{ID: rng.Uint64N(20) << 60, DPRank: uint32(rng.UintN(4))}
		if rng.UintN(3) < 2 {
			s := table.Add(r)
			if old, ok := want[r]; ok {
				require.Equal(t, old, s, "adding a registered rank must not move it")
			}
			for other, taken := range want {
				require.True(t, other == r || taken != s, "two ranks in one slot")
			}
			want[r] = s
		} else {
			s, ok := table.Remove(r)
			old, had := want[r]
			require.Equal(t, had, ok)
			require.Equal(t, old, s)
			delete(want, r)
		}
		most = max(most, len(want))
		require.Equal(t, len(want), table.Len())
	}
	for _, s := range want {
		require.Less(t, int(s), table.Cap())
	}
	require.Equal(t, most, table.Cap(), "slots are used again")
}

func TestRankOrderAndName(t *testing.T) {
	require.Equal(t, "15153599364775392307/3", Rank{15153599364775392307, 3}.String())
	require.Negative(t, Rank{1, 9}.Compare(Rank{2, 0}))
	require.Negative(t, Rank{1, 0}.Compare(Rank{1, 1}))
	require.Zero(t, Rank{1, 1}.Compare(Rank{1, 1}))
}
