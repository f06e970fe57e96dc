package discovery

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenRecords reads what Dynamo's processes stored: key and value by turns, in files (names escaped) and in etcd.
func goldenRecords(t testing.TB) map[Key][]byte {
	paths, err := filepath.Glob("../../../testdata/golden/dynamo-wire/*/*.txt")
	require.NoError(t, err)
	records := map[Key][]byte{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		name := ""
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			if name == "" {
				if name = strings.TrimPrefix(line, "== ./"); !strings.HasPrefix(name, "v1/") {
					name = "" // a list of directories
				}
				continue
			}
			parts := strings.SplitN(name, "/", 3)
			require.Len(t, parts, 3, name)
			rest, err := url.PathUnescape(parts[2])
			require.NoError(t, err)
			if strings.HasSuffix(path, "etcd_dump.txt") {
				rest = parts[2]
			}
			records[Key{parts[0] + "/" + parts[1], rest}] = []byte(line)
			name = ""
		}
	}
	require.Greater(t, len(records), 20)
	return records
}

// Every record that Dynamo stored is understood, names its key, and comes out of our encoder as it went in.
func TestRecordsOfDynamo(t *testing.T) {
	kinds := map[string]int{}
	for k, value := range goldenRecords(t) {
		var again []byte
		switch k.Bucket {
		case Instances:
			i, err := DecodeInstance(k.Path, value)
			require.NoError(t, err, k)
			again = i.Encode()
		case Models:
			m, err := DecodeModel(k.Path, value)
			require.NoError(t, err, k)
			card, err := m.Parse()
			require.NoError(t, err)
			require.EqualValues(t, 1000, card.Runtime.TotalKVBlocks)
			require.EqualValues(t, 8192, card.Runtime.MaxNumBatchedTokens)
			require.Equal(t, "aggregated", card.WorkerType)
			again = m.Encode()
		case EventChannels:
			c, err := DecodeChannel(k.Path, value)
			require.NoError(t, err, k)
			require.NotEqual(t, c.ZMQ == "", c.NATS == "")
			again = c.Encode()
		case EventSources:
			s, err := DecodeSource(k.Path, value)
			require.NoError(t, err, k)
			require.NotNil(t, s.Recovery)
			require.Equal(t, s.WorkerID, s.Recovery.ID)
			again = s.Encode()
		default:
			require.Fail(t, "unknown bucket", k)
		}
		kinds[k.Bucket]++
		require.Equal(t, generic(t, value), generic(t, again), k)
	}
	for _, bucket := range []string{Instances, Models, EventChannels, EventSources} {
		require.NotZero(t, kinds[bucket], bucket)
	}
}

// Releases to come may add fields anywhere in a record: what is understood stays the same.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	for k, value := range goldenRecords(t) {
		more, err := json.Marshal(extended(generic(t, value)))
		require.NoError(t, err)
		require.Greater(t, bytes.Count(more, []byte("field_to_come")), 1)
		var want, got any
		var wrong error
		switch k.Bucket {
		case Instances:
			want, err = DecodeInstance(k.Path, value)
			got, wrong = DecodeInstance(k.Path, more)
		case Models:
			a, errA := DecodeModel(k.Path, value)
			b, errB := DecodeModel(k.Path, more)
			require.NoError(t, errA)
			require.NoError(t, errB, k)
			want, err = a.Parse()
			got, wrong = b.Parse()
		case EventChannels:
			want, err = DecodeChannel(k.Path, value)
			got, wrong = DecodeChannel(k.Path, more)
		case EventSources:
			want, err = DecodeSource(k.Path, value)
			got, wrong = DecodeSource(k.Path, more)
		}
		require.NoError(t, err)
		require.NoError(t, wrong, k)
		require.Equal(t, want, got, k)
	}
}

// extended adds fields to every object of a JSON value.
func extended(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, x := range v {
			v[name] = extended(x)
		}
		v["field_to_come"], v["another_field_to_come"] = map[string]any{"x": []any{nil, 1.5}}, nil
	case []any:
		for i, x := range v {
			v[i] = extended(x)
		}
	}
	return value
}

func generic(t testing.TB, data []byte) any {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v))
	return v
}

