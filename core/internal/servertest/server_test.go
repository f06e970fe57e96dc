package servertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A server serves, ends when it is asked to, and comes back where it was.
func TestEtcdStopsAndStarts(t *testing.T) {
	e := StartEtcd(t, nil)
	for _, end := range []func(){e.Stop, e.Kill} {
		end()
		require.Error(t, e.up())
		e.Start()
		require.NoError(t, e.up())
	}
}
