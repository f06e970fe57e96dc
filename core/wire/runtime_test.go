package wire

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func TestConversionKeepsIntegers(t *testing.T) {
	for _, j := range []string{
		`{"a":[18446744073709551615,-9223372036854775808,0,-1,1.5,null,true,"x\u0000y"],"b":{}}`, `[]`, `"text"`, `{"":{"":[[[]]]}}`,
	} {
		m, err := FromJSON(nil, []byte(j))
		require.NoError(t, err)
		again, err := ToJSON(nil, m)
		require.NoError(t, err)
		require.Equal(t, j, string(again))
	}
	b, err := msgpack.Marshal(map[int]any{1: []byte{0, 255}, -2: float32(0.5)})
	require.NoError(t, err)
	j, err := ToJSON(nil, b)
	require.NoError(t, err)
	require.JSONEq(t, `{"1":[0,255],"-2":0.5}`, string(j))
}

func TestConversionRefuses(t *testing.T) {
	for _, j := range []string{"", "{", "[1] 2", "1e999", strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		_, err := FromJSON(nil, []byte(j))
		require.ErrorIs(t, err, ErrConvert, j)
	}
	for _, m := range []string{"", "\xc1", "\x91", "\xa1\xff", "\x81\x90\x01", "\xd4\x01\x01", strings.Repeat("\x91", 100) + "\x01", "\x01\x01"} {
		_, err := ToJSON(nil, []byte(m))
		require.ErrorIs(t, err, ErrConvert, "%x", m)
	}
}

func TestReadOutput(t *testing.T) {
	for j, want := range map[string]Output{
		`{"token_ids":[1,2,3],"finish_reason":null}`:   {Tokens: 3},
		`{"finish_reason":"length","token_ids":[]}`:    {Ends: true},
		`{"finish_reason":{"error":"x"},"other":[{}]}`: {Ends: true},
		`{"token_ids":null}`:                           {},
		`{"completion_usage":{"a":1,"prompt_tokens_details":{"b":null,"cached_tokens":300}},"token_ids":[1]}`: {Tokens: 1, Cached: 300, CachedKnown: true},
		`{"completion_usage":{"prompt_tokens_details":{"cached_tokens":0}}}`:                                  {CachedKnown: true},
		`{"completion_usage":{"prompt_tokens_details":{"cached_tokens":-1}}}`:                                 {},
		`{"completion_usage":{"prompt_tokens_details":{"cached_tokens":"1"}}}`:                                {},
		`{"completion_usage":{"prompt_tokens_details":null}}`:                                                 {},
		`{"completion_usage":null,"cached_tokens":1}`:                                                         {},
		`{"nested":{"token_ids":[1],"finish_reason":1}}`:                                                      {},
	} {
		b, err := FromJSON(nil, []byte(j))
		require.NoError(t, err)
		got, err := ReadOutput(b)
		require.NoError(t, err, j)
		require.Equal(t, want, got, j)
	}
	for _, j := range []string{`"text"`, `[]`, `{"token_ids":1}`} {
		b, err := FromJSON(nil, []byte(j))
		require.NoError(t, err)
		_, err = ReadOutput(b)
		require.ErrorIs(t, err, ErrItem, j)
	}
}

func TestAppendRequest(t *testing.T) {
	fields, err := FromJSON(nil, []byte(`{"model":"m","a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"k":11,"l":12,"m":13}`))
	require.NoError(t, err)
	routing, err := FromJSON(nil, []byte(`{"dp_rank":1}`))
	require.NoError(t, err)
	b, err := AppendRequest(nil, fields, []uint32{0, math.MaxUint32}, routing)
	require.NoError(t, err)
	j, err := ToJSON(nil, b)
	require.NoError(t, err)
	require.Contains(t, string(j), `"token_ids":[0,4294967295],"routing":{"dp_rank":1}}`)
	require.Contains(t, string(j), `"model":"m"`)
	b, err = AppendRequest(nil, nil, nil, nil)
	require.NoError(t, err)
	j, err = ToJSON(nil, b)
	require.NoError(t, err)
	require.Equal(t, `{"token_ids":[]}`, string(j))
	for _, bad := range []string{"\x90", "\x81", "\x80\x80", "\xc1"} {
		_, err := AppendRequest(nil, []byte(bad), nil, nil)
		require.ErrorIs(t, err, ErrItem)
	}
}

