package serve

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLifetime(t *testing.T) {
	for _, waited := range []bool{false, true} {
		l := &lifetime{}
		var ctx context.Context = l
		require.NoError(t, ctx.Err())
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		if waited {
			select {
			case <-ctx.Done():
				t.Fatal("it has not ended")
			default:
			}
		}
		l.end()
		l.end()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		<-ctx.Done()
		<-child.Done()
		require.ErrorIs(t, context.Cause(child), context.Canceled)
	}
}
