package worker

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table, want := NewTable(), map[Rank]Ref{}
	var stale []Ref
	for range 20_000 {
		r := Rank{ID: rng.Uint64N(20) << 60, DPRank: uint32(rng.UintN(4))}
		switch rng.UintN(3) {
		case 0, 1:
			ref := table.Add(r)
			if old, ok := want[r]; ok {
				require.Equal(t, old, ref, "adding a registered rank must not move it")
			}
			want[r] = ref
		case 2:
			ref, ok := table.Remove(r)
			old, had := want[r]
			require.Equal(t, had, ok)
			if had {
				require.Equal(t, old, ref)
				stale = append(stale, ref)
				delete(want, r)
			}
		}
		require.Equal(t, len(want), table.Len())
	}
	slots := map[Slot]bool{}
	for r, ref := range want {
		got, ok := table.Rank(ref.Slot)
		require.True(t, ok && table.Live(ref))
		require.Equal(t, r, got)
		require.False(t, slots[ref.Slot], "two ranks in one slot")
		slots[ref.Slot] = true
		require.Less(t, int(ref.Slot), table.Cap())
	}
	require.LessOrEqual(t, table.Cap(), 80, "slots are reused")
	for _, ref := range stale {
		require.False(t, table.Live(ref), "a removed reference came back to life")
	}
	require.False(t, table.Live(Ref{}))
	_, ok := table.Rank(Slot(table.Cap()))
	require.False(t, ok)
}
