package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

type m = map[string]any

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	require.NoError(t, err)
	return b
}

// batchOf packs events as a batch of rank 0.
func batchOf(t testing.TB, events ...any) []byte {
	t.Helper()
	return pack(t, []any{1.5, append([]any{}, events...), 0})
}

func decode(t testing.TB, payload []byte) *wire.Batch {
	t.Helper()
	b, err := wire.DecodeBatch(payload, wire.Limits{})
	require.NoError(t, err, "%x", payload)
	return b
}

func TestBatchShapes(t *testing.T) {
	cleared := []any{"AllBlocksCleared"}
	events := []any{cleared}
	for name, c := range map[string]struct {
		payload any
		rank    uint32
		known   bool
	}{
		"two elements":     {[]any{1.5, events}, 0, false},
		"nil rank":         {[]any{1.5, events, nil}, 0, false},
		"rank":             {[]any{1.5, events, 7}, 7, true},
		"signed rank":      {[]any{1.5, events, int32(-1)}, math.MaxUint32, true},
		"more elements":    {[]any{1.5, events, 7, "x", []any{m{}}}, 7, true},
		"map":              {m{"ts": 1.5, "events": events, "data_parallel_rank": 7, "new": []any{1}}, 7, true},
		"map of SGLang":    {m{"ts": 1.5, "events": events, "attn_dp_rank": 7}, 7, true},
		"map without rank": {m{"ts": 1.5, "events": events}, 0, false},
		"map with odd key": {map[any]any{"ts": 1.5, "events": events, 3: 4}, 0, false},
	} {
		want := &wire.Batch{TS: 1.5, HasRank: c.known, DPRank: c.rank, Events: []wire.Event{{Tag: "AllBlocksCleared", Kind: event.Cleared}}}
		require.Equal(t, want, decode(t, pack(t, c.payload)), name)
	}
	require.EqualValues(t, 3, decode(t, pack(t, []any{3, []any{}, 0})).TS)
}

