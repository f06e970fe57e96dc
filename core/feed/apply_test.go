package feed

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// What an engine said of its cache groups dies with it: after a restart the same number may name another group.
func TestResetForgetsCacheGroupsAndCountsVerdicts(t *testing.T) {
	var v view
	var counts Tally
	a := applier{rank: worker.Rank{ID: 1}, sink: &v, norm: wire.NewNormalizer(2), tally: &counts}
	stored := func(name uint64, kind string) *wire.Event {
		return &wire.Event{Tag: "BlockStored", Kind: event.Stored, BlockHashes: []block.EngineHash{block.EngineHash(name)},
			TokenIDs: []uint32{uint32(name), 2}, BlockSize: 2, HasGroup: true, GroupIdx: 1, SpecKind: kind}
	}
	a.event(stored(1, "full_attention"), &batch{seq: 0})
	a.event(stored(2, ""), &batch{seq: 1})
	require.Len(t, v.names(), 2, "the group's kind is known")
	a.reset()
	require.Empty(t, v.names())
	a.event(stored(3, ""), &batch{seq: 2})
	require.Empty(t, v.names(), "the group's kind is not known any more")
	require.Equal(t, uint64(1), counts.Snapshot()[string(wire.UnlearnedGroup)])
}

// Whoever looks for the cause of missing hits hears of every store that is left out, and under which identity others are kept.
func TestIntakeHearsOfEveryStore(t *testing.T) {
	var v view
	var counts Tally
	var intake diagnose.Intake
	a := applier{rank: worker.Rank{ID: 1}, sink: &v, norm: wire.NewNormalizer(2), tally: &counts, intake: &intake}
	stored := func(change func(e *wire.Event)) {
		e := wire.Event{Kind: event.Stored, BlockHashes: []block.EngineHash{1}, TokenIDs: []uint32{1, 2}, BlockSize: 2}
		change(&e)
		a.event(&e, &batch{seq: 0})
	}
	found := func() string { return fmt.Sprint(diagnose.Findings(&intake, new(diagnose.Watch), nil, 2, 0)) }
	for range 4 {
		stored(func(e *wire.Event) { e.TokenIDs = nil })
	}
	require.Contains(t, found(), "all 4 stored events were left out, 4 of them as token_count")
	for range 5 {
		stored(func(e *wire.Event) { e.Err = errors.New("no event") })
	}
	require.Contains(t, found(), "all 9 stored events were left out, 5 of them as undecodable_events")
	for range 6 {
		a.apply(&batch{payload: []byte{0xc1}})
	}
	require.Contains(t, found(), "all 15 stored events were left out, 6 of them as undecodable_batches")
	for range 7 {
		stored(func(e *wire.Event) { e.BlockSize, e.TokenIDs = 3, []uint32{1, 2, 3} })
	}
	require.Contains(t, found(), "block_size_differs")
	require.Contains(t, found(), "the last one's is 3")

	stored(func(e *wire.Event) { e.TokenIDs, e.Bigram = []uint32{1, 2, 3}, true })
	require.Equal(t, uint64(1), counts.Snapshot()["eagle_windows"])
	heard := intake.Progress().Heard
	stored(func(e *wire.Event) { e.LoRAName, e.CacheSalt, e.SaltRoot = "sql", "tenant", true })
	stored(func(e *wire.Event) { e.LoRAName, e.HasParent, e.Parent, e.BlockHashes[0] = "sql", true, 1, 2 })
	a.event(&wire.Event{Kind: event.Removed, BlockHashes: []block.EngineHash{1}, Medium: "?"}, &batch{seq: 0})
	require.Equal(t, heard+1, intake.Progress().Heard, "the sink tells of what it was given")
	require.Equal(t, []diagnose.Identity{{LoRAName: "sql", CacheSalt: "tenant"}, {}}, intake.Identities())
}

// https://github.com/vllm-project/vllm/pull/26265: names of 32 bytes are stored and removed like numbers.
func TestByteStringNamesAreStoredAndRemoved(t *testing.T) {
	var v view
	var counts Tally
	a := applier{rank: worker.Rank{ID: 1}, sink: &v, norm: wire.NewNormalizer(16), tally: &counts}
	for seq, held := range []int{1, 4, 2} {
		payload := goldenPayloads(t, "vllm-0.31.0-bytes")[seq]
		require.Equal(t, intact, a.apply(&batch{seq: uint64(seq), payload: payload}))
		require.Len(t, v.names(), held)
	}
}

// goldenPayloads gives the payloads of a capture's live messages: a root block, three below it, two of them removed, ...
func goldenPayloads(t *testing.T, capture string) [][]byte {
	text, err := os.ReadFile("../../testdata/golden/engine-events/" + capture + ".json")
	require.NoError(t, err)
	var doc struct {
		Live []struct {
			Frames []string `json:"frames_hex"`
		} `json:"live"`
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	var payloads [][]byte
	for _, m := range doc.Live {
		payload, err := hex.DecodeString(m.Frames[2])
		require.NoError(t, err)
		payloads = append(payloads, payload)
	}
	return payloads
}
