package feed

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// part is a message of an answer: so many bytes, and what is said to be left.
func part(n int, left uint64) [][]byte {
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 16), 1)
	return [][]byte{nil, binary.BigEndian.AppendUint64(head, left), make([]byte, n)}
}

// An answer waits for room for all of it, and no other one waits for a part that is its own.
func TestAnswersWaitForRoom(t *testing.T) {
	limit := NewLimiter(9, 100)
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan replyKind, 10)
	request := func() *turn {
		return &turn{limit: limit, tell: func(r reply) bool { told <- r.kind; return true }}
	}
	large, small, late := request(), request(), request()
	require.ErrorIs(t, large.reserve(ctx, 101), errAnswer)
	require.NoError(t, large.reserve(ctx, 80))
	require.NoError(t, small.reserve(ctx, 20))
	require.Empty(t, told, "nobody had to wait")
	got := make(chan error)
	go func() { got <- late.reserve(ctx, 50) }()
	require.Equal(t, replyWaits, <-told)
	small.free()
	small.free() // it has none
	require.Empty(t, got)
	large.free()
	require.NoError(t, <-got)
	require.Equal(t, replyStarted, <-told)

	go func() { got <- large.reserve(ctx, 60) }()
	require.Equal(t, replyWaits, <-told)
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	late.free()
	require.True(t, limit.room.TryAcquire(100), "all of it is back")
}

// An answer that comes in drops is given up; one that is fast enough may be long.
func TestAnswersHaveToCome(t *testing.T) {
	at := time.Unix(0, 0)
	var reserved int64
	reader := func() *answerReader {
		return &answerReader{query: &event.RangeQuery{}, now: func() time.Time { return at }, reserve: func(n int64) error { reserved = n; return nil }}
	}
	a := reader()
	require.Equal(t, replyPart, a.reply(part(1<<20, 60<<20)).kind)
	require.EqualValues(t, 61<<20, reserved)
	for left := 59; left > 0; left-- {
		at = at.Add(time.Second)
		require.Equal(t, replyPart, a.reply(part(1<<20, uint64(left)<<20)).kind, left)
	}
	a = reader()
	left := uint64(1000)
	require.Equal(t, replyPart, a.reply(part(1, left)).kind)
	drops := 0
	for ; ; drops++ {
		at = at.Add(time.Second)
		left--
		if x := a.reply(part(1, left)); x.kind == replyFailed {
			require.ErrorIs(t, x.err, errAnswer)
			break
		}
	}
	require.Equal(t, 5, drops)
}

// Whatever a query socket says, the room of its answers is given back, and the next good answer is used.
func TestRoomIsGivenBack(t *testing.T) {
	rank := worker.Rank{ID: 1}
	good := wire.AppendRangeAnswer(nil, 1, &event.RangeAnswer{Kind: event.RangeDump, LastID: 3, Events: []event.Event{
		{ID: 1, Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 2}}}}})
	var asked atomic.Int32
	query, err := zmq.ListenRouter("tcp://127.0.0.1:0", zmq.Options{}, func(request [][]byte, reply func(...[]byte) error) {
		switch asked.Add(1) {
		case 1: // all there is room for, and no more of it
			reply(part(1, 1<<20-1)...)
		case 2:
			reply(part(1<<20, 1)...) // more than that
		case 3:
			reply(part(9, 1<<62)...)
		case 4: // all of it, and it is no answer
			reply(part(1<<19, 0)...)
		case 5: // another one's part
			reply(part(10, 100)...)
			reply(part(10, 100)...)
		default:
			wire.SendRangeAnswer(1, good, func(head, chunk []byte) error { return reply(request[0], head, chunk) })
		}
	})
	require.NoError(t, err)
	defer query.Close()
	pub, err := zmq.ListenPub("tcp://127.0.0.1:0", zmq.Options{})
	require.NoError(t, err)
	defer pub.Close()
	limit := NewLimiter(1, 1<<20)
	var v view
	f := Start(Config{Rank: rank, Endpoint: pub.Addr(), Query: query.Addr(), BlockSize: 2, Sink: &v, Limit: limit, Retries: 100,
		ReplayTimeout: 300 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	eventually(t, "the good answer", f.is(Exact))
	require.Equal(t, []uint64{1}, v.names())
	require.GreaterOrEqual(t, f.Status().Counters["replay_failures"], uint64(5), "more if the good one took long")
	eventually(t, "all room is back", func() bool {
		if !limit.room.TryAcquire(1 << 20) {
			return false
		}
		limit.room.Release(1 << 20)
		return true
	})
	f.Close()
	require.True(t, limit.room.TryAcquire(1<<20))
	require.Empty(t, limit.turns)
}
