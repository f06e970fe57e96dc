package router_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// storeIn makes a worker hold the blocks [from, to) of a prompt in a tier, under the names that store gives.
func (k *kit) storeIn(t event.Tier, id uint64, prompt []uint32, from, to int) {
	hashes := block.Hashes(nil, prompt, k.size, nil)
	ev := event.Event{Kind: event.Stored, Tier: t}
	if from > 0 {
		ev.HasParent, ev.Parent = true, block.EngineHash(hashes[from-1])
	}
	for _, h := range hashes[from:to] {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(h), Hash: h})
	}
	require.NoError(k.t, k.ApplyEvent(id, &ev, index.Count))
}

// row gives a worker's overlap: device, host (cumulative and not), disk (likewise).
func (k *kit) row(id uint64, prompt []uint32) [5]uint32 {
	scores, err := k.OverlapScores(&router.Prompt{Tokens: prompt})
	require.NoError(k.t, err)
	for _, w := range scores.Workers {
		if w.WorkerID == id {
			return [5]uint32{w.DeviceBlocks, w.HostPinnedBlocks, w.HostPinnedExtensionBlocks, w.DiskBlocks, w.DiskExtensionBlocks}
		}
	}
	require.Fail(k.t, "no such worker")
	return [5]uint32{}
}

func TestLowerTiersGoOnWhereTheDeviceEnds(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1, 2, 3, 4)
	prompt := tokens(1, 40)
	k.storeIn(event.Device, 1, prompt, 0, 3)
	k.storeIn(event.HostPinned, 1, prompt, 3, 5)
	k.storeIn(event.Disk, 1, prompt, 5, 6)
	k.storeIn(event.External, 1, prompt, 6, 8)
	k.storeIn(event.HostPinned, 2, prompt, 0, 4)
	k.storeIn(event.Disk, 3, prompt, 5, 9) // nothing leads there
	require.Equal(t, [5]uint32{3, 5, 2, 8, 3}, k.row(1, prompt))
	require.Equal(t, [5]uint32{0, 4, 4, 4, 0}, k.row(2, prompt))
	require.Equal(t, [5]uint32{}, k.row(3, prompt))
	require.Equal(t, [5]uint32{3, 4, 1, 4, 0}, k.row(1, prompt[:16]), "never beyond the prompt")
	stats, err := k.Stats()
	require.NoError(t, err)
	require.Equal(t, []int{6, 5, 2, 3}, []int{stats.HostPinnedBlocks, stats.DiskBlocks, stats.ExternalBlocks, stats.Pairs})
	require.Positive(t, stats.Memory.Tiers)

	// 10 blocks; worker 1: 3 + 0.75*2 + 0.25*3 are cached, worker 2: 0.75*4.
	require.Equal(t, router.Choice{WorkerID: 1, OverlapBlocks: 3}, k.best(ask(prompt)))
	loads := k.loads(prompt)
	require.EqualValues(t, 40-21, loads[1].PotentialPrefillTokens)
	require.EqualValues(t, 40-12, loads[2].PotentialPrefillTokens)
	require.EqualValues(t, 40, loads[3].PotentialPrefillTokens)
	k.best(pinned(book("r", prompt), 1, 0))
	require.EqualValues(t, 40-21, k.loads(nil)[1].PotentialPrefillTokens, "what is booked is what is not cached")
	explained, err := k.Explain(ask(prompt))
	require.NoError(t, err)
	require.EqualValues(t, 21, explained.Workers[0].CachedTokens)
	require.NoError(t, k.Free("r"))

	// The middle of the chain leaves a tier.
	name := block.EngineHash(block.Hashes(nil, prompt, 4, nil)[4])
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Removed, Tier: event.HostPinned, Removed: []block.EngineHash{name}}, index.Count))
	require.Equal(t, [5]uint32{3, 4, 1, 4, 0}, k.row(1, prompt))
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	require.Equal(t, [5]uint32{}, k.row(1, prompt), "cleared are all tiers")
	require.Equal(t, [5]uint32{0, 4, 4, 4, 0}, k.row(2, prompt), "of this rank only")
	require.NoError(t, k.RemoveWorker(2))
	k.workers(2)
	require.Equal(t, [5]uint32{}, k.row(2, prompt))
}