// What releases before 1.6 tell of an error is less, and older ones tell it as a comment.
func TestFailuresOfOlderReleases(t *testing.T) {
	for j, want := range map[string]Failure{
		`{"event":"error","error":{"error_type":{"Backend":"InvalidArgument"},"message":"m"}}`: {Type: "InvalidArgument", Backend: true, Message: "m"},
		`{"event":"error","error":{"error_type":"Disconnected","message":"m","caused_by":{}}}`: {Type: "Disconnected", Message: "m"},
		`{"event":"error","comment":["m"]}`:                                                    {Type: "Unknown", Message: `["m"]`},
		`{"error":"m","data":null}`:                                                            {Type: "Unknown", Message: "m"},
	} {
		b, err := FromJSON(nil, []byte(`{"data":`+j+`,"complete_final":false,"new":1}`))
		require.NoError(t, err)
		it, err := DecodeItem(b, false)
		require.NoError(t, err)
		require.Equal(t, &want, it.Failure, j)
	}
}

func FuzzItem(f *testing.F) {
	f.Add(AppendItem(nil, []byte("\x81\xa9token_ids\x91\x01"), false))
	f.Add(AppendFinal(nil))
	f.Add(AppendFailure(nil, &Failure{Type: "Unknown", Class: "Internal"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, plain := range []bool{false, true} {
			if it, err := DecodeItem(b, plain); err == nil && it.Data != nil {
				_, _ = ReadOutput(it.Data)
				again, err := DecodeItem(AppendItem(nil, it.Data, plain), plain)
				require.NoError(t, err)
				require.Equal(t, it.Data, again.Data)
			}
		}
		if j, err := ToJSON(nil, b); err == nil {
			_, err := FromJSON(nil, j)
			if err != nil {
				require.ErrorContains(t, err, "") // duplicate keys and floats are not exact, but nothing breaks
			}
		}
		if m, err := FromJSON(nil, b); err == nil {
			_, err := ToJSON(nil, m)
			require.NoError(t, err)
		}
	})
}

func FuzzEventPlane(f *testing.F) {
	rank := worker.Rank{ID: 7, DPRank: 0}
	ev := event.Event{ID: 3, Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 2}}}
	f.Add(AppendKVEvents(nil, 7, []event.Event{ev, {ID: 4, Kind: event.Cleared}}))
	f.Add(AppendActiveLoad(nil, &ActiveLoad{Worker: rank}))
	s, _ := AppendSequences(nil, []SequenceEvent{{Kind: SequenceAdded, RequestID: "x"}, {Kind: SequenceFreed}})
	f.Add(s)
	f.Add(AppendEnvelope(nil, &Envelope{Publisher: 1, Topic: "t", Payload: s}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if events, err := DecodeKVEvents(b, rank); err == nil {
			own := events[:0]
			for _, e := range events {
				if e.Kind != 0 {
					own = append(own, e)
				}
			}
			again, err := DecodeKVEvents(AppendKVEvents(nil, 7, own), rank)
			require.NoError(t, err)
			require.Equal(t, len(own), len(again))
		}
		if l, err := DecodeActiveLoad(b); err == nil {
			again, err := DecodeActiveLoad(AppendActiveLoad(nil, &l))
			require.NoError(t, err)
			require.Equal(t, l, again)
		}
		if e, err := DecodeEnvelope(b); err == nil {
			again, err := ParseEventFrames(EventFrames(&e))
			require.NoError(t, err)
			require.Equal(t, e, again)
		}
		n := 0
		if NewSequenceDecoder().DecodeAll(b, func(*SequenceEvent) { n++ }) == nil {
			require.LessOrEqual(t, n, len(b))
		}
	})
}
