package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// stored is a store of n blocks of two tokens, named from first on, and changed.
func stored(first, n int, change ...func(*wire.Event)) *wire.Event {
	e := &wire.Event{Tag: "BlockStored", Kind: event.Stored, BlockSize: 2}
	for i := range n {
		h := first + i
		e.BlockHashes = append(e.BlockHashes, block.EngineHash(h))
		e.TokenIDs = append(e.TokenIDs, uint32(2*h), uint32(2*h+1))
	}
	for _, f := range change {
		f(e)
	}
	return e
}

func under(parent block.EngineHash) func(*wire.Event) {
	return func(e *wire.Event) { e.HasParent, e.Parent = true, parent }
}

func rootSalt(salt string) func(*wire.Event) {
	return func(e *wire.Event) { e.CacheSalt, e.SaltRoot = salt, true }
}

func removed(h ...block.EngineHash) *wire.Event {
	return &wire.Event{Tag: "BlockRemoved", Kind: event.Removed, BlockHashes: h}
}

func requireVerdict(t *testing.T, n *wire.Normalizer, e *wire.Event, want wire.Verdict) event.Event {
	t.Helper()
	ev, verdict := n.Normalize(e, 1, 0)
	require.Equal(t, want, verdict, "%+v", e)
	requireConsistent(t, ev, verdict)
	return ev
}

func requireConsistent(t *testing.T, ev event.Event, v wire.Verdict) {
	t.Helper()
	if v != wire.Keep {
		require.Equal(t, event.Event{}, ev)
	}
}

func TestVerdicts(t *testing.T) {
	set := func(f func(*wire.Event)) *wire.Event { return stored(1, 2, f) }
	for name, c := range map[string]struct {
		event *wire.Event
		want  wire.Verdict
	}{
		"plain":                 {stored(1, 2), wire.Keep},
		"below a parent":        {stored(1, 2, under(9)), wire.Keep},
		"local":                 {set(func(e *wire.Event) { e.Locality = "LOCAL" }), wire.Keep},
		"lora":                  {set(func(e *wire.Event) { e.HasLoRAID, e.LoRAID, e.LoRAName = true, 7, "a" }), wire.Keep},
		"lora id 0":             {set(func(e *wire.Event) { e.HasLoRAID = true }), wire.Keep},
		"lora by number":        {set(func(e *wire.Event) { e.HasLoRAID, e.LoRAID = true, 7 }), wire.UnnamedLoRA},
		"kvcr":                  {set(func(e *wire.Event) { e.Ownership = "kvcr" }), wire.UnsupportedOwnership},
		"foreign owner":         {set(func(e *wire.Event) { e.Ownership = "tier0" }), wire.UnknownOwnership},
		"remote":                {set(func(e *wire.Event) { e.Locality = "REMOTE" }), wire.NonLocalLocality},
		"unknown locality":      {set(func(e *wire.Event) { e.Locality = "local" }), wire.NonLocalLocality},
		"unknown medium":        {set(func(e *wire.Event) { e.Medium = "FS" }), wire.UnknownMedium},
		"medium in lower case":  {set(func(e *wire.Event) { e.Medium = "cpu" }), wire.UnknownMedium},
		"opaque":                {set(func(e *wire.Event) { e.Opaque = true }), wire.UnknownExtraKeys},
		"no blocks":             {stored(1, 0), wire.NoBlocks},
		"no blocks, but tokens": {set(func(e *wire.Event) { e.BlockHashes = nil }), wire.NoBlocks},
		"a block twice":         {set(func(e *wire.Event) { e.BlockHashes[1] = e.BlockHashes[0] }), wire.DuplicateBlock},
		"own parent":            {stored(1, 1, under(1)), wire.DuplicateBlock},
		"own parent later":      {stored(1, 3, under(3)), wire.DuplicateBlock},
		"window kind":           {set(func(e *wire.Event) { e.SpecKind = "sliding_window" }), wire.NonMainAttention},
		"unknown kind":          {set(func(e *wire.Event) { e.SpecKind = "new_attention" }), wire.UnknownKind},
		"main kind":             {set(func(e *wire.Event) { e.SpecKind = "mla_attention" }), wire.Keep},
		"group 0":               {set(func(e *wire.Event) { e.HasGroup = true }), wire.Keep},
		"group 1":               {set(func(e *wire.Event) { e.HasGroup, e.GroupIdx = true, 1 }), wire.UnlearnedGroup},
		"removed":               {removed(1, 1), wire.Keep},
		"cleared":               {&wire.Event{Kind: event.Cleared}, wire.Keep},
		"cleared elsewhere":     {&wire.Event{Kind: event.Cleared, Ownership: "kvcr"}, wire.UnsupportedOwnership},
	} {
		ev, verdict := wire.NewNormalizer(2).Normalize(c.event, 1, 0)
		require.Equal(t, c.want, verdict, name)
		requireConsistent(t, ev, verdict)
	}
}