func TestDecisionOverTiersAllocatesNothing(t *testing.T) {
	if raceEnabled {
		return // checked by the run without the race detector
	}
	k := newKit(t, 16, router.DefaultConfig())
	prompt := tokens(1, 4096)
	for id := range 64 {
		k.workers(uint64(id))
		k.storeIn(event.Device, uint64(id), prompt, 0, id)
		k.storeIn(event.HostPinned, uint64(id), prompt, id, 2*id+1)
		k.storeIn(event.Disk, uint64(id), prompt, 2*id+1, 200)
	}
	q := ask(prompt)
	for range 10 {
		k.best(q)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { k.best(q) }))
}

func TestWeightsOfLowerTiers(t *testing.T) {
	config := router.DefaultConfig()
	config.HostCacheHitWeight, config.DiskCacheHitWeight = 1, 0
	k := newKit(t, 4, config).workers(1, 2, 3)
	prompt := tokens(1, 40)
	k.storeIn(event.Device, 1, prompt, 0, 5)
	k.storeIn(event.HostPinned, 2, prompt, 0, 6)
	k.storeIn(event.Disk, 3, prompt, 0, 10)
	require.Equal(t, router.Choice{WorkerID: 2, OverlapBlocks: 0}, k.best(ask(prompt)))
	require.EqualValues(t, 40, k.loads(prompt)[3].PotentialPrefillTokens)
}

// Blocks that are presumed on the device and held below it are not counted twice.
func TestPresumedAndLowerTiersTogether(t *testing.T) {
	config := router.DefaultConfig()
	config.RouterPredictedTTLSecs = ptr(60.0)
	k := newKit(t, 4, config).workers(1)
	prompt := tokens(1, 40)
	k.storeIn(event.Device, 1, prompt, 0, 2)
	k.storeIn(event.HostPinned, 1, prompt, 2, 6)
	k.storeIn(event.Disk, 1, prompt, 6, 9)
	require.Equal(t, [5]uint32{2, 6, 4, 9, 3}, k.row(1, prompt))
	for blocks, want := range map[int][5]uint32{4: {4, 6, 2, 9, 3}, 7: {7, 7, 0, 9, 2}, 10: {10, 10, 0, 10, 0}} {
		k := newKit(t, 4, config).workers(1)
		k.storeIn(event.Device, 1, prompt, 0, 2)
		k.storeIn(event.HostPinned, 1, prompt, 2, 6)
		k.storeIn(event.Disk, 1, prompt, 6, 9)
		k.best(updating(ask(prompt[:4*blocks])))
		require.Equal(t, want, k.row(1, prompt), "%d presumed", blocks)
	}
}

func TestDumpAndSnapshotKeepTheTiers(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2, 3)
	for i := range 5 {
		prompt := tokens(i, 40)
		for id := range uint64(2) {
			a.storeIn(event.Device, id+1, prompt, 0, i)
			a.storeIn(event.HostPinned, id+1, prompt, i, 6)
			a.storeIn(event.Disk, id+1, prompt, 6, 8+int(id))
			a.storeIn(event.External, id+1, prompt, 8, 10)
		}
	}
	a.storeIn(event.Disk, 3, tokens(0, 40), 0, 10)
	a.storeIn(event.Disk, 3, tokens(0, 40), 0, 10) // a second reference
	dump, err := a.DumpEvents()
	require.NoError(t, err)
	for i := range 4 {
		require.Contains(t, string(dump), fmt.Sprintf(`"storage_tier":"%s"`, event.Tier(i)))
	}
	loaded := newKit(t, 4, router.DefaultConfig()).workers(1, 2, 3)
	require.NoError(t, loaded.LoadEvents(dump))
	restored := a.restarted(3).workers(1, 2, 3)
	for name, b := range map[string]*kit{"dump": loaded, "snapshot": restored} {
		require.Equal(t, blocksOf(t, a), blocksOf(t, b), name)
		for i := range 5 {
			for id := range uint64(3) {
				require.Equal(t, a.row(id+1, tokens(i, 40)), b.row(id+1, tokens(i, 40)), name)
			}
		}
	}
	// One reference after a dump, two after a snapshot.
	gone := &event.Event{Kind: event.Removed, Tier: event.Disk}
	for _, h := range block.Hashes(nil, tokens(0, 40), 4, nil) {
		gone.Removed = append(gone.Removed, block.EngineHash(h))
	}
	require.NoError(t, loaded.ApplyEvent(3, gone, index.Count))
	require.NoError(t, restored.ApplyEvent(3, gone, index.Count))
	require.EqualValues(t, 0, loaded.row(3, tokens(0, 40))[3])
	require.EqualValues(t, 10, restored.row(3, tokens(0, 40))[3])
}
