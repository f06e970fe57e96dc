package event_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

var samples = []event.Event{
	{ID: math.MaxUint64, DPRank: math.MaxUint32, Kind: event.Stored, HasParent: true, Parent: 0,
		Blocks: []event.Block{{Engine: math.MaxUint64, Hash: 1 << 63}, {Engine: 1<<53 + 1, Hash: 0}}},
	{ID: 0, Kind: event.Stored, Blocks: []event.Block{{Engine: 7, Hash: 8}}},
	{ID: 1, Kind: event.Stored},
	{ID: 2, DPRank: 3, Kind: event.Removed, Removed: []block.EngineHash{0, math.MaxUint64}},
	{ID: 3, Kind: event.Removed},
	{ID: 4, Kind: event.Cleared},
}

func TestKvCacheEventRoundTrip(t *testing.T) {
	for _, want := range samples {
		text := event.AppendKvCacheEvent(nil, &want)
		require.True(t, json.Valid(text), "%s", text)
		got, err := event.ParseKvCacheEvent(text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, want, got)
	}
}

// TestRouterEventHasDynamosShape pins the dump of Dynamo 1.6.1, byte for byte.
func TestRouterEventHasDynamosShape(t *testing.T) {
	re := event.RouterEvent{WorkerID: 1, Event: samples[1]}
	require.Equal(t, `{"worker_id":1,"storage_tier":"device","residency_domain":"worker","event":{"event_id":0,"data":`+
		`{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":7,"tokens_hash":8,"mm_extra_info":null}]}},`+
		`"dp_rank":0}}`, string(event.AppendRouterEvent(nil, &re)))
}

func TestRouterEventsRoundTrip(t *testing.T) {
	var want []event.RouterEvent
	text := []byte("[")
	for i, ev := range samples {
		ev.Tier = event.Tier(i % 4)
		want = append(want, event.RouterEvent{WorkerID: math.MaxUint64 - uint64(i), Event: ev})
		if i > 0 {
			text = append(text, " ,\n"...)
		}
		text = event.AppendRouterEvent(text, &want[i])
	}
	got, err := event.ParseRouterEvents(append(text, ']'))
	require.NoError(t, err)
	require.Equal(t, want, got)

	got, err = event.ParseRouterEvents([]byte(" [] "))
	require.NoError(t, err)
	require.Empty(t, got)
}

// TestForeignResidencyIsMarked checks that blocks of another owner spoil neither the list nor the index.
func TestForeignResidencyIsMarked(t *testing.T) {
	const form = `[{"worker_id":1,"residency_domain":%s,"event":{"event_id":1,"data":"cleared"}},
		{"worker_id":2,"event":{"event_id":1,"data":"cleared"}}]`
	for domain, want := range map[string]error{
		`"worker"`: nil, `"cache_owner"`: event.ErrResidency, `"moon"`: event.ErrResidency, `null`: event.ErrResidency, `{"a":[1]}`: event.ErrResidency,
	} {
		list, err := event.ParseRouterEvents(fmt.Appendf(nil, form, domain))
		require.NoError(t, err, domain)
		require.Len(t, list, 2)
		require.ErrorIs(t, list[0].Err, want, domain)
		require.NoError(t, list[1].Err)
		require.EqualValues(t, 2, list[1].WorkerID)
	}
}

