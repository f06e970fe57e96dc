package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/wire"
)

// TestFrameShapes checks which shapes of live and replayed messages are read, that others are errors and no panics, and
// that the end marker is never a batch. https://github.com/vllm-project/vllm/issues/45174
// https://github.com/llm-d/llm-d-kv-cache/pull/492
func TestFrameShapes(t *testing.T) {
	const seq, end = "\x00\x00\x00\x00\x00\x00\x01\x02", "\xff\xff\xff\xff\xff\xff\xff\xff"
	batch := func(topic string) *wire.Message {
		m := &wire.Message{Seq: 258, Payload: []byte("payload")}
		if topic != "none" {
			m.Topic = []byte(topic)
		}
		return m
	}
	marker := &wire.Message{End: true}
	for _, c := range []struct {
		frames       []string
		live, replay *wire.Message // nil: an error
	}{
		{[]string{seq, "payload"}, batch("none"), batch("none")},
		{[]string{"topic", seq, "payload"}, batch("topic"), batch("topic")},
		{[]string{"", seq, "payload"}, batch(""), batch("")},
		{[]string{"", "topic", seq, "payload"}, nil, batch("topic")},
		{[]string{"", "", seq, "payload"}, nil, batch("")},
		{[]string{"topic", end, ""}, marker, marker},
		{[]string{end, ""}, marker, marker},
		{[]string{"", end, ""}, marker, marker},
		{[]string{"", "", end, ""}, nil, marker},
		{[]string{"", "topic", end, ""}, nil, marker},
		{[]string{"topic", end, "payload"}, nil, nil},
		{[]string{"topic", "abc", "payload"}, nil, nil},
		{[]string{"topic", seq + "x", "payload"}, nil, nil},
		{[]string{"topic", "", "payload"}, nil, nil},
		{[]string{"", "", "payload"}, nil, nil},
		{[]string{"topic"}, nil, nil},
		{[]string{}, nil, nil},
		{[]string{"x", "topic", seq, "payload"}, nil, nil},
		{[]string{"", "", "topic", seq, "payload"}, nil, nil},
		{[]string{seq, "payload", ""}, nil, nil},
	} {
		var frames [][]byte
		for _, f := range c.frames {
			frames = append(frames, []byte(f))
		}
		for parse, want := range map[*func([][]byte) (wire.Message, error)]*wire.Message{
			ptr(wire.ParseLive): c.live, ptr(wire.ParseReplay): c.replay,
		} {
			got, err := (*parse)(frames)
			if want == nil {
				require.ErrorIs(t, err, wire.ErrFrames, "%q", c.frames)
				continue
			}
			require.NoError(t, err, "%q", c.frames)
			require.Equal(t, *want, got, "%q", c.frames)
		}
	}
	empty, err := wire.ParseLive([][]byte{{}, []byte(seq), {}})
	require.NoError(t, err)
	require.False(t, empty.End)
}

func ptr[T any](v T) *T { return &v }
