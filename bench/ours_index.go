package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	eventsPerSecond = 50_000
	burst           = eventsPerSecond / 1000 // events in a millisecond
	sessions        = 2000
	stride          = 617 // from query to query: prime, so that all are asked
)

// prepare says what each situation needs and can measure.
var prepare = map[string]func() map[string]measurement{
	"share64":         func() map[string]measurement { return queries(64) },
	"share1":          func() map[string]measurement { return queries(1) },
	"share512":        func() map[string]measurement { return queries(512) },
	"writes_1M":       func() map[string]measurement { return writes(1_000_000) },
	"writes_5M":       func() map[string]measurement { return writes(5_000_000) },
	"gc_5M":           func() map[string]measurement { return map[string]measurement{"mark": mark} },
	"chain_1M":        longChain,
	"memory_unique":   func() map[string]measurement { return map[string]measurement{"memory": memoryUnique} },
	"memory_share512": func() map[string]measurement { return map[string]measurement{"memory": memoryShared} },
	"hash":            hashing,
}

func one(samples ...float64) map[string][]float64 { return map[string][]float64{"": samples} }

func apply(x index.Index, op workload.Op) index.Applied {
	done, err := x.Apply(op.Slot, op.Event, index.Count)
	must(err)
	return done
}

func applyAll(x index.Index, ops []workload.Op) {
	for _, op := range ops {
		apply(x, op)
	}
}

// queries measures matches in an index with chains that that many workers share.
func queries(share int) map[string]measurement {
	x := index.New(index.Options{})
	chains := func(kind workload.Kind) workload.Chains { return workload.Chains{Share: share, Kind: kind} }
	sets := map[string][][]block.Hash{}
	m := map[string]measurement{"check": func() map[string][]float64 { return one(check(x, sets)...) }}
	ask := func(name string, batch int, queries [][]block.Hash) {
		sets[name] = queries
		m[name] = func() map[string][]float64 { return one(match(x, batch, queries)...) }
	}
	kinds := []workload.Kind{workload.PlainChain}
	if share == 64 {
		kinds = append(kinds, workload.ForkedChain, workload.TextChain)
	}
	if share != 512 {
		base := workload.NewBase(64, 1_000_000)
		for op := range base.Stores(workload.Engine) {
			apply(x, op)
		}
		prompts, churn := base.Sessions(sessions), base.Churn(workload.Engine)
		ask("match_sessions", 1000, prompts)
		m["match_under_writer"] = func() map[string][]float64 { return one(contend(x, prompts, churn, false)...) }
		m["match_under_writer_locked"] = func() map[string][]float64 { return one(contend(x, prompts, churn, true)...) }
	}
	for _, kind := range kinds {
		for op := range chains(kind).Stores(workload.Engine) {
			apply(x, op)
		}
	}
	long := chains(workload.PlainChain).Queries(8192, 8192)
	ask("match_256", 1000, chains(workload.PlainChain).Queries(256, 256))
	ask("match_1024", 1000, chains(workload.PlainChain).Queries(1024, 1024))
	ask("match_8192", 100, long)
	ask("match_forked_8192", 100, chains(workload.ForkedChain).Queries(8192, 8192))
	ask("match_miss", 1000, workload.Misses(sessions))
	m["match_seq_8192"] = func() map[string][]float64 { return one(matchSequences(x, long)...) }
	m["scores_from_tokens_256"] = func() map[string][]float64 { return one(scores(x, 200, share, workload.Texts(256))...) }
	m["scores_from_tokens_8192"] = func() map[string][]float64 { return one(scores(x, 20, share, workload.Texts(8192))...) }
	return m
}

// checked are the queries whose answers are compared with those of the other sides, in this order.
var checked = []string{"match_256", "match_1024", "match_8192", "match_forked_8192", "match_sessions", "match_miss"}

