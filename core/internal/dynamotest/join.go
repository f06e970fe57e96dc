package dynamotest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/nats"
)

// Join makes this process one of a deployment's, on the loopback device; it leaves at the end of the test.
func Join(t testing.TB, d *Deployment) *runtime.Runtime {
	store := d.Store(t)
	o, err := runtime.OptionsFromEnv(d.Getenv)
	require.NoError(t, err)
	o.RequestHost, o.ResponseHost, o.EventHost = "127.0.0.1", "127.0.0.1", "127.0.0.1"
	if server := d.Getenv("NATS_SERVER"); server != "" {
		requests, err := nats.Connect(nats.Options{Servers: []string{server}})
		require.NoError(t, err)
		events, err := nats.Connect(nats.Options{Servers: []string{d.events}})
		require.NoError(t, err)
		o.Requests, o.Events, o.Shared = requests, events, []interface{ Close() }{requests, events}
	}
	r := runtime.New(store, o)
	t.Cleanup(func() { r.Close() })
	return r
}
