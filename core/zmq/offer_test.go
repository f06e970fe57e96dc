package zmq

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOfferBoundsWhatWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan int, 4)
	require.True(t, Offer(ctx, ch, 1, large))
	require.True(t, Offer(ctx, ch, 2, 0))
	sent := make(chan bool)
	go func() {
		sent <- Offer(ctx, ch, 3, large+1)
		sent <- Offer(ctx, ch, 4, 0)
	}()
	require.Equal(t, 1, <-ch)
	require.Len(t, ch, 1, "the large one waits for an empty channel")
	require.Equal(t, 2, <-ch)
	require.Equal(t, 3, within(t, "large", func() int { return <-ch }))
	require.True(t, <-sent)
	require.True(t, <-sent)
	go func() { sent <- Offer(ctx, ch, 5, large+1) }()
	cancel()
	require.False(t, within(t, "cancelled", func() bool { return <-sent }))
}