func TestRefusesWhatIsNoBatch(t *testing.T) {
	deep := append(bytes.Repeat([]byte{0x91}, 1<<20), 0xc0)
	for name, payload := range map[string][]byte{
		"nothing":          {},
		"a number":         {1},
		"nil":              {0xc0},
		"no elements":      {0x90},
		"one element":      {0x91, 1},
		"ts a string":      pack(t, []any{"x", []any{}}),
		"events no array":  pack(t, []any{1, m{}}),
		"events nil":       pack(t, []any{1, nil}),
		"rank a string":    pack(t, []any{1, []any{}, "0"}),
		"rank too large":   pack(t, []any{1, []any{}, uint64(1) << 32}),
		"rank too small":   pack(t, []any{1, []any{}, int64(-1) << 32}),
		"map, no events":   pack(t, m{"ts": 1}),
		"trailing bytes":   append(batchOf(t), 0),
		"the unused code":  {0x92, 1, 0x91, 0xc1},
		"deep nesting":     deep,
		"huge array":       {0x92, 1, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"huge map":         {0xdf, 0xff, 0xff, 0xff, 0xff},
		"huge string":      {0x92, 1, 0x91, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff, 'a'},
		"huge bytes":       {0x92, 1, 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff},
		"huge extension":   {0x92, 1, 0x91, 0xc9, 0xff, 0xff, 0xff, 0xff, 0},
		"many huge arrays": bytes.Repeat([]byte{0xdd, 0, 0, 0xff, 0xff}, 1000),
		"cut length":       {0xdd, 0, 0},
	} {
		b, err := wire.DecodeBatch(payload, wire.Limits{})
		require.ErrorIs(t, err, wire.ErrPayload, name)
		require.Nil(t, b, name)
	}
	valid := batchOf(t, m{"type": "BlockStored", "block_hashes": []uint64{1}, "token_ids": []int{1, 2}, "block_size": 2})
	for n := range valid {
		_, err := wire.DecodeBatch(valid[:n], wire.Limits{})
		require.ErrorIs(t, err, wire.ErrPayload, "cut at %d", n)
	}
}

func TestLimits(t *testing.T) {
	payload := batchOf(t, []any{"AllBlocksCleared"}, []any{"AllBlocksCleared"})
	for _, lim := range []wire.Limits{{MaxEvents: 1}, {MaxBytes: len(payload) - 1}} {
		_, err := wire.DecodeBatch(payload, lim)
		require.ErrorIs(t, err, wire.ErrPayload)
	}
	_, err := wire.DecodeBatch(payload, wire.Limits{MaxEvents: 2, MaxBytes: len(payload)})
	require.NoError(t, err)
}

// TestUndecodableEventLeavesItsNeighbours puts every kind of bad event between two good ones.
func TestUndecodableEventLeavesItsNeighbours(t *testing.T) {
	stored := func(change m) m {
		e := m{"type": "BlockStored", "block_hashes": []any{uint64(1)}, "token_ids": []any{1, 2}, "block_size": 2}
		for k, v := range change {
			if e[k] = v; v == "absent" {
				delete(e, k)
			}
		}
		return e
	}
	good := []any{"BlockRemoved", []any{9}}
	for name, c := range map[string]struct {
		bad  any
		tag  string
		kind event.Kind
	}{
		"a number":              {7, "", 0},
		"nil":                   {nil, "", 0},
		"empty array":           {[]any{}, "", 0},
		"empty map":             {m{}, "", 0},
		"tag a number":          {[]any{1, 2}, "", 0},
		"map tag a number":      {m{"type": 3, "block_hashes": []any{}}, "", 0},
		"no fields":             {[]any{"BlockStored"}, "BlockStored", event.Stored},
		"three fields":          {[]any{"BlockStored", []any{1}, nil, []any{1}}, "BlockStored", event.Stored},
		"removed, no hashes":    {[]any{"BlockRemoved"}, "BlockRemoved", event.Removed},
		"removed, bad hash":     {[]any{"BlockRemoved", []any{1, "x"}}, "BlockRemoved", event.Removed},
		"removed, short hash":   {m{"block_hashes": []any{[]byte("1234567")}, "type": "BlockRemoved"}, "BlockRemoved", event.Removed},
		"removed, hashes a map": {m{"type": "BlockRemoved", "block_hashes": m{}}, "BlockRemoved", event.Removed},
		"cleared, bad owner":    {m{"type": "AllBlocksCleared", "ownership": 3}, "AllBlocksCleared", event.Cleared},
		"string tokens":         {stored(m{"token_ids": []any{"a", "b"}}), "BlockStored", event.Stored},
		"negative token":        {stored(m{"token_ids": []any{1, -1}}), "BlockStored", event.Stored},
		"large token":           {stored(m{"token_ids": []any{1, uint64(1) << 32}}), "BlockStored", event.Stored},
		"float token":           {stored(m{"token_ids": []any{1, 2.0}}), "BlockStored", event.Stored},
		"nil tokens":            {stored(m{"token_ids": nil}), "BlockStored", event.Stored},
		"triples":               {stored(m{"token_ids": []any{[]int{1, 2, 3}}}), "BlockStored", event.Stored},
		"pairs, then tokens":    {stored(m{"token_ids": []any{[]int{1, 2}, 3}}), "BlockStored", event.Stored},
		"tokens, then pairs":    {stored(m{"token_ids": []any{1, []int{1, 2}}}), "BlockStored", event.Stored},
		"disjoint pairs":        {stored(m{"token_ids": []any{[]int{1, 2}, []int{3, 4}}}), "BlockStored", event.Stored},
		"float hash":            {stored(m{"block_hashes": []any{1.0}}), "BlockStored", event.Stored},
		"bad parent":            {stored(m{"parent_block_hash": "x"}), "BlockStored", event.Stored},
		"short parent":          {stored(m{"parent_block_hash": []byte{1}}), "BlockStored", event.Stored},
		"negative block size":   {stored(m{"block_size": -1}), "BlockStored", event.Stored},
		"large block size":      {stored(m{"block_size": uint64(1) << 32}), "BlockStored", event.Stored},
		"no block size":         {stored(m{"block_size": "absent"}), "BlockStored", event.Stored},
		"no tokens":             {stored(m{"token_ids": "absent"}), "BlockStored", event.Stored},
		"bad group":             {stored(m{"group_idx": "x"}), "BlockStored", event.Stored},
		"bad salt":              {stored(m{"cache_salt": 1}), "BlockStored", event.Stored},
		"bad extra keys":        {stored(m{"extra_keys": "x"}), "BlockStored", event.Stored},
		"bad objects":           {stored(m{"block_mm_infos": []any{m{"mm_objects": 1}}}), "BlockStored", event.Stored},
		"bad object hash":       {stored(m{"block_mm_infos": []any{m{"mm_objects": []any{m{"mm_hash": "x"}}}}}), "BlockStored", event.Stored},
	} {
		b := decode(t, batchOf(t, good, c.bad, good))
		require.Len(t, b.Events, 3, name)
		require.ErrorIs(t, b.Events[1].Err, wire.ErrEvent, name)
		require.Equal(t, wire.Event{Tag: c.tag, Kind: c.kind, Err: b.Events[1].Err}, b.Events[1], name)
		for _, i := range []int{0, 2} {
			require.Equal(t, wire.Event{Tag: "BlockRemoved", Kind: event.Removed, BlockHashes: []block.EngineHash{9}}, b.Events[i], name)
		}
		_, verdict := wire.NewNormalizer(2).Normalize(&b.Events[1], 0, 0)
		require.Equal(t, wire.Undecodable, verdict, name)
	}
}

func TestUnknownTagsFieldsAndElementsAreSkipped(t *testing.T) {
	b := decode(t, batchOf(t,
		[]any{"BlockMoved", []any{m{"a": []any{1}}}},
		m{"x": 1, "type": "Ignored"},
		map[any]any{7: []any{1}, "future": m{"a": 1}, "block_hashes": []any{5}, "type": "BlockRemoved"},
		[]any{"BlockRemoved", []any{5}, "GPU", nil, nil, nil, nil, nil, "x", m{}},
		[]any{"BlockRemoved", []any{5}, "GPU", "future", m{"a": 1}},
		[]any{"AllBlocksCleared", nil, 1, 2},
	))
	removed := wire.Event{Tag: "BlockRemoved", Kind: event.Removed, BlockHashes: []block.EngineHash{5}}
	onGPU := removed
	onGPU.Medium = "GPU"
	require.Equal(t, []wire.Event{
		{Tag: "BlockMoved"}, {Tag: "Ignored"}, removed, onGPU, onGPU, {Tag: "AllBlocksCleared", Kind: event.Cleared},
	}, b.Events)
	_, verdict := wire.NewNormalizer(2).Normalize(&b.Events[0], 0, 0)
	require.Equal(t, wire.UnknownTag, verdict)
}

// TestArrayTailByPosition checks the fields vLLM and Dynamo appended to the array form, in both of their layouts.
func TestArrayTailByPosition(t *testing.T) {
	head := []any{"BlockStored", []any{1}, nil, []any{1, 2}, 2, nil, "GPU", "a", nil}
	infos := []any{m{"mm_objects": []any{m{"mm_hash": uint64(7), "offsets": []any{[]int{0, 1}}}, m{"mm_hash": 8}}}}
	full := wire.Event{Tag: "BlockStored", Kind: event.Stored, BlockHashes: []block.EngineHash{1}, TokenIDs: []uint32{1, 2}, BlockSize: 2,
		Medium: "GPU", LoRAName: "a", HasGroup: true, GroupIdx: 3, SpecKind: "mamba", Locality: "REMOTE", Ownership: "kvcr"}
	withInfos := full
	withInfos.MM = [][]uint64{{7, 8}}
	bare := full
	bare.HasGroup, bare.GroupIdx, bare.SpecKind, bare.Locality, bare.Ownership = false, 0, "", "", ""
	for name, c := range map[string]struct {
		tail []any
		want wire.Event
	}{
		"none":        {nil, bare},
		"nils":        {[]any{nil, nil, 4096, nil, nil}, bare},
		"fixed":       {[]any{3, "mamba", nil, "REMOTE", "kvcr", "future"}, full},
		"infos first": {[]any{infos, 3, "mamba", 4096, "REMOTE", "kvcr"}, withInfos},
	} {
		require.Equal(t, c.want, decode(t, batchOf(t, append(head[:9:9], c.tail...))).Events[0], name)
	}
}

// TestHashFormsNameOneBlock checks every form a block hash has had: unsigned, signed, and byte strings, of which the last
// 8 bytes count. https://github.com/ai-dynamo/dynamo/issues/3169 https://github.com/vllm-project/vllm/issues/26264
func TestHashFormsNameOneBlock(t *testing.T) {
	digest := bytes.Repeat([]byte{0xab}, 32)
	copy(digest[24:], []byte{1, 2, 3, 4, 5, 6, 7, 8})
	other := bytes.Clone(digest)
	other[0] = 0
	for _, c := range []struct {
		hash any
		want block.EngineHash
	}{
		{uint64(13360216285664366642), 13360216285664366642},
		{int64(-1), math.MaxUint64}, {uint64(math.MaxUint64), math.MaxUint64},
		{int64(math.MinInt64), 1 << 63}, {uint64(1) << 63, 1 << 63},
		{0, 0}, {int8(-128), math.MaxUint64 - 127}, {int16(-129), math.MaxUint64 - 128}, {int32(math.MinInt32), math.MaxUint64 - 1<<31 + 1},
		{digest, 0x0102030405060708}, {other, 0x0102030405060708}, {digest[24:], 0x0102030405060708}, {uint64(0x0102030405060708), 0x0102030405060708},
	} {
		b := decode(t, batchOf(t,
			[]any{"BlockStored", []any{c.hash}, c.hash, []any{}, 16},
			m{"type": "BlockRemoved", "block_hashes": []any{c.hash, c.hash}}))
		require.Equal(t, []block.EngineHash{c.want}, b.Events[0].BlockHashes, "%v", c.hash)
		require.Equal(t, c.want, b.Events[0].Parent, "%v", c.hash)
		require.Equal(t, []block.EngineHash{c.want, c.want}, b.Events[1].BlockHashes, "%v", c.hash)
	}
}

// TestHashChainsOfTheEngines checks that vLLM's integer form of a hash and its full digest are one name.
func TestHashChainsOfTheEngines(t *testing.T) {
	for _, name := range []string{"hashes_seed0.json", "hashes_noseed.json"} {
		data, err := os.ReadFile(filepath.Join(goldenDir, name))
		require.NoError(t, err)
		var file map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &file))
		compared := 0
		for release, raw := range file {
			var algorithms map[string]struct {
				Full []string `json:"full"`
				Ints []string `json:"event_int"`
			}
			if !strings.HasPrefix(release, "vllm-") || json.Unmarshal(raw, &algorithms) != nil {
				continue
			}
			for _, a := range algorithms {
				if len(a.Ints) != len(a.Full) {
					continue // a release without the integer form
				}
				for i, digest := range unhex(t, a.Full) {
					n, err := strconv.ParseUint(a.Ints[i], 10, 64)
					require.NoError(t, err)
					b := decode(t, batchOf(t, []any{"BlockRemoved", []any{digest, n}}))
					require.Equal(t, []block.EngineHash{block.EngineHash(n), block.EngineHash(n)}, b.Events[0].BlockHashes)
					compared++
				}
			}
		}
		require.Greater(t, compared, 20, name)
	}
}

