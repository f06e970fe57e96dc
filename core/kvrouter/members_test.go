package kvrouter

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// A record that changes costs what it costs, however many others there are.
func TestAllocsOfAChangeAmongMany(t *testing.T) {
	cost := func(workers uint64) float64 {
		r := newRuntime(t)
		name, store := endpoint(t, r).Name, r.Store()
		card := func(id uint64, blocks int) (discovery.Key, []byte) {
			m := discovery.Model{Name: name, ID: id, Card: fmt.Appendf(nil, `{"kv_cache_block_size":4,"runtime_config":{"total_kv_blocks":%d}}`, blocks)}
			return discovery.ModelKey(name, id, ""), m.Encode()
		}
		for id := uint64(1); id <= workers; id++ {
			key, record := card(id, 1)
			require.NoError(t, store.Create(key, record))
			i := discovery.Instance{Name: name, ID: id, TCP: "127.0.0.1:1/x", Codec: discovery.CodecMsgpack}
			require.NoError(t, store.Create(discovery.InstanceKey(name, id), i.Encode()))
			source := discovery.Source{Scope: name, Topic: "kv-events", Publisher: id, WorkerID: id}
			require.NoError(t, store.Create(discovery.SourceKey(name, "kv-events", id), source.Encode()))
		}
		k := start(t, r, router.DefaultConfig())
		close(k.stop) // its own goroutine stays out of it
		k.running.Wait()
		k.stop = make(chan struct{})
		k.Sync()
		require.Len(t, workerIDs(t, k), int(workers))
		blocks := 1
		return testing.AllocsPerRun(20, func() {
			blocks++
			require.NoError(t, store.Replace(card(1, blocks)))
			k.Sync()
		})
	}
	few, many := cost(4), cost(200)
	require.Less(t, many, 2*few)
	t.Logf("%.0f allocations among 4 workers, %.0f among 200", few, many)
}