// check gives, for each set of queries, the number of answered workers and the sum of their depths.
func check(x index.Index, sets map[string][][]block.Hash) []float64 {
	var all []float64
	for _, name := range checked {
		workers, depths := 0, 0
		for _, q := range sets[name] {
			for _, o := range x.Match(nil, index.Query{Hashes: q}) {
				workers++
				depths += int(o.Depth)
			}
		}
		all = append(all, float64(workers), float64(depths))
	}
	return all
}

// match asks from block hashes.
func match(x index.Index, batch int, queries [][]block.Hash) []float64 {
	var dst []index.Overlap
	return batches(batch, func(n int) {
		dst = x.Match(dst[:0], index.Query{Hashes: queries[n*stride%len(queries)]})
	})
}

func mustHold(rows []index.Overlap, holders, depth int) {
	for _, r := range rows {
		if int(r.Depth) != depth {
			panic(fmt.Sprintf("slot %d holds %d blocks instead of %d", r.Slot, r.Depth, depth))
		}
	}
	if len(rows) != holders {
		panic(fmt.Sprintf("%d slots hold the chain instead of %d", len(rows), holders))
	}
}

// matchSequences asks with sequence hashes.
func matchSequences(x index.Index, hashes [][]block.Hash) []float64 {
	queries := make([]index.Query, len(hashes))
	for i, h := range hashes {
		queries[i] = index.Query{Hashes: h, Sequences: block.Sequences(nil, h)}
	}
	var dst []index.Overlap
	return batches(1000, func(n int) { dst = x.Match(dst[:0], queries[n*stride%len(queries)]) })
}

// scores asks from token ids. As the peers do, it computes block hashes alone.
func scores(x index.Index, batch, holders int, texts [][]block.Token) []float64 {
	var q index.Query
	var dst []index.Overlap
	ask := func(n int) {
		q.Hashes = block.Hashes(q.Hashes[:0], texts[n%len(texts)], workload.BlockSize, nil)
		dst = x.Match(dst[:0], q)
	}
	ask(0)
	mustHold(dst, holders, len(q.Hashes))
	return batches(batch, ask)
}

