package metrics_test

import (
	"io"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// BenchmarkWrite writes a page for a thousand ranks.
func BenchmarkWrite(b *testing.B) {
	s := newRouter(b)
	if err := s.AddWorker(router.Worker{ID: 1, DPSize: 1000}); err != nil {
		b.Fatal(err)
	}
	e := newExporter(b, s, metrics.Options{})
	b.ReportAllocs()
	for range b.N {
		if err := e.Write(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
