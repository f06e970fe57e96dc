package feed

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// What an engine said of its cache groups dies with it: after a restart the same number may name another group.
func TestResetForgetsCacheGroupsAndCountsVerdicts(t *testing.T) {
	var v view
	var counts tally
	a := applier{rank: worker.Rank{ID: 1}, sink: &v, norm: wire.NewNormalizer(2), tally: &counts}
	stored := func(name uint64, kind string) *wire.Event {
		return &wire.Event{Tag: "BlockStored", Kind: event.Stored, BlockHashes: []block.EngineHash{block.EngineHash(name)},
			TokenIDs: []uint32{uint32(name), 2}, BlockSize: 2, HasGroup: true, GroupIdx: 1, SpecKind: kind}
	}
	a.event(stored(1, "full_attention"), 0)
	a.event(stored(2, ""), 1)
	require.Len(t, v.names(), 2, "the group's kind is known")
	a.reset()
	require.Empty(t, v.names())
	a.event(stored(3, ""), 2)
	require.Empty(t, v.names(), "the group's kind is not known any more")
	require.Equal(t, uint64(1), counts.snapshot()[string(wire.UnlearnedGroup)])
}