// contend gives the 99th percentile of the wall time of matches while a writer applies events; both may be locked to threads.
// There is none if the writer misses its rate: the machine is busy, or the index too slow.
func contend(x index.Index, prompts [][]block.Hash, ops []workload.Op, locked bool) []float64 {
	if locked {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	asked := time.Second * time.Duration(len(ops)) / eventsPerSecond
	done := make(chan time.Duration, 1)
	go func() {
		if locked {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		start := time.Now()
		for n, op := range ops {
			apply(x, op)
			if (n+1)%burst == 0 {
				time.Sleep(time.Until(start.Add(time.Second * time.Duration(n+1) / eventsPerSecond)))
			}
		}
		done <- time.Since(start)
	}()
	times := make([]int64, 0, 1<<21)
	var dst []index.Overlap
	for n := 0; ; n++ {
		select {
		case took := <-done:
			if took > asked*11/10 {
				return nil
			}
			return []float64{p99(times)}
		default:
		}
		start := time.Now()
		dst = x.Match(dst[:0], index.Query{Hashes: prompts[n*stride%len(prompts)]})
		times = append(times, int64(time.Since(start)))
	}
}

// writes measures changes of new indexes, of a base with that many pairs.
func writes(pairs int) map[string]measurement {
	base := workload.NewBase(64, pairs)
	stores := slices.Collect(base.Stores(workload.Engine))
	filled := func() index.Index {
		x := index.New(index.Options{})
		applyAll(x, stores)
		return x
	}
	return map[string]measurement{
		"store": func() map[string][]float64 {
			x := index.New(index.Options{})
			took := spent(func() { applyAll(x, stores) })
			x.Close()
			return one(took / float64(base.Pairs))
		},
		"longest": func() map[string][]float64 {
			x := index.New(index.Options{})
			defer x.Close()
			return one(longest(x, stores))
		},
		"remove": func() map[string][]float64 {
			x := filled()
			defer x.Close()
			removes, names := slices.Collect(base.Removes(workload.Engine)), 0
			for _, op := range removes {
				names += len(op.Event.Removed)
			}
			return one(spent(func() { applyAll(x, removes) }) / float64(names))
		},
		"clear": func() map[string][]float64 {
			x := filled()
			defer x.Close()
			const from, to = 16, 24 // as the peers are asked
			took := spent(func() {
				for slot := worker.Slot(from); slot < to; slot++ {
					apply(x, workload.Op{Slot: slot, Event: &event.Event{Kind: event.Cleared}})
				}
			})
			return one(took / (to - from))
		},
		"known": func() map[string][]float64 { return one(known(filled())) },
		"dump": func() map[string][]float64 {
			x := filled()
			defer x.Close()
			return one(spent(func() {
				copies := make([][]event.Event, base.Workers)
				for slot := range copies {
					copies[slot] = x.Dump(worker.Slot(slot), 1)
				}
				runtime.KeepAlive(copies)
			}))
		},
	}
}

// longest gives the CPU time of the event that takes most.
func longest(x index.Index, ops []workload.Op) (most float64) {
	debug.FreeOSMemory()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, op := range ops {
		start := threadCPU()
		apply(x, op)
		most = max(most, threadCPU()-start)
	}
	return most
}

// known stores chains that one worker holds already on 63 others.
func known(x index.Index) float64 {
	defer x.Close()
	var rest []workload.Op
	blocks := 0
	for op := range (workload.Chains{Share: 64, Kind: workload.PlainChain}).Stores(workload.Engine) {
		if op.Slot == 0 {
			apply(x, op)
			continue
		}
		rest = append(rest, op)
		blocks += len(op.Event.Blocks)
	}
	return spent(func() { applyAll(x, rest) }) / float64(blocks)
}

// mark measures collections while nothing but an index with 5 M blocks is alive.
func mark() map[string][]float64 {
	x := index.New(index.Options{})
	for op := range workload.NewBase(64, 5_000_000).Stores(workload.Engine) {
		apply(x, op)
	}
	runtime.GC()
	runtime.GC() // sweeps what the first one found
	samples := batches(1, func(int) { runtime.GC() })
	x.Close()
	return one(samples...)
}

func longChain() map[string]measurement {
	hashes, ops := workload.LongChain(workload.Engine)
	return map[string]measurement{"chain": func() map[string][]float64 {
		x := index.New(index.Options{})
		defer x.Close()
		took := spent(func() { applyAll(x, ops) })
		dst := x.Match(nil, index.Query{Hashes: hashes})
		mustHold(dst, 1, len(hashes))
		found := batches(1, func(int) { dst = x.Match(dst[:0], index.Query{Hashes: hashes}) })
		return map[string][]float64{"store": {took / float64(len(hashes))}, "match": found}
	}}
}

// memoryUnique gives the memory of an index whose blocks have 1.5 holders on average, per pair.
func memoryUnique() map[string][]float64 {
	base := workload.NewBase(64, 1_000_000)
	before := resident()
	x := index.New(index.Options{})
	for op := range base.Stores(workload.Engine) {
		apply(x, op)
	}
	used := resident() - before
	runtime.KeepAlive(base)
	x.Close()
	return one(used / float64(base.Pairs))
}

// memoryShared gives the memory of an index whose blocks have 512 holders, per pair.
func memoryShared() map[string][]float64 {
	before := resident()
	x := index.New(index.Options{})
	pairs := 0
	for op := range (workload.Chains{Share: 512, Kind: workload.PlainChain}).Stores(workload.Engine) {
		pairs += apply(x, op).Stored
	}
	used := resident() - before
	x.Close()
	return one(used / float64(pairs))
}

func hashing() map[string]measurement {
	tokens := workload.Tokens(nil, 1, 4096)
	var hashes []block.Hash
	var seqs []block.SequenceHash
	return map[string]measurement{"hash": func() map[string][]float64 {
		return one(batches(1000, func(int) {
			hashes, seqs = block.Both(hashes[:0], seqs[:0], tokens, workload.BlockSize, nil)
		})...)
	}}
}
