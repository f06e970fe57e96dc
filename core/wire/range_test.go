package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

type rangeGolden struct {
	query, answer []byte
	events        [][]byte // lists of events
}

func readRangeGolden(t testing.TB) (g rangeGolden) {
	data, err := os.ReadFile("../../testdata/golden/range/dynamo-1.6.1.json")
	require.NoError(t, err)
	var file struct {
		Query, Answer string
		Events        []string
	}
	require.NoError(t, json.Unmarshal(data, &file))
	decode := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	g.query, g.answer = decode(file.Query), decode(file.Answer)
	for _, e := range file.Events {
		g.events = append(g.events, decode(e))
	}
	return g
}

// asAnswer puts a list of events into an answer.
func asAnswer(events []byte, last uint64) []byte {
	out := appendMap(appendString(appendMap(nil, 1), nameEvents), 2)
	out = append(appendString(out, "events"), events...)
	return appendUint(appendString(out, "last_event_id"), last)
}

// Dynamo's own messages are read, and written byte for byte.
func TestRangeMessagesOfDynamo(t *testing.T) {
	g := readRangeGolden(t)
	rank := worker.Rank{ID: 15997081376206105757}
	q, err := DecodeRangeQuery(g.query)
	require.NoError(t, err)
	require.Equal(t, event.RangeQuery{WorkerID: rank.ID}, q)
	require.Equal(t, g.query, AppendRangeQuery(nil, &q))

	a, err := DecodeRangeAnswer(g.answer, rank)
	require.NoError(t, err)
	require.Equal(t, &event.RangeAnswer{Kind: event.RangeDump}, a)
	require.Equal(t, g.answer, AppendRangeAnswer(nil, rank.ID, a))

	require.Len(t, g.events, 2)
	const second = block.EngineHash(math.MaxUint64 - 2221) // -2222
	for i, want := range []event.Event{
		{ID: 1, Kind: event.Stored, Blocks: []event.Block{{Engine: 1111, Hash: 15310707395893867146}, {Engine: second, Hash: 15292316782987903195}}},
		{ID: 2, Kind: event.Removed, Removed: []block.EngineHash{second}},
	} {
		payload := asAnswer(g.events[i], 2)
		a, err := DecodeRangeAnswer(payload, rank)
		require.NoError(t, err)
		require.Equal(t, &event.RangeAnswer{Kind: event.RangeEvents, LastID: 2, Events: []event.Event{want}}, a)
		require.Equal(t, payload, AppendRangeAnswer(nil, rank.ID, a))
	}
}

func TestRangeQueriesComeBack(t *testing.T) {
	for _, q := range []event.RangeQuery{
		{WorkerID: math.MaxUint64, DPRank: math.MaxUint32, HasStart: true, Start: math.MaxUint64, HasEnd: true, End: 1 << 40},
		{HasStart: true},
		{HasEnd: true, End: 70_000},
	} {
		got, err := DecodeRangeQuery(AppendRangeQuery(nil, &q))
		require.NoError(t, err)
		require.Equal(t, q, got)
	}
	least, err := msgpack.Marshal(map[string]any{"dp_rank": 2, "worker_id": 1, "later": []int{1}})
	require.NoError(t, err)
	got, err := DecodeRangeQuery(least)
	require.NoError(t, err)
	require.Equal(t, event.RangeQuery{WorkerID: 1, DPRank: 2}, got)
}

