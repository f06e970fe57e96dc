package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// taught gives a normalizer that knows cache groups and cache salts, an ambiguous block among them.
func taught(t testing.TB) *Normalizer {
	n := NewNormalizer(2)
	salted := func(parent, name uint64, salt string) *Event {
		return &Event{Kind: event.Stored, HasParent: parent != 0, Parent: block.EngineHash(parent), TokenIDs: []uint32{uint32(name), 2},
			BlockHashes: []block.EngineHash{block.EngineHash(name)}, BlockSize: 2, CacheSalt: salt, SaltRoot: salt != ""}
	}
	for _, e := range []*Event{salted(0, 1, "a"), salted(1, 2, ""), salted(0, 3, "b"), salted(0, 3, "a")} {
		_, v := n.Normalize(e, 0, 7)
		require.Equal(t, Keep, v)
	}
	for group, kind := range map[uint32]string{0: "full_attention", 1: "mamba", 1 << 31: "what is new"} {
		n.Normalize(&Event{Kind: event.Stored, HasGroup: true, GroupIdx: group, SpecKind: kind}, 0, 7)
	}
	return n
}

func TestStateIsGivenOn(t *testing.T) {
	n := taught(t)
	require.Len(t, n.groups, 3)
	require.Len(t, n.salts, 3)
	state := n.AppendState(nil)
	require.NoError(t, CheckState(state))
	again := NewNormalizer(2)
	again.SetState(state)
	require.Equal(t, n.groups, again.groups)
	require.Equal(t, n.salts, again.salts)
	require.Equal(t, state, again.AppendState(nil))

	require.NoError(t, CheckState(NewNormalizer(2).AppendState(nil)))
	for i := range state {
		require.ErrorIs(t, CheckState(state[:i]), ErrState, "cut at %d", i)
	}
	require.ErrorIs(t, CheckState(append(state, 0)), ErrState)
	again.SetState(state[:len(state)-1])
	require.Empty(t, again.groups)
	require.Empty(t, again.salts)
}

func FuzzState(f *testing.F) {
	f.Add(taught(f).AppendState(nil))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, state []byte) {
		n := NewNormalizer(2)
		n.SetState(state)
		if CheckState(state) != nil {
			require.Empty(t, n.groups)
			return
		}
		canonical := n.AppendState(nil)
		require.NoError(t, CheckState(canonical))
	})
}
