package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stretch during which the process did not run is taken only if there is no other.
func TestCalmSamples(t *testing.T) {
	var s samples
	s.take(1, func() { time.Sleep(20 * time.Millisecond) })
	require.Empty(t, s.calm)
	require.Len(t, s.best(), 1)
	for begun := time.Now(); len(s.calm) == 0; {
		require.Less(t, time.Since(begun), time.Minute)
		s.take(10, func() {
			for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
			}
		})
	}
	require.Len(t, s.best(), 1)
	require.InDelta(t, 1e5, s.best()[0], 5e4)
	require.GreaterOrEqual(t, s.spent, 9e5)
}