// TestParentIsOfTheFirstBlockOnly checks what a store says about its chain: the parent precedes the first block, and no
// block loses its place. https://github.com/ai-dynamo/dynamo/pull/671
func TestParentIsOfTheFirstBlockOnly(t *testing.T) {
	b := decode(t, batchOf(t,
		m{"type": "BlockStored", "block_hashes": []any{1, 2, 3}, "parent_block_hash": nil, "token_ids": []int{11, 12, 21, 22, 31, 32}, "block_size": 2},
		m{"type": "BlockStored", "block_hashes": []any{4}, "parent_block_hash": 2, "token_ids": []int{41, 42}, "block_size": 2}))
	n := wire.NewNormalizer(2)
	first, verdict := n.Normalize(&b.Events[0], 5, 1)
	require.Equal(t, wire.Keep, verdict)
	hashes := block.Hashes(nil, []uint32{11, 12, 21, 22, 31, 32, 41, 42}, 2, nil)
	require.Equal(t, event.Event{ID: 5, DPRank: 1, Kind: event.Stored,
		Blocks: []event.Block{{Engine: 1, Hash: hashes[0]}, {Engine: 2, Hash: hashes[1]}, {Engine: 3, Hash: hashes[2]}}}, first)
	second, verdict := n.Normalize(&b.Events[1], 6, 1)
	require.Equal(t, wire.Keep, verdict)
	require.Equal(t, event.Event{ID: 6, DPRank: 1, Kind: event.Stored, HasParent: true, Parent: 2,
		Blocks: []event.Block{{Engine: 4, Hash: hashes[3]}}}, second)
}

