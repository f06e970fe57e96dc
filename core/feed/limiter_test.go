package feed

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSilenceGivesTheTurnAway(t *testing.T) {
	limit := NewLimiter(1, 1)
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan replyKind, 10)
	request := func() *turn {
		return &turn{limit: limit, tell: func(r reply) bool { told <- r.kind; return true }}
	}
	mute, talking, ended := request(), request(), request()
	require.True(t, mute.take(ctx))
	require.Equal(t, replyStarted, <-told)

	took := make(chan bool)
	go func() { took <- talking.take(ctx) }()
	mute.yield()
	require.True(t, <-took, "one that says nothing gives way")
	require.Equal(t, replyStarted, <-told)
	require.True(t, talking.keep(ctx))
	talking.yield()
	require.Len(t, limit.turns, 1, "one that is answered keeps its turn")

	go func() { took <- mute.keep(ctx) }() // it is answered at last
	require.Equal(t, replyWaits, <-told)
	talking.give()
	require.True(t, <-took)
	require.Equal(t, replyStarted, <-told)
	talking.give() // it has none
	require.Len(t, limit.turns, 1)

	cancel()
	require.False(t, ended.take(ctx), "nobody waits any more")
	mute.give()
	require.Empty(t, limit.turns)
}
