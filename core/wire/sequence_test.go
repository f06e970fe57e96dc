package wire

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Dynamo's own messages are read as another decoder reads them, and written byte for byte.
func TestSequenceMessagesOfDynamo(t *testing.T) {
	data, err := os.ReadFile("../../testdata/golden/replica/dynamo-1.6.1.json")
	require.NoError(t, err)
	var rows []struct {
		Payload string
		Decoded struct {
			Model     string `json:"model_name"`
			Group     string `json:"routing_group"`
			BlockSize uint32 `json:"block_size"`
			Event     struct {
				RequestID string `json:"request_id"`
				Worker    struct {
					ID     uint64 `json:"worker_id"`
					DPRank uint32 `json:"dp_rank"`
				}
				Data     json.RawMessage
				RouterID uint64  `json:"router_id"`
				LoRAName *string `json:"lora_name"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &rows))
	require.Len(t, rows, 8)
	kinds := map[SequenceKind]int{}
	d := NewSequenceDecoder()
	for _, row := range rows {
		payload, err := hex.DecodeString(row.Payload)
		require.NoError(t, err)
		var s SequenceScope
		var e SequenceEvent
		require.NoError(t, d.Decode(payload, &s, &e))
		want, event := row.Decoded, row.Decoded.Event
		require.Equal(t, SequenceScope{want.Model, want.Group, want.BlockSize}, s)
		require.Equal(t, event.RequestID, e.RequestID)
		require.Equal(t, worker.Rank{ID: event.Worker.ID, DPRank: event.Worker.DPRank}, e.Worker)
		require.Equal(t, event.RouterID, e.RouterID)
		require.Equal(t, event.LoRAName != nil, e.LoRAName != "")
		kinds[e.Kind]++
		if e.Kind == SequenceAdded {
			var added struct {
				AddRequest struct {
					Sequences *[]uint64 `json:"token_sequence"`
					Track     bool      `json:"track_prefill_tokens"`
					Output    *uint64   `json:"expected_output_tokens"`
					Hint      *struct {
						Tokens uint64 `json:"initial_effective_prefill_tokens"`
					} `json:"prefill_load_hint"`
				}
			}
			require.NoError(t, json.Unmarshal(event.Data, &added))
			a := added.AddRequest
			require.True(t, e.HasSequences && a.Sequences != nil)
			require.Len(t, e.Sequences, len(*a.Sequences))
			for i, h := range *a.Sequences {
				require.Equal(t, block.SequenceHash(h), e.Sequences[i])
			}
			require.Equal(t, a.Track, !e.UntrackedTokens)
			require.Equal(t, a.Output != nil, e.HasOutput)
			require.Equal(t, a.Hint != nil, e.PrefillTokens != 0)
			if a.Output != nil {
				require.Equal(t, *a.Output, e.OutputTokens)
			}
			if a.Hint != nil {
				require.Equal(t, a.Hint.Tokens, e.PrefillTokens)
			}
		}
		out, err := AppendSequence(nil, &s, &e)
		require.NoError(t, err)
		require.Equal(t, row.Payload, hex.EncodeToString(out))
	}
	require.Equal(t, map[SequenceKind]int{SequenceAdded: 5, SequencePrefilled: 2, SequenceFreed: 1}, kinds)
}

func TestSequenceMessagesComeBack(t *testing.T) {
	long := make([]block.SequenceHash, 70_000)
	for i := range long {
		long[i] = block.SequenceHash(uint64(i) << (i % 64))
	}
	scope := SequenceScope{strings.Repeat("model", 60), strings.Repeat("group", 20_000), math.MaxUint32}
	d := NewSequenceDecoder()
	for _, e := range []SequenceEvent{
		{Kind: SequenceFreed, Worker: worker.Rank{ID: math.MaxUint64, DPRank: math.MaxUint32}, RouterID: 1 << 63, RequestID: ""},
		{Kind: SequencePrefilled, LoRAName: "a", RequestID: strings.Repeat("r", MaxSequenceIDSize)},
		{Kind: SequenceAdded},
		{Kind: SequenceAdded, HasSequences: true, Sequences: long, UntrackedTokens: true, HasOutput: true},
		{Kind: SequenceAdded, HasSequences: true, Sequences: long[:16], HasOutput: true, OutputTokens: 1 << 40, PrefillTokens: 1 << 33},
		{Kind: SequenceAdded, PrefillTokens: 200, HasDuration: true, PrefillDuration: 3*time.Hour + 7*time.Nanosecond},
		{Kind: SequenceAdded, PrefillTokens: 128, HasDuration: true},
	} {
		out, err := AppendSequence([]byte("x"), &scope, &e)
		require.NoError(t, err)
		var plain map[string]any
		require.NoError(t, msgpack.Unmarshal(out[1:], &plain), "by another decoder")
		var s SequenceScope
		var got SequenceEvent
		require.NoError(t, d.Decode(out[1:], &s, &got))
		require.Equal(t, scope, s)
		if len(e.Sequences) == 0 {
			got.Sequences = nil
		}
		require.Equal(t, e, got)
	}
}

func TestSequenceEventsThatCannotBeSent(t *testing.T) {
	for name, e := range map[string]SequenceEvent{
		"no kind":           {},
		"another kind":      {Kind: 4},
		"a long id":         {Kind: SequenceFreed, RequestID: strings.Repeat("r", MaxSequenceIDSize+1)},
		"too many blocks":   {Kind: SequenceAdded, HasSequences: true, Sequences: make([]block.SequenceHash, MaxSequenceBytes)},
		"negative duration": {Kind: SequenceAdded, PrefillTokens: 1, HasDuration: true, PrefillDuration: -1},
	} {
		out, err := AppendSequence([]byte("kept"), &SequenceScope{}, &e)
		require.ErrorIs(t, err, ErrSequence, name)
		require.Equal(t, "kept", string(out))
	}
}

func TestSequenceDecoderIsLenientWhereDynamoIs(t *testing.T) {
	message := func(data any) map[string]any {
		return map[string]any{
			"model_name": "m", "routing_group": "g", "block_size": 16, "later": []int{1},
			"event": map[string]any{
				"request_id": "r", "router_id": 7, "data": data, "more": map[string]any{"x": nil},
				"worker": map[string]any{"worker_id": 1, "dp_rank": int64(2), "name": "w"},
			},
		}
	}
	decode := func(m map[string]any) (SequenceEvent, error) {
		b, err := msgpack.Marshal(m)
		require.NoError(t, err)
		var e SequenceEvent
		return e, NewSequenceDecoder().Decode(b, new(SequenceScope), &e)
	}
	e, err := decode(message(map[string]any{"AddRequest": map[string]any{"flavour": 1}}))
	require.NoError(t, err)
	require.Equal(t, SequenceEvent{Kind: SequenceAdded, RequestID: "r", RouterID: 7, Worker: worker.Rank{ID: 1, DPRank: 2}}, e, "all of it is optional")

	for name, data := range map[string]any{
		"a kind that is not known":    "Moved",
		"the same as a map":           map[string]any{"Moved": 1},
		"two kinds":                   map[string]any{"AddRequest": map[string]any{}, "Moved": 1},
		"no kind":                     map[string]any{},
		"a number":                    5,
		"nothing":                     nil,
		"a negative hash":             map[string]any{"AddRequest": map[string]any{"token_sequence": []int64{-1}}},
		"a hash of text":              map[string]any{"AddRequest": map[string]any{"token_sequence": []string{"1"}}},
		"sequences that are a number": map[string]any{"AddRequest": map[string]any{"token_sequence": 1}},
		"track that is a number":      map[string]any{"AddRequest": map[string]any{"track_prefill_tokens": 1}},
		"a hint without tokens":       map[string]any{"AddRequest": map[string]any{"prefill_load_hint": map[string]any{}}},
		"a duration without parts":    map[string]any{"AddRequest": map[string]any{"prefill_load_hint": map[string]any{"initial_effective_prefill_tokens": 1, "expected_prefill_duration": map[string]any{"secs": 1}}}},
		"a duration beyond time":      map[string]any{"AddRequest": map[string]any{"prefill_load_hint": map[string]any{"initial_effective_prefill_tokens": 1, "expected_prefill_duration": map[string]any{"secs": uint64(1) << 60, "nanos": 0}}}},
	} {
		_, err := decode(message(data))
		require.ErrorIs(t, err, ErrSequence, name)
	}
	for _, key := range []string{"model_name", "routing_group", "block_size", "event"} {
		m := message("Free")
		delete(m, key)
		_, err := decode(m)
		require.ErrorContains(t, err, "has no "+key)
	}
	for _, key := range []string{"request_id", "worker", "data", "router_id"} {
		m := message("Free")
		delete(m["event"].(map[string]any), key)
		_, err := decode(m)
		require.ErrorContains(t, err, "has no "+key)
	}
	m := message("Free")
	m["event"].(map[string]any)["request_id"] = strings.Repeat("r", MaxSequenceIDSize+1)
	_, err = decode(m)
	require.ErrorIs(t, err, ErrSequence)
	m["block_size"] = uint64(1) << 32
	_, err = decode(m)
	require.ErrorIs(t, err, ErrSequence)
}

func FuzzSequenceDecoder(f *testing.F) {
	data, err := os.ReadFile("../../testdata/golden/replica/dynamo-1.6.1.json")
	require.NoError(f, err)
	var rows []struct{ Payload string }
	require.NoError(f, json.Unmarshal(data, &rows))
	for _, row := range rows {
		b, _ := hex.DecodeString(row.Payload)
		f.Add(b)
		f.Add(append(b[:len(b)-1], 0xdf, 0xff, 0xff, 0xff, 0xff))
	}
	d := NewSequenceDecoder()
	f.Fuzz(func(t *testing.T, payload []byte) {
		var s SequenceScope
		var e SequenceEvent
		if err := d.Decode(payload, &s, &e); err != nil {
			require.ErrorIs(t, err, ErrSequence)
			return
		}
		require.LessOrEqual(t, len(e.Sequences), len(payload))
		if e.Kind != SequenceAdded {
			return
		}
		out, err := AppendSequence(nil, &s, &e)
		if err != nil {
			return // it was shorter as it came
		}
		var again SequenceEvent
		require.NoError(t, d.Decode(out, &s, &again))
		if e.PrefillTokens == 0 { // a hint of no tokens is none
			e.HasDuration, e.PrefillDuration = false, 0
		}
		if len(e.Sequences) == 0 {
			e.Sequences, again.Sequences = nil, nil
		}
		require.Equal(t, e, again)
	})
}

func BenchmarkSequence(b *testing.B) {
	scope := SequenceScope{"model", "default", 16}
	e := SequenceEvent{Kind: SequenceAdded, RequestID: "3eb7cd5a-8607-443c-acfd-f41a4d8851e5", HasSequences: true, PrefillTokens: 5000}
	for i := range 2048 {
		e.Sequences = append(e.Sequences, block.SequenceHash(uint64(i)*0x9e3779b97f4a7c15))
	}
	message, err := AppendSequence(nil, &scope, &e)
	require.NoError(b, err)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			dst, _ = AppendSequence(dst[:0], &scope, &e)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		d := NewSequenceDecoder()
		var got SequenceEvent
		for b.Loop() {
			_ = d.Decode(message, &scope, &got)
		}
	})
}