// hostile are payloads made to cost much: many tiny events, many tiny lists, deep values in skipped places.
func hostile(t testing.TB) map[string][]byte {
	array := func(n int, fill ...byte) []byte {
		return append([]byte{0xdd, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, bytes.Repeat(fill, n)...)
	}
	batch := func(events []byte) []byte { return append([]byte{0x92, 1}, events...) }
	event := func(key string, value []byte) []byte {
		e := append([]byte{0x84}, pack(t, "type")...)
		e = append(append(e, pack(t, "BlockStored")...), pack(t, key)...)
		e = append(append(e, value...), pack(t, "token_ids")...)
		return append(append(e, 0x90), append(pack(t, "block_size"), 16)...)
	}
	removed := append([]byte{0x92}, append(pack(t, "BlockRemoved"), 0x91, 1)...)
	return map[string][]byte{
		"numbers for events":    batch(array(wire.DefaultLimits.MaxEvents, 0)),
		"empty arrays":          batch(array(wire.DefaultLimits.MaxEvents, 0x90)),
		"arrays without tag":    batch(array(wire.DefaultLimits.MaxEvents, 0x91, 0)),
		"small removals":        batch(array(10000, removed...)),
		"too many events":       batch(array(4<<20, 0)),
		"a million hashes":      batch(append([]byte{0x91}, event("block_hashes", array(1<<20, 0))...)),
		"a million bad hashes":  batch(append([]byte{0x91}, event("block_hashes", array(1<<20, 0x90))...)),
		"a million extra keys":  batch(append([]byte{0x91}, event("extra_keys", array(1<<20, 0x91, 0xa1, 'x'))...)),
		"a million mm infos":    batch(append([]byte{0x91}, event("block_mm_infos", array(1<<20, 0x80))...)),
		"deep in an event":      batch(append([]byte{0x91}, event("future", append(bytes.Repeat([]byte{0x91}, 1<<20), 0))...)),
		"deep in known field":   batch(append([]byte{0x91}, event("extra_keys", append(bytes.Repeat([]byte{0x91}, 1<<20), 0))...)),
		"map16 and map32 heads": batch([]byte{0x92, 0xde, 0, 1, 0xa1, 'x', 0xdf, 0, 0, 0, 1, 0, 0, 0xdc, 0, 0}),
	}
}

// requireBounded decodes, and checks what that cost against the size of the payload.
func requireBounded(t *testing.T, payload []byte) (*wire.Batch, error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b, err := wire.DecodeBatch(payload, wire.Limits{})
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+600*len(payload)))
	return b, err
}