func TestParsesWhatMayBeLeftOutOrAdded(t *testing.T) {
	for text, want := range map[string]event.Event{
		`{"data":"cleared"}`:                     {Kind: event.Cleared},
		`{"data":{"cleared":null},"event_id":5}`: {Kind: event.Cleared, ID: 5},
		`{"data":{"stored":{"blocks":[{"tokens_hash":-1,"block_hash":-9223372036854775808,"mm_extra_info":{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]},"x":"]}\"\\"}]}},"new":[[{}]],"dp_rank":2}`: {
			Kind: event.Stored, DPRank: 2, Blocks: []event.Block{{Engine: 1 << 63, Hash: math.MaxUint64}}},
		` { "event_id" : 1 , "data" : { "removed" : { "block_hashes" : [ 13360216285664366642 , -1 ] , "y" : null } } } `: {
			ID: 1, Kind: event.Removed, Removed: []block.EngineHash{13360216285664366642, math.MaxUint64}},
		`{"data":{"stored":{"parent_hash":-1,"start_position":4294967295,"blocks":[]}}}`: {
			Kind: event.Stored, HasParent: true, Parent: math.MaxUint64},
	} {
		got, err := event.ParseKvCacheEvent([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

func TestRefusesWhatIsNoEvent(t *testing.T) {
	stored := func(block string) string { return `{"data":{"stored":{"blocks":[` + block + `]}}}` }
	for text, named := range map[string]string{
		``:                         "not JSON",
		`{"data":"cleared"`:        "not JSON",
		`{"data":"cleared"} x`:     "not JSON",
		`null`:                     "null",
		`[]`:                       "[]",
		`"cleared"`:                "cleared",
		`{}`:                       "without data",
		`{"Data":"cleared"}`:       "without data",
		`{"data":null}`:            "null",
		`{"data":{}}`:              "empty",
		`{"data":"stored"}`:        "stored",
		`{"data":{"moved":{}}}`:    "moved",
		`{"data":{"stored":null}}`: "null",
		`{"data":{"stored":{}}}`:   "without blocks",
		`{"data":{"removed":{}}}`:  "without block_hashes",
		`{"data":{"removed":{"block_hashes":[]},"cleared":null}}`:     "cleared",
		`{"data":"cleared","data":"cleared"}`:                         "twice",
		`{"data":"cleared","event_id":-1}`:                            "-1",
		`{"data":"cleared","event_id":"1"}`:                           `"1"`,
		`{"data":"cleared","event_id":18446744073709551616}`:          "18446744073709551616",
		`{"data":"cleared","dp_rank":4294967296}`:                     "4294967296",
		stored(`{"block_hash":1}`):                                    "without",
		stored(`{"tokens_hash":1}`):                                   "without",
		stored(`{"block_hash":1.0,"tokens_hash":1}`):                  "1.0",
		stored(`{"block_hash":1e3,"tokens_hash":1}`):                  "1e3",
		stored(`{"block_hash":18446744073709551616,"tokens_hash":1}`): "18446744073709551616",
		stored(`{"block_hash":-9223372036854775809,"tokens_hash":1}`): "-9223372036854775809",
		stored(`{"block_hash":"00","tokens_hash":1}`):                 `"00"`,
		stored(`{"block_hash":null,"tokens_hash":1}`):                 "null",
		stored(`{"block_hash":true,"tokens_hash":1}`):                 "true",
		stored(`{"block_hash":[1],"tokens_hash":1}`):                  "[1]",
		stored(`7`): "7",
		`{"data":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`: "not JSON",
		`{"data":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`:   "[[[",
	} {
		_, err := event.ParseKvCacheEvent([]byte(text))
		require.ErrorIs(t, err, event.ErrJSON, text)
		require.ErrorContains(t, err, named, text)
		require.Less(t, len(err.Error()), 300)
	}
	for _, text := range []string{``, `{}`, `[1]`, `[{"worker_id":1}]`, `[{"event":{"data":"cleared"}}]`,
		`[{"worker_id":1,"storage_tier":"tape","event":{"data":"cleared"}}]`, `[{"worker_id":1.5,"event":{"data":"cleared"}}]`} {
		_, err := event.ParseRouterEvents([]byte(text))
		require.ErrorIs(t, err, event.ErrJSON, text)
	}
}

func FuzzParse(f *testing.F) {
	for _, ev := range samples {
		f.Add(event.AppendKvCacheEvent(nil, &ev))
		f.Add(append(event.AppendRouterEvent([]byte("["), &event.RouterEvent{WorkerID: 1, Event: ev}), ']'))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if ev, err := event.ParseKvCacheEvent(text); err == nil {
			again, err := event.ParseKvCacheEvent(event.AppendKvCacheEvent(nil, &ev))
			require.NoError(t, err)
			require.Equal(t, ev, again)
		}
		list, err := event.ParseRouterEvents(text)
		for _, re := range list {
			if err == nil && re.Err == nil {
				require.True(t, json.Valid(event.AppendRouterEvent(nil, &re)))
			}
		}
	})
}

func BenchmarkParseKvCacheEvent(b *testing.B) {
	ev := event.Event{Kind: event.Stored, Blocks: make([]event.Block, 64)}
	for i := range ev.Blocks {
		ev.Blocks[i] = event.Block{Engine: math.MaxUint64 - block.EngineHash(i), Hash: math.MaxUint64 - block.Hash(i)}
	}
	text := event.AppendKvCacheEvent(nil, &ev)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.ParseKvCacheEvent(text); err != nil {
			b.Fatal(err)
		}
	}
}

// The tier may stand with the event or with its worker; the worker's counts.
func TestTierOfAnEvent(t *testing.T) {
	ev, err := event.ParseKvCacheEvent([]byte(`{"event_id":1,"storage_tier":"disk","data":"cleared"}`))
	require.NoError(t, err)
	require.Equal(t, event.Disk, ev.Tier)
	_, err = event.ParseKvCacheEvent([]byte(`{"event_id":1,"storage_tier":"tape","data":"cleared"}`))
	require.ErrorIs(t, err, event.ErrJSON)
	list, err := event.ParseRouterEvents([]byte(`[{"worker_id":1,"event":{"storage_tier":"disk","data":"cleared"}},` +
		`{"worker_id":1,"event":{"storage_tier":"disk","data":"cleared"},"storage_tier":"external"},` +
		`{"worker_id":1,"storage_tier":"device","event":{"storage_tier":"disk","data":"cleared"}}]`))
	require.NoError(t, err)
	require.Equal(t, []event.Tier{event.Disk, event.External, event.Device}, []event.Tier{list[0].Event.Tier, list[1].Event.Tier, list[2].Event.Tier})
}
