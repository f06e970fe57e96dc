package kvrouter

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
)

// instant serves workers that give so many items at once.
func instant(b *testing.B, workers, items int) *KvRouter {
	r := newRuntime(b)
	token := item(`{"token_ids":[1000]}`)
	for id := range uint64(workers) {
		s, err := endpoint(b, r).Serve(func(c *runtime.Call) error {
			for range items {
				if err := c.Send(token); err != nil {
					return err
				}
			}
			return nil
		}, runtime.ServeOptions{ID: id + 1})
		require.NoError(b, err)
		require.NoError(b, s.RegisterModel([]byte(`{"kv_cache_block_size":16}`)))
		b.Cleanup(func() { s.Close(false) })
	}
	k, err := New(endpoint(b, r), 16, router.DefaultConfig(), router.Options{})
	require.NoError(b, err)
	b.Cleanup(k.Close)
	return k
}

// BenchmarkRouting is what a request of 1,024 tokens costs through the router more than directly: pairs by turns, the median of the differences.
func BenchmarkRouting(b *testing.B) {
	k := instant(b, 1, 1)
	q := request(make([]block.Token, 1024)...)
	body, err := q.body(router.Choice{WorkerID: 1})
	require.NoError(b, err)
	direct := func() (time.Duration, error) {
		began := time.Now()
		s, err := k.Client().Direct(context.Background(), 1, &runtime.Request{ID: requestID(), Body: body})
		for err == nil {
			_, err = s.Recv()
		}
		return time.Since(began), err
	}
	routed := func() (time.Duration, error) {
		began := time.Now()
		s, err := k.Generate(context.Background(), q)
		for err == nil {
			_, err = s.Recv()
		}
		return time.Since(began), err
	}
	var differences []time.Duration
	for b.Loop() {
		first, second := direct, routed
		if len(differences)%2 == 1 {
			first, second = routed, direct
		}
		x, err := first()
		require.Equal(b, io.EOF, err)
		y, err := second()
		require.Equal(b, io.EOF, err)
		if len(differences)%2 == 1 {
			x, y = y, x
		}
		differences = append(differences, y-x)
	}
	slices.Sort(differences)
	b.ReportMetric(float64(differences[len(differences)/2].Nanoseconds())/1e3, "us-more/op")
}

// BenchmarkStreams is 2,000 streams of 200 tokens at a time over 8 workers, router and workers in one process.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 2000, 200
	k := instant(b, 8, tokens)
	for b.Loop() {
		var all sync.WaitGroup
		failed := make(chan error, streams)
		for i := range streams {
			all.Go(func() {
				s, err := k.Generate(context.Background(), request(block.Token(i), 1, 2, 3))
				n := 0
				for err == nil {
					if _, err = s.Recv(); err == nil {
						n++
					}
				}
				if err != io.EOF || n != tokens {
					failed <- fmt.Errorf("%d items: %w", n, err)
				}
			})
		}
		all.Wait()
		close(failed)
		for err := range failed {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(streams*tokens*b.N)/b.Elapsed().Seconds(), "tokens/s")
}