func TestHostilePayloadsAreBounded(t *testing.T) {
	for name, payload := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			b, err := requireBounded(t, payload)
			if err != nil {
				require.ErrorIs(t, err, wire.ErrPayload)
				return
			}
			require.NotEmpty(t, b.Events)
		})
	}
}

func FuzzDecodeBatch(f *testing.F) {
	for _, path := range captures(f) {
		for _, msg := range readCapture(f, path).Live {
			payload, err := hex.DecodeString(msg.Frames[2])
			require.NoError(f, err)
			f.Add(payload)
		}
	}
	for _, payload := range hostile(f) {
		if len(payload) < 1000 {
			f.Add(payload)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, err := requireBounded(t, payload)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrPayload)
			return
		}
		seq := uint64(3)
		for line := range bytes.Lines(b.AppendJSONLines(nil, &seq)) {
			require.True(t, json.Valid(line), "%s", line)
		}
		n := wire.NewNormalizer(16)
		for i := range b.Events {
			ev, verdict := n.Normalize(&b.Events[i], 1, 0)
			requireValid(t, &b.Events[i], ev, verdict)
		}
		requireRoundTrip(t, b)
		requireSameAgain(t, payload, b)
	})
}

// requireSameAgain decodes a payload into used memory, where it means the same.
func requireSameAgain(t *testing.T, payload []byte, want *wire.Batch) {
	t.Helper()
	var d wire.Decoder
	used, err := wire.EncodeBatch(&wire.Batch{TS: 9, HasRank: true, DPRank: 9, Events: []wire.Event{
		{Kind: event.Stored, BlockHashes: []block.EngineHash{9, 8}, TokenIDs: []uint32{9, 8, 7, 6}, BlockSize: 2, LoRAName: "used", HasParent: true, Parent: 7},
		{Kind: event.Removed, BlockHashes: []block.EngineHash{9, 8}, Medium: "CPU"},
	}})
	require.NoError(t, err)
	for range 2 {
		_, err = d.Decode(used, wire.Limits{})
		require.NoError(t, err)
		got, err := d.Decode(payload, wire.Limits{})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got))
	}
}

