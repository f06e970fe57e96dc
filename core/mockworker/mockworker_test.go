package mockworker

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// A router finds mock workers, their caches and what they say of their load, and its requests are served.
func TestMockWorkers(t *testing.T) {
	r := runtime.New(discovery.NewMemory(), runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	defer r.Close()
	e, err := r.Endpoint("ns.comp.generate")
	require.NoError(t, err)
	cfg := mocker.DefaultConfig()
	cfg.InterTokenMS = 20 // what is stopped would run for 18 s
	cfg.MaxModelLen = 1000
	for id := range uint64(2) {
		w, err := Start(e, id+1, cfg)
		require.NoError(t, err)
		defer w.Close()
		require.Equal(t, id+1, w.Rank().ID)
		require.Empty(t, w.Engine().Info().Events)
	}
	_, err = Start(e, 1, cfg)
	require.Error(t, err, "the id is taken")
	leaving, err := Start(e, 9, cfg)
	require.NoError(t, err)
	defer leaving.Close()
	require.NoError(t, leaving.Leave())
	require.NoError(t, leaving.Leave())
	bad := cfg
	bad.Blocks = 0
	_, err = Start(e, 3, bad)
	require.ErrorIs(t, err, mocker.ErrConfig)

	k, err := kvrouter.New(e, cfg.BlockSize, router.DefaultConfig(), router.Options{})
	require.NoError(t, err)
	defer k.Close()
	require.NoError(t, k.WaitForWorkers(context.Background(), 2))
	generate := func(n, out int) (*kvrouter.Stream, error) {
		fields, err := wire.FromJSON(nil, []byte(`{"model":"mock-8b","stop_conditions":{"max_tokens":`+map[int]string{5: "5", 900: "900", 0: "0"}[out]+`}}`))
		require.NoError(t, err)
		q := &kvrouter.Request{Fields: fields}
		q.Tokens = make([]block.Token, n)
		return k.Generate(context.Background(), q)
	}
	s, err := generate(64, 5)
	require.NoError(t, err)
	home := s.Choice().WorkerID
	items := 0
	for err == nil {
		var it kvrouter.Item
		if it, err = s.Recv(); err == nil {
			items++
			require.Equal(t, items == 5, it.Last)
		}
	}
	require.Equal(t, io.EOF, err)
	require.Equal(t, 5, items)
	await(t, "its blocks are known", func() bool {
		s, err := generate(64, 5)
		require.NoError(t, err)
		defer s.Close()
		return s.Choice().WorkerID == home && s.Choice().OverlapBlocks == 4
	})
	await(t, "its load is known", func() bool { return len(k.Metrics()) > 0 && *k.Metrics()[0].KVUsedBlocks > 0 })

	s, err = generate(64, 0)
	require.NoError(t, err)
	_, err = s.Recv()
	var told *plane.WorkerError
	require.ErrorAs(t, err, &told)
	require.True(t, told.InvalidRequest())
	s, err = generate(64, 900)
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	s.Stop()
	for err == nil {
		_, err = s.Recv()
	}
	require.ErrorIs(t, err, plane.ErrCancelled)
}
