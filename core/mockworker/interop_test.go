//go:build interop

package mockworker

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/dynamotest"
	"github.com/dynamo-go/dynamo-go/core/mocker"
)

// Dynamo's router takes mock workers for workers: their card, their events, their answers.
func TestDynamosRouterOfMockWorkers(t *testing.T) {
	for _, release := range dynamotest.Releases(t) {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			d := dynamotest.NewDeployment(t, "file tcp zmq")
			cfg := mocker.DefaultConfig()
			cfg.Speedup = 100
			for range 2 {
				e, err := dynamotest.Join(t, d).Endpoint("mock.back-end.generate")
				require.NoError(t, err)
				w, err := Start(e, 0, cfg)
				require.NoError(t, err)
				t.Cleanup(w.Close)
			}
			p := dynamotest.Start(t, release, d, "router.py", "mock.back-end.generate", fmt.Sprint(cfg.BlockSize))
			p.Ready()
			await(t, "Dynamo's router sees both", func() bool {
				var loads struct{ Rows []any }
				p.Do(map[string]any{"do": "loads", "tokens": []int{}}, &loads)
				return len(loads.Rows) == 2
			})
			tokens := make([]int, 20*cfg.BlockSize)
			await(t, "what a mock worker holds is known", func() bool {
				var g struct {
					Items []map[string]any
					Error *string
				}
				p.Do(map[string]any{"do": "generate", "tokens": tokens, "model": cfg.Model}, &g)
				require.Nil(t, g.Error)
				require.Len(t, g.Items, 3)
				require.Equal(t, "length", g.Items[2]["finish_reason"])
				tokens[len(tokens)-1]++ // another last block
				var b struct{ Overlap int }
				p.Do(map[string]any{"do": "best", "tokens": tokens}, &b)
				return b.Overlap == 19
			})
		})
	}
}