// FuzzNeighbours takes any value for an event, and checks that the one behind it is untouched.
func FuzzNeighbours(f *testing.F) {
	for _, path := range captures(f) {
		for _, msg := range readCapture(f, path).Live {
			payload, err := hex.DecodeString(msg.Frames[2])
			require.NoError(f, err)
			if len(payload) > 12 {
				f.Add(payload[11 : len(payload)-1]) // the first event, if it is the only one
			}
		}
	}
	neighbour := pack(f, []any{"BlockRemoved", []any{9}})
	f.Fuzz(func(t *testing.T, value []byte) {
		payload := append([]byte{0x92, 1, 0x92}, value...)
		b, err := wire.DecodeBatch(append(payload, neighbour...), wire.Limits{})
		if err != nil || len(b.Events) != 2 || msgpackEnd(value) != len(value) {
			return
		}
		require.Equal(t, wire.Event{Tag: "BlockRemoved", Kind: event.Removed, BlockHashes: []block.EngineHash{9}}, b.Events[1])
	})
}

// msgpackEnd is how many bytes the first value takes, by another decoder; -1 if there is none.
func msgpackEnd(b []byte) int {
	r := bytes.NewReader(b)
	if err := msgpack.NewDecoder(r).Skip(); err != nil {
		return -1
	}
	return len(b) - r.Len()
}

// requireValid checks what the rest of the library relies on.
func requireValid(t *testing.T, e *wire.Event, ev event.Event, v wire.Verdict) {
	t.Helper()
	if v != wire.Keep {
		require.Equal(t, event.Event{}, ev)
		return
	}
	require.NoError(t, e.Err)
	require.Equal(t, e.Kind, ev.Kind)
	if ev.Kind == event.Stored {
		require.NotEmpty(t, ev.Blocks)
		require.Len(t, ev.Blocks, len(e.BlockHashes))
		require.Len(t, ev.Blocks, block.Count(len(e.TokenIDs), 16, e.Bigram))
	}
}

// requireRoundTrip checks that encoding what was decoded, and decoding that, changes nothing.
func requireRoundTrip(t *testing.T, b *wire.Batch) {
	t.Helper()
	sendable := *b
	sendable.Events = []wire.Event{}
	for _, e := range b.Events {
		if e.Err != nil || e.Kind == 0 {
			continue
		}
		e.Opaque, e.SaltRoot = false, false // not sent
		sendable.Events = append(sendable.Events, e)
	}
	if math.IsNaN(sendable.TS) {
		sendable.TS = 0
	}
	payload, err := wire.EncodeBatch(&sendable)
	require.NoError(t, err)
	again, err := wire.DecodeBatch(payload, wire.Limits{})
	require.NoError(t, err)
	require.Equal(t, &sendable, again)
}

func TestGoldenRoundTrip(t *testing.T) {
	for _, path := range captures(t) {
		for _, msg := range readCapture(t, path).Live {
			requireRoundTrip(t, decode(t, unhex(t, msg.Frames)[2]))
		}
	}
}

// TestEncodesAsVLLM checks that what we publish is, byte for byte, what vLLM 0.26 to 0.29 publish for the same event.
func TestEncodesAsVLLM(t *testing.T) {
	compared := 0
	for _, release := range []string{"vllm-0.26.0-int", "vllm-0.29.0-int"} {
		for _, msg := range readCapture(t, filepath.Join(goldenDir, release+".json")).Live {
			payload := unhex(t, msg.Frames)[2]
			b := decode(t, payload)
			if strings.Contains(msg.Meaning, "extra_keys") || strings.Contains(msg.Meaning, "sliding_window") {
				continue // fields that EncodeBatch does not have
			}
			got, err := wire.EncodeBatch(b)
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(payload), hex.EncodeToString(got), "%s: %s", release, msg.Meaning)
			compared++
		}
	}
	require.Greater(t, compared, 20)
}

func TestEncodeRefuses(t *testing.T) {
	for _, e := range []wire.Event{{}, {Tag: "BlockMoved"}, {Kind: 9}, {Kind: event.Removed, Err: wire.ErrEvent}, {Kind: event.Stored, Bigram: true}} {
		_, err := wire.EncodeBatch(&wire.Batch{Events: []wire.Event{e}})
		require.ErrorIs(t, err, wire.ErrEncode, "%+v", e)
	}
}