// TestBlockSizesThatDiffer checks that blocks which are not the router's, or whose tokens are in doubt, are left out by
// name and never matched. https://github.com/ai-dynamo/dynamo/issues/1232 https://github.com/ai-dynamo/dynamo/pull/14673
func TestBlockSizesThatDiffer(t *testing.T) {
	tokens := make([]uint32, 128)
	for name, c := range map[string]struct {
		size           uint32
		blocks, tokens int
		bigram         bool
		want           wire.Verdict
	}{
		"the router's":                   {16, 2, 32, false, wire.Keep},
		"64":                             {64, 2, 128, false, wire.WrongBlockSize},
		"1":                              {1, 16, 16, false, wire.WrongBlockSize},
		"0":                              {0, 2, 32, false, wire.WrongBlockSize},
		"a partial block":                {7, 1, 7, false, wire.WrongBlockSize},
		"not a multiple":                 {16, 2, 40, false, wire.TokenCount},
		"a token too few":                {16, 2, 31, false, wire.TokenCount},
		"masked blocks left out":         {16, 2, 64, false, wire.TokenCount},
		"more blocks than tokens":        {16, 3, 32, false, wire.TokenCount},
		"placeholder without tokens":     {0, 1, 0, false, wire.TokenCount},
		"placeholder of the right size":  {16, 1, 0, false, wire.TokenCount},
		"pairs":                          {16, 2, 33, true, wire.Keep},
		"pairs of one position too few":  {16, 2, 32, true, wire.TokenCount},
		"pairs of one position too many": {16, 2, 34, true, wire.TokenCount},
	} {
		e := &wire.Event{Kind: event.Stored, BlockSize: c.size, TokenIDs: tokens[:c.tokens], Bigram: c.bigram}
		for i := range c.blocks {
			e.BlockHashes = append(e.BlockHashes, block.EngineHash(i))
		}
		ev, verdict := wire.NewNormalizer(16).Normalize(e, 1, 0)
		require.Equal(t, c.want, verdict, name)
		requireConsistent(t, ev, verdict)
	}
}

func TestTiers(t *testing.T) {
	for tier, mediums := range map[event.Tier][]string{
		event.Device:     {"", "GPU", "DEVICE"},
		event.HostPinned: {"CPU", "CPU_PINNED", "CPU_TIER1"},
		event.Disk:       {"CPU_TIER2", "DISK", "NVME", "STORAGE"},
		event.External:   {"EXTERNAL", "NETWORK", "REMOTE", "SHARED"},
	} {
		for _, medium := range mediums {
			e := stored(1, 1, func(e *wire.Event) { e.Medium = medium })
			require.Equal(t, tier, requireVerdict(t, wire.NewNormalizer(2), e, wire.Keep).Tier, medium)
			e = removed(1)
			e.Medium = medium
			require.Equal(t, tier, requireVerdict(t, wire.NewNormalizer(2), e, wire.Keep).Tier, medium)
		}
	}
}

// TestGroupsAreLearnt checks that only groups which cover whole prefixes count, though removals do not say which they are.
func TestGroupsAreLearnt(t *testing.T) {
	n := wire.NewNormalizer(2)
	group := func(e *wire.Event, idx uint32, kind string) *wire.Event {
		e.HasGroup, e.GroupIdx, e.SpecKind = true, idx, kind
		return e
	}
	requireVerdict(t, n, group(removed(1), 1, ""), wire.UnlearnedGroup)
	requireVerdict(t, n, group(removed(1), 0, ""), wire.Keep)
	requireVerdict(t, n, group(stored(1, 1), 1, "full_attention"), wire.Keep)
	requireVerdict(t, n, group(stored(1, 1), 0, "mamba"), wire.NonMainAttention)
	requireVerdict(t, n, group(stored(1, 1), 2, "new"), wire.UnknownKind)
	requireVerdict(t, n, group(removed(1), 1, ""), wire.Keep)
	requireVerdict(t, n, group(removed(1), 0, ""), wire.NonMainAttention)
	requireVerdict(t, n, group(removed(1), 2, ""), wire.UnknownKind)
	_, verdict := n.Normalize(group(removed(1), 1, ""), 1, 3)
	require.Equal(t, wire.UnlearnedGroup, verdict, "another rank's group")
	disk := group(removed(1), 0, "")
	disk.Medium = "DISK"
	requireVerdict(t, n, disk, wire.Keep)
	n.Reset()
	requireVerdict(t, n, group(removed(1), 0, ""), wire.Keep)
}

