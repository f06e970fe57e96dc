package feed

import (
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// applier decodes batches and applies them to the sink.
type applier struct {
	rank  worker.Rank
	sink  Sink
	norm  *wire.Normalizer
	wire  wire.Decoder
	tally *Tally
	seed  uint64 // of contents

	compares bool // a batch's content is asked for

	journal *journal
	intake  *diagnose.Intake // may be nil
}

// apply never loses an event to its neighbours: whatever one of them is, the others are applied.
func (a *applier) apply(b *batch) (d damage) {
	defer func() {
		if cause := recover(); cause != nil {
			a.panicked(cause)
			a.reset()
			d = panicked
		}
	}()
	a.tally.add(countBatches, 1)
	if b.queried {
		a.tally.add(countEvents, len(b.events))
		for i := range b.events {
			if b.events[i].Kind == 0 {
				a.tally.add(countForeign, 1)
				continue
			}
			a.valid(&b.events[i], nil)
		}
		return intact
	}
	batch, err := a.wire.Decode(b.payload, wire.Limits{})
	if err != nil {
		a.tally.add(countUndecodableBatches, 1)
		a.reset()
		a.intake.Unusable(counterNames[countUndecodableBatches], 0)
		return dropped
	}
	if batch.HasRank && batch.DPRank != a.rank.DPRank {
		a.tally.add(countOtherRank, 1)
		a.intake.Unusable(counterNames[countOtherRank], 0)
		return intact
	}
	a.tally.add(countEvents, len(batch.Events))
	for i := range batch.Events {
		d = max(d, a.event(&batch.Events[i], b))
	}
	return d
}

func (a *applier) event(e *wire.Event, b *batch) damage {
	if e.Err != nil {
		a.tally.add(countUndecodableEvents, 1)
		if e.Kind == event.Stored {
			a.intake.Unusable(counterNames[countUndecodableEvents], 0)
			return lostStore
		}
		a.reset() // what it removed is not known
		return dropped
	}
	if e.Kind == 0 {
		a.tally.add(countUnknownTag, 1)
		return intact
	}
	ev, verdict := a.norm.Normalize(e, b.seq, a.rank.DPRank)
	if verdict != wire.Keep {
		a.tally.verdict(string(verdict))
		if e.Kind == event.Stored {
			a.intake.Unusable(string(verdict), e.BlockSize)
		} else {
			a.intake.Heard()
		}
		return intact
	}
	if e.Kind == event.Stored {
		if e.Bigram {
			a.tally.add(countEagle, 1)
		}
		a.intake.Named(diagnose.Identity{LoRAName: e.LoRAName, CacheSalt: a.norm.Salt()})
	}
	if a.compares {
		b.content = contents(b.content, &ev, a.seed)
	}
	a.valid(&ev, e)
	return intact
}

// valid gives an event to the sink, and what the engine sent if that is known.
func (a *applier) valid(ev *event.Event, from *wire.Event) {
	var done index.Applied
	var err error
	if raw, ok := a.sink.(RawSink); ok && from != nil {
		done, err = raw.ApplyRaw(a.rank, from, a.norm.Salt())
	} else {
		done, err = a.sink.Apply(a.rank, ev)
	}
	a.tally.Applied(ev.Kind, done, err)
}

// renew begins a new view, out of sight if the sink can do that, until commit.
func (a *applier) renew() {
	a.norm.Reset()
	if r, ok := a.sink.(Replacer); ok {
		r.Renew(a.rank)
	} else {
		a.sink.Reset(a.rank)
	}
}

func (a *applier) commit() {
	if r, ok := a.sink.(Replacer); ok {
		r.Commit(a.rank)
	}
}

// reset empties the view. A sink that panics here has been counted by apply or the owner already, or is now.
func (a *applier) reset() {
	defer func() {
		if cause := recover(); cause != nil {
			a.panicked(cause)
		}
	}()
	a.norm.Reset()
	a.sink.Reset(a.rank)
}

// panicked counts a panic and tells of it.
func (a *applier) panicked(cause any) {
	a.tally.add(countPanics, 1)
	a.journal.panicked(cause)
}
