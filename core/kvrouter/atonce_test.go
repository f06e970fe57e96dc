package kvrouter

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
)

// heldBlock is a block that a worker holds, under the engine's name.
type heldBlock struct{ worker, name uint64 }

func dumped(t testing.TB, k *KvRouter) map[heldBlock]bool {
	raw, err := k.Router().DumpEvents()
	require.NoError(t, err)
	var events []struct {
		WorkerID uint64 `json:"worker_id"`
		Event    struct {
			Data struct {
				Stored struct {
					Blocks []struct {
						Name uint64 `json:"block_hash"`
					} `json:"blocks"`
				} `json:"stored"`
			} `json:"data"`
		} `json:"event"`
	}
	require.NoError(t, json.Unmarshal(raw, &events))
	held := make(map[heldBlock]bool)
	for _, e := range events {
		for _, b := range e.Event.Data.Stored.Blocks {
			held[heldBlock{e.WorkerID, b.Name}] = true
		}
	}
	return held
}

// Requests, events, workers that come and go, and whoever looks on, all at once: what the router knows in the end is what its workers hold.
//
// https://github.com/vllm-project/aibrix/issues/1131 https://github.com/vllm-project/aibrix/pull/550
func TestEverythingAtOnce(t *testing.T) {
	const steady, asking, coming, looking, rounds = 4, 16, 2, 2, 60
	r := newRuntime(t)
	k := start(t, r, router.DefaultConfig())
	publishers := make([]*testWorker, steady)
	for i := range publishers {
		publishers[i] = newWorker(t, r, uint64(i+1), plainCard)
	}
	require.NoError(t, k.WaitForWorkers(t.Context(), steady))
	held := make([]map[uint64]bool, steady)
	ctx, cancel := context.WithCancel(t.Context())
	var others, all sync.WaitGroup
	for i, w := range publishers {
		held[i] = make(map[uint64]bool)
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 10 * rounds {
				name := random.Uint64N(200)
				if held[i][name] {
					_, err := w.source.Publish(publish.Removed([]block.EngineHash{block.EngineHash(name)}))
					assert.NoError(t, err)
					delete(held[i], name)
				} else {
					_, err := w.source.Publish(publish.Stored(nil, []block.EngineHash{block.EngineHash(name)}, []block.Token{block.Token(name), 2, 3, 4}, blockSize))
					assert.NoError(t, err)
					held[i][name] = true
				}
			}
		})
	}
	for i := range coming {
		all.Go(func() {
			for n := range rounds / 4 {
				s, err := endpoint(t, r).Serve(func(*runtime.Call) error { return nil }, runtime.ServeOptions{ID: uint64(100 + i)})
				if !assert.NoError(t, err) {
					return
				}
				if n == 0 {
					assert.NoError(t, s.RegisterModel([]byte(plainCard)))
				}
				time.Sleep(time.Millisecond)
				s.Close(false)
			}
		})
	}
	for range asking {
		others.Go(func() {
			for ctx.Err() == nil {
				q := router.Request{ID: requestID(), Book: true}
				q.Tokens = []block.Token{block.Token(rand.Uint32N(200)), 2, 3, 4}
				if _, err := k.Router().BestWorker(&q); assert.NoError(t, err) {
					_ = k.Router().MarkPrefillComplete(q.ID) // its worker may be gone
					_ = k.Router().Free(q.ID)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range looking {
		others.Go(func() {
			for ctx.Err() == nil {
				_, err := k.Router().PotentialLoads(nil, &router.Prompt{})
				assert.NoError(t, err)
				_, err = k.Router().DumpEvents()
				assert.NoError(t, err)
				_ = k.Metrics()
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	cancel()
	others.Wait()
	want := make(map[heldBlock]bool)
	for i := range held {
		for name := range held[i] {
			want[heldBlock{uint64(i + 1), name}] = true
		}
	}
	late := start(t, r, router.DefaultConfig())
	for _, each := range []*KvRouter{k, late} {
		await(t, "what the workers hold is known", func() bool { return assert.ObjectsAreEqual(want, dumped(t, each)) })
		await(t, "nobody is busy", func() bool { return active(t, each) == 0 })
	}
}
