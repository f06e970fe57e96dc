package dynamotest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
)

// Join makes this process one of a deployment's, on the loopback device; it leaves at the end of the test.
func Join(t testing.TB, store string) *runtime.Runtime {
	s, err := file.Open(store, file.Options{})
	require.NoError(t, err)
	r := runtime.New(s, runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	t.Cleanup(func() { r.Close() })
	return r
}