func TestRangeQueriesThatAreRefused(t *testing.T) {
	for name, m := range map[string]any{
		"no worker":       map[string]any{"dp_rank": 1},
		"no rank":         map[string]any{"worker_id": 1},
		"a negative id":   map[string]any{"worker_id": -1, "dp_rank": 0},
		"a large rank":    map[string]any{"worker_id": 1, "dp_rank": uint64(1) << 32},
		"a text":          map[string]any{"worker_id": 1, "dp_rank": 0, "start_event_id": "1"},
		"another kind":    map[string]any{"worker_id": 1, "dp_rank": 0, "kind": "snapshot"},
		"kind of a map":   map[string]any{"worker_id": 1, "dp_rank": 0, "kind": map[string]any{"status": 1}},
		"no map":          5,
		"numbers as keys": map[int]int{1: 1},
		"a large one":     map[string]any{"worker_id": 1, "dp_rank": 0, "x": strings.Repeat("x", MaxRangeQueryBytes)},
	} {
		b, err := msgpack.Marshal(m)
		require.NoError(t, err)
		_, err = DecodeRangeQuery(b)
		require.ErrorIs(t, err, ErrRange, name)
	}
	_, err := DecodeRangeQuery(append(AppendRangeQuery(nil, &event.RangeQuery{}), 0))
	require.ErrorIs(t, err, ErrRange)
	_, err = DecodeRangeQuery(nil)
	require.ErrorIs(t, err, ErrRange)
}

func TestRangeAnswersComeBack(t *testing.T) {
	rank := worker.Rank{ID: 1 << 60, DPRank: 7}
	many := event.Event{ID: 3, DPRank: 7, Kind: event.Stored, Tier: event.Disk, HasParent: true, Parent: 1 << 63}
	for i := range 70_000 {
		many.Blocks = append(many.Blocks, event.Block{Engine: block.EngineHash(uint64(1) << (i % 64)), Hash: block.Hash(i)})
	}
	events := []event.Event{
		{ID: 1, DPRank: 7, Kind: event.Cleared},
		{ID: 2, DPRank: 7, Kind: event.Removed, Removed: []block.EngineHash{0, math.MaxUint64}},
		many,
	}
	for _, a := range []event.RangeAnswer{
		{Kind: event.RangeEvents, Events: events, LastID: math.MaxUint64},
		{Kind: event.RangeEvents},
		{Kind: event.RangeDump, Events: events, LastID: 9},
		{Kind: event.RangeDumpFailed, LastID: 4, Message: "why"},
		{Kind: event.RangeTooNew, HasStart: true, Start: 9, HasEnd: true, End: 8, Newest: 7},
		{Kind: event.RangeTooNew, Newest: 7},
		{Kind: event.RangeInvalid, HasStart: true, Start: 3, HasEnd: true, End: 2},
		{Kind: event.RangeError, Message: strings.Repeat("m", 300)},
	} {
		out := AppendRangeAnswer([]byte("x"), rank.ID, &a)[1:]
		var plain map[string]any
		require.NoError(t, msgpack.Unmarshal(out, &plain), "by another decoder")
		got, err := DecodeRangeAnswer(out, rank)
		require.NoError(t, err)
		require.Equal(t, &a, got)
	}
	_, err := DecodeRangeAnswer(AppendRangeAnswer(nil, 1, &event.RangeAnswer{}), rank)
	require.ErrorIs(t, err, ErrRange)
}

