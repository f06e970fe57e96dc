package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

const goldenDir = "../../testdata/golden/engine-events"

// capture is what one engine release's publisher sent.
type capture struct {
	Version string `json:"version"`
	Topic   string `json:"topic"`
	Live    []struct {
		Meaning string   `json:"meaning"`
		Frames  []string `json:"frames_hex"`
		Decoded []any    `json:"decoded"`
	} `json:"live"`
	Replay map[string][]json.RawMessage `json:"replay_as_received_by_client_socket"`
}

func readCapture(t testing.TB, path string) *capture {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	c := &capture{}
	require.NoError(t, dec.Decode(c))
	return c
}

func captures(t testing.TB) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"vllm-*.json", "sglang-*.json"} {
		found, err := filepath.Glob(filepath.Join(goldenDir, pattern))
		require.NoError(t, err)
		paths = append(paths, found...)
	}
	require.Len(t, paths, 36)
	return paths
}

func unhex(t testing.TB, texts []string) (frames [][]byte) {
	t.Helper()
	for _, s := range texts {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		frames = append(frames, b)
	}
	return frames
}

// TestGoldenCaptures decodes every message that 36 engine releases were seen to send, and compares each event with what
// another MessagePack decoder made of it; then their replay answers, whose batches are those sent live.
func TestGoldenCaptures(t *testing.T) {
	for _, path := range captures(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := readCapture(t, path)
			live := map[uint64][]byte{}
			for i, m := range c.Live {
				msg, err := wire.ParseLive(unhex(t, m.Frames))
				require.NoError(t, err, m.Meaning)
				require.Equal(t, c.Topic, string(msg.Topic))
				require.EqualValues(t, i, msg.Seq)
				require.False(t, msg.End)
				live[msg.Seq] = msg.Payload
				batch, err := wire.DecodeBatch(msg.Payload, wire.Limits{})
				require.NoError(t, err, m.Meaning)
				require.Equal(t, wantBatch(t, m.Decoded), batch, m.Meaning)
			}
			for name, replies := range c.Replay {
				requireReplay(t, name, replies, live)
			}
		})
	}
}

func requireReplay(t *testing.T, name string, replies []json.RawMessage, live map[uint64][]byte) {
	t.Helper()
	ended := false
	for _, raw := range replies {
		var texts []string
		if json.Unmarshal(raw, &texts) != nil {
			continue // a REQ socket's error, recorded as a string
		}
		msg, err := wire.ParseReplay(unhex(t, texts))
		require.NoError(t, err, name)
		require.False(t, ended, name)
		if ended = msg.End; !ended {
			require.Equal(t, live[msg.Seq], msg.Payload, "%s: %d", name, msg.Seq)
		}
	}
	if name[:6] == "DEALER" {
		require.True(t, ended, name)
	}
}

// The fields of the array form after the tag, as the engines declare them.
var arrayFields = map[string][]string{
	"BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"},
	"BlockRemoved": {"block_hashes", "medium", "group_idx"},
}

func wantBatch(t *testing.T, decoded []any) *wire.Batch {
	t.Helper()
	ts, err := decoded[0].(json.Number).Float64()
	require.NoError(t, err)
	want := &wire.Batch{TS: ts, Events: []wire.Event{}}
	for _, e := range decoded[1].([]any) {
		want.Events = append(want.Events, wantEvent(t, fieldsOf(t, e)))
	}
	if len(decoded) > 2 && decoded[2] != nil {
		want.HasRank, want.DPRank = true, uint32(wantInt(t, decoded[2]))
	}
	return want
}

func fieldsOf(t *testing.T, e any) map[string]any {
	t.Helper()
	list, isArray := e.([]any)
	if !isArray {
		return e.(map[string]any)
	}
	tag := list[0].(string)
	fields := map[string]any{"type": tag}
	for i, v := range list[1:] {
		fields[arrayFields[tag][i]] = v
	}
	if m, ok := fields["lora_name"].(map[string]any); ok {
		fields["lora_name"] = nil
		fields["cache_salt"] = m["cache_salt"]
	}
	return fields
}

func wantEvent(t *testing.T, f map[string]any) wire.Event {
	t.Helper()
	text := func(name string) string {
		s, _ := f[name].(string)
		return s
	}
	e := wire.Event{
		Tag: text("type"), Medium: text("medium"), LoRAName: text("lora_name"), CacheSalt: text("cache_salt"),
		SpecKind: text("kv_cache_spec_kind"), Locality: text("locality"), Ownership: text("ownership"), SessionID: text("session_id"),
	}
	e.Kind = map[string]event.Kind{"BlockStored": event.Stored, "BlockRemoved": event.Removed, "AllBlocksCleared": event.Cleared}[e.Tag]
	require.NotZero(t, e.Kind, e.Tag)
	if list, ok := f["block_hashes"].([]any); ok {
		for _, h := range list {
			e.BlockHashes = append(e.BlockHashes, wantHash(t, h))
		}
	}
	if parent := f["parent_block_hash"]; parent != nil {
		e.HasParent, e.Parent = true, wantHash(t, parent)
	}
	if list, ok := f["token_ids"].([]any); ok {
		e.TokenIDs, e.Bigram = wantTokens(t, list)
	}
	if n := f["block_size"]; n != nil {
		e.BlockSize = uint32(wantInt(t, n))
	}
	if n := f["lora_id"]; n != nil {
		e.HasLoRAID, e.LoRAID = true, int64(wantInt(t, n))
	}
	if n := f["group_idx"]; n != nil {
		e.HasGroup, e.GroupIdx = true, uint32(wantInt(t, n))
	}
	if f["extra_keys"] != nil {
		// Always [["adapter-a", ["mmhash", 3], "salt"], nil], in an event without a LoRA name: two strings, of which one at
		// most is the salt.
		e.Opaque = true
		e.MM = [][]uint64{{xxh3.HashString("mmhash")}}
	}
	return e
}

func wantTokens(t *testing.T, list []any) (tokens []uint32, bigram bool) {
	t.Helper()
	for i, v := range list {
		if two, ok := v.([]any); ok {
			if bigram = true; i == 0 {
				tokens = append(tokens, uint32(wantInt(t, two[0])))
			}
			v = two[1]
		}
		tokens = append(tokens, uint32(wantInt(t, v)))
	}
	return tokens, bigram
}

// wantInt reads a number of either sign as 64 bits.
func wantInt(t *testing.T, v any) uint64 {
	t.Helper()
	s := v.(json.Number).String()
	if s[0] == '-' {
		n, err := strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
		return uint64(n)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err)
	return n
}

func wantHash(t *testing.T, v any) block.EngineHash {
	t.Helper()
	if m, ok := v.(map[string]any); ok {
		b, err := hex.DecodeString(m["bin"].(string))
		require.NoError(t, err)
		return block.EngineHash(binary.BigEndian.Uint64(b[len(b)-8:]))
	}
	return block.EngineHash(wantInt(t, v))
}
