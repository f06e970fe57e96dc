package metrics

import (
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// maxCounters bounds the names of feed counters: there are as many as feeds and decoders have reasons, some dozens.
const maxCounters = 256

// feeds adds up the counters of all feeds there ever were: a counter that sank with a rank that leaves would look like a
// restart, and all it still has like progress.
type feeds struct {
	totals map[string]uint64
	last   map[worker.Rank]seen
	round  uint64
}

// seen is what a rank's feed had counted when it was last looked at.
type seen struct {
	counters map[string]uint64
	round    uint64
}

func newFeeds() feeds {
	return feeds{totals: map[string]uint64{}, last: map[worker.Rank]seen{}}
}

// add counts what is new. A counter that is lower than before is that of a new feed.
func (f *feeds) add(health []router.RankHealth) {
	f.round++
	for i := range health {
		id := worker.Rank{ID: health[i].WorkerID, DPRank: health[i].DPRank}
		before := f.last[id].counters
		for name, n := range health[i].Counters {
			if was := before[name]; was <= n {
				n -= was
			}
			if _, known := f.totals[name]; !known && len(f.totals) >= maxCounters {
				name = other
			}
			f.totals[name] += n
		}
		f.last[id] = seen{health[i].Counters, f.round}
	}
	for id, s := range f.last {
		if s.round != f.round {
			delete(f.last, id)
		}
	}
}