func TestRangeAnswersAreReadLenientlyWhereDynamoIs(t *testing.T) {
	type m = map[string]any
	rank := worker.Rank{ID: 1}
	stored := func(extra m) m {
		ev := m{"event_id": 5, "data": m{"stored": m{"blocks": []m{
			{"mm_extra_info": m{"mm_objects": []any{}}, "tokens_hash": 2, "block_hash": -1},
			{"tokens_hash": 4, "block_hash": 3},
		}}}}
		out := m{"event": ev, "worker_id": 1, "session_id": "s"}
		for k, v := range extra {
			out[k] = v
		}
		return out
	}
	decode := func(v any) (*event.RangeAnswer, error) {
		b, err := msgpack.Marshal(v)
		require.NoError(t, err)
		return DecodeRangeAnswer(b, rank)
	}
	answer := func(events ...m) m { return m{"Events": m{"events": events, "last_event_id": 5, "more": nil}} }
	a, err := decode(answer(stored(nil), stored(m{"residency_domain": "cache_owner"}), stored(m{"residency_domain": nil}), stored(m{"residency_domain": 4}),
		m{"worker_id": 1, "event": m{"event_id": 6, "data": "cleared"}, "residency_domain": "worker"}))
	require.NoError(t, err)
	require.Equal(t, 3, a.Skipped)
	require.Equal(t, []event.Event{
		{ID: 5, Kind: event.Stored, Blocks: []event.Block{{Engine: math.MaxUint64, Hash: 2}, {Engine: 3, Hash: 4}}},
		{ID: 6, Kind: event.Cleared},
	}, a.Events)

	for name, v := range map[string]any{
		"another worker":   stored(m{"worker_id": 2}),
		"another rank":     m{"worker_id": 1, "event": m{"event_id": 1, "data": "cleared", "dp_rank": 1}},
		"a skipped one's":  stored(m{"worker_id": 2, "residency_domain": "cache_owner"}),
		"a clear of other": m{"worker_id": 3, "event": m{"event_id": 1, "data": "cleared"}},
	} {
		_, err := decode(answer(v.(m)))
		require.ErrorIs(t, err, ErrForeign, name)
	}
	for name, v := range map[string]m{
		"no event":        {"worker_id": 1},
		"no worker":       {"event": m{"event_id": 1, "data": "cleared"}},
		"no data":         {"worker_id": 1, "event": m{"event_id": 1}},
		"no id":           {"worker_id": 1, "event": m{"data": "cleared"}},
		"another data":    {"worker_id": 1, "event": m{"event_id": 1, "data": "moved"}},
		"another map":     {"worker_id": 1, "event": m{"event_id": 1, "data": m{"moved": 1}}},
		"two kinds":       {"worker_id": 1, "event": m{"event_id": 1, "data": m{"removed": 1, "stored": 1}}},
		"a tier":          stored(m{"storage_tier": "tape"}),
		"no block hashes": {"worker_id": 1, "event": m{"event_id": 1, "data": m{"removed": m{}}}},
		"hashes of text":  {"worker_id": 1, "event": m{"event_id": 1, "data": m{"removed": m{"block_hashes": []string{"1"}}}}},
		"half a block":    {"worker_id": 1, "event": m{"event_id": 1, "data": m{"stored": m{"blocks": []m{{"block_hash": 1, "something_longer_than_it": 2}}}}}},
	} {
		_, err := decode(answer(v))
		require.ErrorIs(t, err, ErrRange, name)
		require.NotErrorIs(t, err, ErrForeign, name)
	}
	for name, v := range map[string]any{
		"two answers":    m{"Events": m{}, "TreeDump": m{}},
		"none":           m{},
		"another answer": m{"Status": m{"x": 1}},
		"no last":        m{"Events": m{"events": []any{}}},
		"no events":      m{"TreeDump": m{"last_event_id": 1}},
		"a list":         []int{1},
	} {
		_, err := decode(v)
		require.ErrorIs(t, err, ErrRange, name)
	}
	for _, scope := range []any{m{"domain": "worker"}, "some", nil, 3} {
		a, err = decode(m{"TreeDump": m{"events": []any{}, "last_event_id": 1, "reset_scope": scope}})
		require.NoError(t, err)
		require.Equal(t, event.RangeDumpFailed, a.Kind)
	}
	a, err = decode(m{"Error": strings.Repeat("e", 10_000)})
	require.NoError(t, err)
	require.Len(t, a.Message, maxMessage)
}

// A list that claims more than there is takes no memory.
func TestRangeAnswersThatClaimMuch(t *testing.T) {
	claim := func(data []byte) []byte {
		ev := appendUint(appendString(appendMap(nil, 2), "worker_id"), 1)
		ev = appendUint(appendString(appendMap(appendString(ev, "event"), 2), "event_id"), 1)
		return asAnswer(append(appendArray(nil, 1), append(appendString(ev, "data"), data...)...), 1)
	}
	blocks := appendArray(appendString(appendMap(appendString(appendMap(nil, 1), "stored"), 1), "blocks"), 1<<20)
	payload := claim(append(blocks, make([]byte, 1<<20)...))
	var err error
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err = DecodeRangeAnswer(payload, worker.Rank{ID: 1})
		}
	}).AllocedBytesPerOp()
	require.ErrorIs(t, err, ErrRange)
	require.Less(t, allocated, int64(64<<10))
}