func TestRecordsThatCannotBe(t *testing.T) {
	good := Instance{Name: Name{"a", "b", "c"}, ID: 1<<64 - 1, TCP: "127.0.0.1:1/x", Codec: CodecMsgpack}
	key := InstanceKey(good.Name, good.ID)
	i, err := DecodeInstance(key.Path, good.Encode())
	require.NoError(t, err)
	require.Equal(t, good, i)
	for path, value := range map[string]string{
		key.Path:     `{`,
		"a/b/c/1":    string(good.Encode()),
		"a/b/c/2":    `{"type":"Model"}`,
		"a/b/c/3":    `{"type":"Endpoint","namespace":"a","component":"b","endpoint":"c","instance_id":3,"transport":{"quic":"x"}}`,
		"a/b/c/4":    `{"type":"Endpoint","namespace":"a","component":"b","endpoint":"c","instance_id":-4,"transport":{"tcp":"x"}}`,
		"/b/c/5":     `{"type":"Endpoint","namespace":"","component":"b","endpoint":"c","instance_id":5,"transport":{"tcp":"x"}}`,
		"a/b/c/6/7":  `{"type":"Endpoint","namespace":"a","component":"b","endpoint":"c/6","instance_id":7,"transport":{"tcp":"x"}}`,
		"a/b/c/\x00": `null`,
	} {
		_, err := DecodeInstance(path, []byte(value))
		require.ErrorIs(t, err, ErrInvalid, path)
	}
	_, err = DecodeInstance(key.Path, make([]byte, MaxRecordBytes+1))
	require.ErrorContains(t, err, "1048577 bytes")
}

func TestNames(t *testing.T) {
	n, err := ParseName("dyn://ns.comp.ep")
	require.NoError(t, err)
	require.Equal(t, Name{"ns", "comp", "ep"}, n)
	for _, bad := range []string{"", "a.b", "a.b.c.d", "a..c", "a.b/x.c", "a.b." + strings.Repeat("c", MaxNameBytes+1)} {
		_, err := ParseName(bad)
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
	require.Equal(t, "v1/event_channels/namespace/ns/component/comp/endpoint/ep/topic/a%2Eb_c-d%25/ff", ChannelKey(n, "a.b_c-d%", 255).String())
}

// The key of an adapter's card is the one that Dynamo gives it; the name that requests use is in the card.
func TestCardsOfAdapters(t *testing.T) {
	n := Name{"a", "b", "c"}
	for name, want := range map[string]string{
		"My/Adapter One": "my_adapter_one", "__X.y-Z_é/ü--": "x_y-z____--", "a..b": "a__b", "-x-": "-x-", "x y": "x_y", "日本": "",
	} {
		require.Equal(t, want, Slug(name))
		card, err := json.Marshal(map[string]any{"lora": map[string]any{"name": name}})
		require.NoError(t, err)
		m, err := NewModel(n, 1, card)
		if want == "" {
			require.ErrorIs(t, err, ErrInvalid)
			continue
		}
		require.NoError(t, err)
		key := ModelKey(n, 1, m.Suffix)
		require.Equal(t, "v1/mdc/a/b/c/1/"+want, key.String())
		m, err = DecodeModel(key.Path, m.Encode())
		require.NoError(t, err)
		got, ok := m.Adapter()
		require.True(t, ok)
		require.Equal(t, name, got)
	}
	for card, what := range map[string]string{`null`: "null", `[]`: "", `{"lora":{"name":"` + strings.Repeat("x", 65) + `"}}`: "64", `{"lora":5}`: ""} {
		_, err := NewModel(n, 1, []byte(card))
		require.ErrorIs(t, err, ErrInvalid, card)
		require.ErrorContains(t, err, what)
	}
	m, err := NewModel(n, 1, []byte(`{"lora":null}`))
	require.NoError(t, err)
	_, ok := m.Adapter()
	require.False(t, ok)
	m = Model{Name: n, ID: 1, Suffix: "old", Card: []byte(`{}`)}
	got, ok := m.Adapter()
	require.True(t, ok)
	require.Equal(t, "old", got)
}

// Whatever a directory or a server holds, decoding it is an error or a record that encodes again.
func FuzzRecords(f *testing.F) {
	for k, value := range goldenRecords(f) {
		f.Add(k.Path, value)
	}
	f.Fuzz(func(t *testing.T, path string, value []byte) {
		if i, err := DecodeInstance(path, value); err == nil {
			again, err := DecodeInstance(path, i.Encode())
			require.NoError(t, err)
			require.Equal(t, i, again)
		}
		if m, err := DecodeModel(path, value); err == nil && len(m.Card) > 0 {
			_, _ = m.Parse()
			_, err := DecodeModel(path, m.Encode())
			require.NoError(t, err)
		}
		if c, err := DecodeChannel(path, value); err == nil {
			again, err := DecodeChannel(path, c.Encode())
			require.NoError(t, err)
			require.Equal(t, c, again)
		}
		if s, err := DecodeSource(path, value); err == nil {
			again, err := DecodeSource(path, s.Encode())
			require.NoError(t, err)
			require.Equal(t, s, again)
		}
	})
}
