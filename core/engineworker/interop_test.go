//go:build interop

package engineworker_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/internal/dynamotest"
)

// TestDynamosRouterOfBareEngines: an engine given by URL is a worker to Dynamo's own router: it finds what the engine holds, gets its tokens, and hears of what
// it refuses and that it is gone.
func TestDynamosRouterOfBareEngines(t *testing.T) { dynamotest.Each(t, dynamosRouter) }

func dynamosRouter(t *testing.T, release string, d *dynamotest.Deployment) {
	const path, blockSize = "wire.back-end.generate", 16
	p := dynamotest.Start(t, release, d, "router.py", path, fmt.Sprint(blockSize))
	p.Ready()
	var workers []*engineworker.Worker
	for range 2 {
		at, err := dynamotest.Join(t, d).Endpoint(path)
		require.NoError(t, err)
		workers = append(workers, start(t, at, spec(mock(t))))
	}
	candidates := func() int {
		var rows struct{ Rows []struct{} }
		p.Do(map[string]any{"do": "loads", "tokens": []uint32{}}, &rows)
		return len(rows.Rows)
	}
	await := func(what string, ok func() bool) { require.Eventually(t, ok, patience, patience/2000, what) }
	await("Dynamo's router sees both", func() bool { return candidates() == 2 })
	type generated struct {
		Items []struct {
			TokenIDs []uint32 `json:"token_ids"`
			Finish   any      `json:"finish_reason"`
			Routing  *struct {
				WorkerID *struct {
					Decode uint64 `json:"decode_worker_id"`
				} `json:"worker_id"`
			} `json:"routing_data"`
		}
		Error *string
	}
	generate := func(tokens []uint32, maxTokens int) (g generated) {
		p.Do(map[string]any{"do": "generate", "tokens": tokens, "model": "mock-8b", "max_tokens": maxTokens}, &g)
		return g
	}
	random := func() []uint32 {
		ids := make([]uint32, 4*blockSize)
		for i := range ids {
			ids[i] = rand.Uint32N(30_000)
		}
		return ids
	}
	for range 5 {
		tokens := random()
		g := generate(tokens, 3)
		require.Nil(t, g.Error)
		got := 0
		for _, it := range g.Items {
			got += len(it.TokenIDs)
		}
		require.Equal(t, 3, got)
		require.Equal(t, "length", g.Items[len(g.Items)-1].Finish)
		home := g.Items[0].Routing.WorkerID.Decode
		await("the engine's events arrive", func() bool {
			var b struct {
				Worker  uint64
				Overlap int
			}
			generate(random(), 1) // what was missed before the subscription was there is noticed by what follows
			p.Do(map[string]any{"do": "best", "tokens": tokens}, &b)
			return b.Worker == home && b.Overlap == 4
		})
	}
	var g generated
	if told := p.Try(map[string]any{"do": "generate", "tokens": random(), "model": "mock-8b", "max_tokens": 0}, &g); told != "" {
		require.Contains(t, told, "max_tokens is 0")
	} else {
		require.NotNil(t, g.Error) // releases before 1.5 tell no text
		require.Empty(t, g.Items)
	}
	workers[0].Close(false)
	await("one leaves", func() bool { return candidates() == 1 })
	require.Nil(t, generate(random(), 2).Error)
}
