package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRangeAnswersAreCutAndPutTogether(t *testing.T) {
	for _, size := range []int{0, 1, RangeChunkBytes - 1, RangeChunkBytes, RangeChunkBytes + 1, 3*RangeChunkBytes + 7} {
		answer := bytes.Repeat([]byte{1, 2, 3, 5, 7}, size/5+1)[:size]
		var r RangeReceiver
		messages, done := 0, false
		require.NoError(t, SendRangeAnswer(77, answer, func(head, chunk []byte) (err error) {
			require.False(t, done)
			require.LessOrEqual(t, len(chunk), RangeChunkBytes)
			messages++
			if messages%2 == 0 {
				done, err = r.Add([][]byte{{}, head, chunk})
			} else {
				done, err = r.Add([][]byte{head, chunk})
			}
			return err
		}))
		require.True(t, done)
		require.Equal(t, max(1, (size+RangeChunkBytes-1)/RangeChunkBytes), messages)
		publisher, got := r.Answer()
		require.Equal(t, uint64(77), publisher)
		require.True(t, bytes.Equal(answer, got))
	}
}

func TestPartsOfAnswersThatDoNotFit(t *testing.T) {
	head := func(publisher, left uint64) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, publisher), left)
	}
	begun := func() *RangeReceiver {
		r := &RangeReceiver{}
		done, err := r.Add([][]byte{head(1, 10), []byte("abc")})
		require.NoError(t, err)
		require.False(t, done)
		return r
	}
	for name, frames := range map[string][][]byte{
		"no frames":              {},
		"a short head":           {head(1, 0)[:15], []byte("0123456789")},
		"a long head":            {append(head(1, 0), 0), []byte("0123456789")},
		"a delimiter with bytes": {{1}, head(1, 0), []byte("0123456789")},
		"another publisher":      {head(2, 0), []byte("0123456789")},
		"less than was left":     {head(1, 0), []byte("012345678")},
		"more than was left":     {head(1, 0), []byte("0123456789a")},
		"not what is left":       {head(1, 6), []byte("012345")},
		"nothing":                {head(1, 10), nil},
	} {
		_, err := begun().Add(frames)
		require.ErrorIs(t, err, ErrFrames, name)
	}
	for _, left := range []uint64{MaxRangeAnswerBytes, MaxRangeAnswerBytes + 1, 1 << 63, 1<<64 - 1} {
		_, err := (&RangeReceiver{}).Add([][]byte{head(1, left), {0}})
		require.ErrorIs(t, err, ErrRange)
	}
	done, err := begun().Add([][]byte{head(1, 0), []byte("0123456789")})
	require.NoError(t, err)
	require.True(t, done)
}
