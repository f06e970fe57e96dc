package replay

import (
	"slices"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
)

func filled(b *testing.B, ops []workload.Op) (*Log, index.Index) {
	x := index.New(index.Options{OneShard: true})
	l, err := New(Config{Events: 10_000, Index: x})
	if err != nil {
		b.Fatal(err)
	}
	for _, op := range ops {
		if _, err := l.Record(op.Event); err != nil {
			b.Fatal(err)
		}
	}
	return l, x
}

// BenchmarkRecord is per event of 15.8 blocks, the index's share included.
func BenchmarkRecord(b *testing.B) {
	ops := slices.Collect(workload.NewBase(1, 200_000).Stores(workload.Engine))
	for b.Loop() {
		_, x := filled(b, ops)
		x.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ops)), "ns/event")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkGap asks for the latest 100 of 10,000 events.
func BenchmarkGap(b *testing.B) {
	l, x := filled(b, slices.Collect(workload.NewBase(1, 200_000).Stores(workload.Engine)))
	defer x.Close()
	last := l.Stats().Last
	q := event.RangeQuery{HasStart: true, Start: last - 99, HasEnd: true, End: last}
	b.ReportAllocs()
	for b.Loop() {
		if a := l.Range(&q); len(a.Events) != 100 {
			b.Fatal(len(a.Events))
		}
	}
}

// BenchmarkDump is of 100,000 blocks: made anew, and used again.
func BenchmarkDump(b *testing.B) {
	l, x := filled(b, slices.Collect(workload.NewBase(1, 100_000).Stores(workload.Engine)))
	defer x.Close()
	b.Run("fresh", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.dumped = false
			l.Range(&event.RangeQuery{})
		}
	})
	b.Run("again", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Range(&event.RangeQuery{})
		}
	})
}