// TestGroupsBeyondTheBound checks that what could not be removed again is not stored.
func TestGroupsBeyondTheBound(t *testing.T) {
	n := wire.NewNormalizer(2)
	group := func(e *wire.Event, i uint32) *wire.Event {
		e.HasGroup, e.GroupIdx = true, i
		return e
	}
	kept := 0
	for i := uint32(1); i <= 2000; i++ {
		e := group(stored(1, 1), i)
		e.SpecKind = "full_attention"
		_, storing := n.Normalize(e, 1, 0)
		_, removing := n.Normalize(group(removed(1), i), 1, 0)
		require.Equal(t, storing, removing, "group %d", i)
		if storing == wire.Keep {
			kept++
		}
	}
	require.Equal(t, 1024, kept)
}

func hashOf(t *testing.T, e *wire.Event, id *block.Identity) block.Hash {
	t.Helper()
	return block.Hashes(nil, e.TokenIDs, 2, id)[0]
}

// TestSaltIsInherited checks that a prompt's cache salt reaches the blocks below its first event, and nothing else.
func TestSaltIsInherited(t *testing.T) {
	n := wire.NewNormalizer(2)
	root, child, other := stored(1, 2, rootSalt("s")), stored(3, 1, under(2)), stored(9, 1)
	id := &block.Identity{CacheSalt: "s"}
	require.Equal(t, hashOf(t, root, id), requireVerdict(t, n, root, wire.Keep).Blocks[0].Hash)
	require.Equal(t, hashOf(t, other, nil), requireVerdict(t, n, other, wire.Keep).Blocks[0].Hash)
	require.Equal(t, hashOf(t, child, id), requireVerdict(t, n, child, wire.Keep).Blocks[0].Hash)
	grandchild := stored(4, 1, under(3))
	require.Equal(t, hashOf(t, grandchild, id), requireVerdict(t, n, grandchild, wire.Keep).Blocks[0].Hash)

	ev, verdict := n.Normalize(child, 1, 7)
	require.Equal(t, wire.Keep, verdict)
	require.Equal(t, hashOf(t, child, nil), ev.Blocks[0].Hash, "another rank's parent")

	requireVerdict(t, n, removed(3), wire.Keep)
	require.Equal(t, hashOf(t, grandchild, nil), requireVerdict(t, n, grandchild, wire.Keep).Blocks[0].Hash, "unknown parent")

	requireVerdict(t, n, &wire.Event{Kind: event.Cleared}, wire.Keep)
	require.Equal(t, hashOf(t, child, nil), requireVerdict(t, n, child, wire.Keep).Blocks[0].Hash, "after a clear")
}

func TestConflictingSaltsAreAmbiguous(t *testing.T) {
	n := wire.NewNormalizer(2)
	requireVerdict(t, n, stored(1, 1, rootSalt("s")), wire.Keep)
	requireVerdict(t, n, stored(1, 1, rootSalt("t")), wire.Keep)
	requireVerdict(t, n, stored(2, 1, under(1)), wire.AmbiguousCacheNamespace)
	requireVerdict(t, n, removed(1), wire.Keep)
	requireVerdict(t, n, stored(2, 1, under(1)), wire.AmbiguousCacheNamespace)
	explicit := stored(2, 1, under(1), func(e *wire.Event) { e.CacheSalt = "u" })
	require.Equal(t, hashOf(t, explicit, &block.Identity{CacheSalt: "u"}), requireVerdict(t, n, explicit, wire.Keep).Blocks[0].Hash)
	n.Reset()
	requireVerdict(t, n, stored(2, 1, under(1)), wire.Keep)
}

// TestSaltOfTheEventIsItsOwn checks that where events carry their salt, one without it is unsalted.
func TestSaltOfTheEventIsItsOwn(t *testing.T) {
	n := wire.NewNormalizer(2)
	requireVerdict(t, n, stored(1, 1, func(e *wire.Event) { e.CacheSalt = "s" }), wire.Keep)
	child := stored(2, 1, under(1))
	require.Equal(t, hashOf(t, child, nil), requireVerdict(t, n, child, wire.Keep).Blocks[0].Hash)
}

