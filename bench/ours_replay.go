package main

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/replay"
)

const (
	replayKept   = 10_000 // events a log keeps
	replayBlocks = 200_000
	replayDumped = 100_000
	replayGap    = 100
)

func init() { prepare["replay"] = replaying }

// recorded gives a log that has recorded some events, and what ends it.
func recorded(ops []workload.Op) (*replay.Log, func()) {
	x := index.New(index.Options{OneShard: true})
	l, err := replay.New(replay.Config{Events: replayKept, Index: x})
	must(err)
	for _, op := range ops {
		_, err := l.Record(op.Event)
		must(err)
	}
	return l, x.Close
}

// replaying measures the log of one worker's events.
func replaying() map[string]measurement {
	many := slices.Collect(workload.NewBase(1, replayBlocks).Stores(workload.Engine))
	few := slices.Collect(workload.NewBase(1, replayDumped).Stores(workload.Engine))
	return map[string]measurement{
		"record": func() map[string][]float64 {
			var end func()
			took := spent(func() { _, end = recorded(many) })
			end()
			return one(took / float64(len(many)))
		},
		"gap": func() map[string][]float64 {
			l, end := recorded(many)
			defer end()
			last := l.Stats().Last
			q := event.RangeQuery{HasStart: true, Start: last - replayGap + 1, HasEnd: true, End: last}
			return one(batches(1000, func(int) {
				if a := l.Range(&q); len(a.Events) != replayGap {
					panic(fmt.Sprintf("%d events", len(a.Events)))
				}
			})...)
		},
		"dump": func() map[string][]float64 {
			l, end := recorded(few)
			defer end()
			var a event.RangeAnswer
			took := spent(func() { a = l.Range(&event.RangeQuery{}) })
			blocks := 0
			for i := range a.Events {
				blocks += len(a.Events[i].Blocks)
			}
			if blocks < replayDumped {
				panic(fmt.Sprintf("%d blocks", blocks))
			}
			again := batches(10, func(int) { a = l.Range(&event.RangeQuery{}) })
			runtime.KeepAlive(a)
			return map[string][]float64{"fresh": {took}, "again": again}
		},
	}
}