func FuzzRangeAnswer(f *testing.F) {
	g := readRangeGolden(f)
	f.Add(g.answer)
	for _, ev := range g.events {
		f.Add(asAnswer(ev, 1))
	}
	rank := worker.Rank{ID: 15997081376206105757}
	for _, a := range []event.RangeAnswer{
		{Kind: event.RangeDumpFailed, Message: "m"}, {Kind: event.RangeTooNew, HasEnd: true, End: 300, Newest: 1 << 40}, {Kind: event.RangeInvalid, Start: 2, End: 1},
		{Kind: event.RangeError, Message: "m"}, {Kind: event.RangeDump, Events: []event.Event{{Kind: event.Cleared}, {Kind: event.Removed, Tier: event.Disk}}},
	} {
		f.Add(AppendRangeAnswer(nil, rank.ID, &a))
	}
	f.Add(bytes.Replace(asAnswer(g.events[0], 1), []byte(blockContent), []byte("\xabtokens_hasX"), 1))
	f.Fuzz(func(t *testing.T, payload []byte) {
		a, err := DecodeRangeAnswer(payload, rank)
		if err != nil {
			if !bytes.Contains([]byte(err.Error()), []byte(ErrForeign.Error())) {
				require.ErrorIs(t, err, ErrRange)
			}
			return
		}
		blocks := len(a.Events)
		for _, ev := range a.Events {
			blocks += len(ev.Blocks) + len(ev.Removed)
		}
		require.LessOrEqual(t, blocks, len(payload))
		a.Skipped = 0
		again, err := DecodeRangeAnswer(AppendRangeAnswer(nil, rank.ID, a), rank)
		require.NoError(t, err)
		for _, x := range []*event.RangeAnswer{a, again} { // what means nothing for its kind is not sent
			for i, ev := range x.Events {
				if ev.Kind == event.Stored && len(ev.Blocks) == 0 {
					x.Events[i].Blocks = nil
				}
				if len(ev.Removed) == 0 {
					x.Events[i].Removed = nil
				}
			}
			if x.Kind != event.RangeDumpFailed && x.Kind != event.RangeError {
				x.Message = ""
			}
			if x.Kind == event.RangeDumpFailed {
				x.Events = nil
			}
		}
		require.Equal(t, a, again)
	})
}

func FuzzRangeQuery(f *testing.F) {
	f.Add(readRangeGolden(f).query)
	f.Add(AppendRangeQuery(nil, &event.RangeQuery{HasStart: true, Start: 1 << 33, HasEnd: true}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		q, err := DecodeRangeQuery(payload)
		if err != nil {
			require.ErrorIs(t, err, ErrRange)
			return
		}
		again, err := DecodeRangeQuery(AppendRangeQuery(nil, &q))
		require.NoError(t, err)
		require.Equal(t, q, again)
	})
}

func BenchmarkRange(b *testing.B) {
	a := event.RangeAnswer{Kind: event.RangeDump}
	for i := range 1000 {
		ev := event.Event{ID: uint64(i), Kind: event.Stored}
		for k := range 100 {
			n := uint64(i*100+k) * 0x9e3779b97f4a7c15
			ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(n), Hash: block.Hash(n * 3)})
		}
		a.Events = append(a.Events, ev)
	}
	message := AppendRangeAnswer(nil, 1, &a)
	b.SetBytes(int64(len(message)))
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			dst = AppendRangeAnswer(dst[:0], 1, &a)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeRangeAnswer(message, worker.Rank{ID: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