func TestExtraKeysAreIdentity(t *testing.T) {
	digest := "00000000000000070000000000000000000000000000000000000000000000ab"
	for name, c := range map[string]struct {
		keys    any
		more    m
		want    block.Identity
		verdict wire.Verdict
	}{
		"none":               {[]any{nil, nil}, nil, block.Identity{}, wire.Keep},
		"salt of Dynamo":     {[]any{[]any{"dynamo-cache-salt:s"}, nil}, nil, block.Identity{CacheSalt: "s"}, wire.Keep},
		"empty salt":         {[]any{[]any{"dynamo-cache-salt:"}}, nil, block.Identity{}, wire.Keep},
		"salt of vLLM":       {[]any{[]any{"s"}}, nil, block.Identity{CacheSalt: "s"}, wire.Keep},
		"adapter":            {[]any{[]any{"a"}, []any{"a"}}, m{"lora_name": "a"}, block.Identity{LoRAName: "a"}, wire.Keep},
		"adapter and salt":   {[]any{[]any{"a", "s"}, []any{"a"}}, m{"lora_name": "a"}, block.Identity{LoRAName: "a", CacheSalt: "s"}, wire.Keep},
		"adapter named salt": {[]any{[]any{"a", "a"}}, m{"lora_name": "a"}, block.Identity{LoRAName: "a", CacheSalt: "a"}, wire.Keep},
		"own salt wins":      {[]any{[]any{"dynamo-cache-salt:t"}}, m{"cache_salt": "s"}, block.Identity{CacheSalt: "s"}, wire.Keep},
		"object":             {[]any{nil, []any{[]any{digest, 3}}}, nil, block.Identity{MM: [][]uint64{nil, {7}}}, wire.Keep},
		"bare object":        {[]any{[]any{digest}, []any{digest, digest}}, nil, block.Identity{MM: [][]uint64{{7}, {7, 7}}}, wire.Keep},
		"object and salt":    {[]any{[]any{[]any{digest, -1}, "s"}}, nil, block.Identity{CacheSalt: "s", MM: [][]uint64{{7}}}, wire.Keep},
		"infos win":          {[]any{[]any{digest}}, m{"block_mm_infos": []any{m{"mm_objects": []any{m{"mm_hash": 9}}}}}, block.Identity{MM: [][]uint64{{9}}}, wire.Keep},
		"two strings":        {[]any{[]any{"s", "t"}}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"string later":       {[]any{nil, []any{"s"}}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"string below":       {[]any{[]any{"s"}}, m{"parent_block_hash": 5}, block.Identity{}, wire.UnknownExtraKeys},
		"bytes":              {[]any{[]any{[]byte("embedding")}}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"a number":           {[]any{[]any{1}}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"a triple":           {[]any{[]any{[]any{"x", 1, 2}}}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"no list":            {[]any{"x"}, nil, block.Identity{}, wire.UnknownExtraKeys},
		"mm_keys":            {nil, m{"mm_keys": []any{"x"}}, block.Identity{}, wire.UnknownExtraKeys},
		"empty mm_keys":      {nil, m{"mm_keys": []any{}}, block.Identity{}, wire.Keep},
	} {
		e := m{"type": "BlockStored", "block_hashes": []any{1, 2}, "token_ids": []int{1, 2, 3, 4}, "block_size": 2, "extra_keys": c.keys}
		for k, v := range c.more {
			e[k] = v
		}
		b := decode(t, batchOf(t, e))
		require.NoError(t, b.Events[0].Err, name)
		ev, verdict := wire.NewNormalizer(2).Normalize(&b.Events[0], 1, 0)
		require.Equal(t, c.verdict, verdict, name)
		if verdict != wire.Keep {
			continue
		}
		for i, h := range block.Hashes(nil, []uint32{1, 2, 3, 4}, 2, &c.want) {
			require.Equal(t, h, ev.Blocks[i].Hash, "%s: block %d", name, i)
		}
	}
}

// TestEaglePairsHashAsWindows checks that pairs give the hashes of an EAGLE request.
func TestEaglePairsHashAsWindows(t *testing.T) {
	b := decode(t, batchOf(t, []any{"BlockStored", []any{1, 2}, nil, []any{[]int{5, 6}, []int{6, 7}, []int{7, 8}, []int{8, 9}}, 2}))
	require.Equal(t, []uint32{5, 6, 7, 8, 9}, b.Events[0].TokenIDs)
	ev := requireVerdict(t, wire.NewNormalizer(2), &b.Events[0], wire.Keep)
	want := block.Hashes(nil, []uint32{5, 6, 7, 8, 9}, 2, &block.Identity{Eagle: true})
	require.Equal(t, []event.Block{{Engine: 1, Hash: want[0]}, {Engine: 2, Hash: want[1]}}, ev.Blocks)
}
