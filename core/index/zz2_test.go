package index_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func tm(t *testing.T, what string, f func()) {
	s := time.Now()
	f()
	t.Logf("%-40s %v", what, time.Since(s).Round(time.Microsecond))
}

func rep(t *testing.T, x index.Index) {
	st := x.Stats()
	t.Logf("   blocks %d pairs %d paths %d bytes %d (%.1f/pair) %+v", st.Blocks, st.Pairs, st.Paths, st.Bytes, float64(st.Bytes)/float64(max(1, st.Pairs)), st.Memory)
}

func TestYYLong(t *testing.T) {
	const n = 1_000_000
	q := forked(1, n)
	x := sharded()
	ev := storeOf(q, 0, n)
	tm(t, "store 1M chain, one event", func() { x.Apply(0, ev, index.Count) })
	tm(t, "again, count", func() { x.Apply(1, ev, index.Count) })
	tm(t, "again same slot, count", func() { x.Apply(0, ev, index.Count) })
	rep(t, x)
	tm(t, "match", func() { x.Match(nil, q) })
	q2 := index.Query{Hashes: q.Hashes}
	tm(t, "match no seq", func() { x.Match(nil, q2) })
	tm(t, "dump", func() { x.Dump(0, 0) })
	tm(t, "runs", func() { k := 0; x.Runs(func(*index.Run) error { k++; return nil }); t.Log(k) })
	rm := &event.Event{Kind: event.Removed}
	for _, b := range ev.Blocks {
		rm.Removed = append(rm.Removed, b.Engine)
	}
	tm(t, "remove", func() { x.Apply(0, rm, index.Count) })
	tm(t, "remove", func() { x.Apply(0, rm, index.Count) })
	rep(t, x)
	tm(t, "remove other", func() { x.Apply(1, rm, index.Count) })
	rep(t, x)
	x = sharded()
	tm(t, "store in 32s", func() {
		for i := 0; i < n; i += 32 {
			x.Apply(0, storeOf(q, i, min(n, i+32)), index.Count)
		}
	})
	tm(t, "clear", func() { x.Drop(0) })
	rep(t, x)
}

func TestYYBranch(t *testing.T) {
	x := sharded()
	const n = 200_000
	// branch at every block of a trunk of 1000, 200 each
	q := forked(3, 1000)
	x.Apply(0, storeOf(q, 0, 1000), index.Count)
	var names []block.EngineHash
	tm(t, "200k branches", func() {
		for i := range n {
			e := block.EngineHash(i*2 + 1e9)
			names = append(names, e)
			x.Apply(worker.Slot(i%64), &event.Event{Kind: event.Stored, HasParent: false, Blocks: []event.Block{{Engine: e, Hash: block.Hash(i) * 77777}}}, index.Count)
		}
	})
	rep(t, x)
	tm(t, "200k branches of slot 0", func() {
		for i := range n {
			e := block.EngineHash(i*2 + 1e10)
			x.Apply(0, &event.Event{Kind: event.Stored, HasParent: true, Parent: block.EngineHash(q.Sequences[i%1000] + 1), Blocks: []event.Block{{Engine: e, Hash: block.Hash(i) * 77777}}}, index.Count)
		}
	})
	rep(t, x)
	tm(t, "dump", func() { x.Dump(0, 0) })
	tm(t, "drop 64", func() {
		for i := range 64 {
			x.Drop(worker.Slot(i))
		}
	})
	rep(t, x)
}

func TestYYNames(t *testing.T) {
	x := sharded()
	q := forked(5, 1000)
	tm(t, "64 holders, own names", func() {
		for s := range 64 {
			ev := storeOf(q, 0, 1000)
			for i := range ev.Blocks {
				ev.Blocks[i].Engine += block.EngineHash(s * 1000003)
			}
			for rest := ev.Blocks; len(rest) > 0; rest = rest[20:] {
				e := &event.Event{Kind: event.Stored, Blocks: rest[:20]}
				if len(rest) < 1000 {
					e.HasParent, e.Parent = true, ev.Blocks[1000-len(rest)-1].Engine
				}
				if _, err := x.Apply(worker.Slot(s), e, index.Count); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	rep(t, x)
	tm(t, "drop 64", func() {
		for i := range 64 {
			x.Drop(worker.Slot(i))
		}
	})
	rep(t, x)
	tm(t, "same name moved 200k", func() {
		for i := range 200_000 {
			x.Apply(0, &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 7, Hash: block.Hash(i) * 77777}}}, index.Count)
		}
	})
	rep(t, x)
	tm(t, "200k names of a block", func() {
		for i := range 200_000 {
			x.Apply(0, &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: block.EngineHash(i) + 9, Hash: 5}}}, index.Count)
		}
	})
	rep(t, x)
	tm(t, "removed", func() {
		for i := range 200_000 {
			x.Apply(0, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{block.EngineHash((i*7919)%200000) + 9}}, index.Count)
		}
	})
	rep(t, x)
}

func TestYYStaggered(t *testing.T) {
	x := sharded()
	q := forked(5, 4096)
	tm(t, "4096 holders, each another depth", func() {
		for s := range 4096 {
			ev := storeOf(q, 0, 4096-s)
			x.Apply(worker.Slot(s), ev, index.Count)
		}
	})
	rep(t, x)
	dst := make([]index.Overlap, 0, 5000)
	tm(t, "match", func() { dst = x.Match(dst[:0], q) })
	tm(t, "match", func() { dst = x.Match(dst[:0], q) })
	fmt.Println(len(dst))
	tm(t, "drops", func() {
		for s := range 4096 {
			x.Drop(worker.Slot(s * 1021 % 4096))
		}
	})
	rep(t, x)
	runtime.GC()
}
