package idtable

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTablesEqualAMap adds and removes ids under few hashes and many, in few parts and all.
func TestTablesEqualAMap(t *testing.T) {
	for _, hashes := range []uint64{1, 50, 1 << 63} {
		rng := rand.New(rand.NewPCG(hashes, 1))
		tables, want := Tables{}, map[uint32]uint64{}
		for step := range 6000 {
			id := uint32(rng.IntN(400))
			if step > 5000 {
				id = uint32(step - 5001) // until all are gone
			}
			hash, ok := want[id]
			switch {
			case ok:
				tables.Remove(hash, id)
				delete(want, id)
			case step <= 5000:
				hash = rng.Uint64N(hashes) * 0x9e3779b97f4a7c15
				before := tables.Bytes()
				growth := tables.Growth(hash)
				tables.Insert(hash, id)
				require.LessOrEqual(t, tables.Bytes()-before, growth)
				want[id] = hash
			}
			if step%50 > 0 {
				continue
			}
			require.NoError(t, tables.Check())
			require.Equal(t, len(want), tables.Len())
			require.LessOrEqual(t, tables.Bytes(), parts*8*8+len(want)*6*8)
			for id, hash := range want {
				found := false
				for p := tables.Probe(hash); !found; {
					other, ok := p.Next()
					require.True(t, ok)
					found = other == id
				}
			}
		}
		require.Zero(t, tables.Bytes()+tables.Len())
	}
}
