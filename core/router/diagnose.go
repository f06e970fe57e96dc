package router

import (
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is where decisions meet package diagnose: some prompts that hit nothing are looked for again later.

// sample may keep a prompt that was just placed on a rank. A prompt that ends with its first block is none: not every
// engine caches the last token's. r.mu is held.
func (r *Router) sample(s *scratch, q *Request, k *rank, hit bool) {
	switch {
	case !r.config.UseKVEvents:
	case hit:
		if r.presumed == nil { // else it may have hit what is only presumed
			k.watch.Hit(diagnose.Identity{LoRAName: q.LoRAName, CacheSalt: q.CacheNamespace})
		}
	case len(q.Tokens) > r.blockSize && (len(q.MM) == 0 || len(q.MM[0]) == 0) && k.watch.Wants():
		k.watch.Miss(r.now(), &diagnose.Request{
			ID: q.ID, Booked: q.Book, Tokens: q.Tokens[:r.blockSize],
			Identity: diagnose.Identity{LoRAName: q.LoRAName, CacheSalt: q.CacheNamespace},
		}, k.intake.Progress())
	}
}

// sampleEnded hears of every booking that ends. r.mu is held.
func (r *Router) sampleEnded(id string, slot worker.Slot, now int64) {
	if int(slot) < len(r.bySlot) && r.bySlot[slot] != nil {
		r.bySlot[slot].watch.Ended(id, now)
	}
}

// diagnose tells why prompts do not find what a rank holds, if that is known.
func (r *Router) diagnose(k *rank, row *RankHealth) []diagnose.Finding {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return nil
	}
	now := r.now()
	k.watch.Look(&diagnose.View{
		Now: now, Progress: k.intake.Progress(), Identities: k.intake.Identities(), Complete: row.State == feed.Exact, Waiting: row.State == feed.Recovering,
		Holds: func(sample *diagnose.Sample, id diagnose.Identity) bool {
			return r.holds(s, k.cache, sample.Tokens, id)
		},
	})
	return diagnose.Findings(&k.intake, &k.watch, row.Counters, r.blockSize, now)
}

// holds tells whether a cache has the first block of a prompt in any tier. Its rank's lock is held, so that it does not
// change hands.
func (r *Router) holds(s *scratch, cache worker.Slot, tokens []block.Token, id diagnose.Identity) bool {
	named := block.Identity{LoRAName: id.LoRAName, CacheSalt: id.CacheSalt}
	s.hashes = block.Hashes(s.hashes[:0], tokens, r.blockSize, &named)
	q := index.Query{Hashes: s.hashes}
	s.overlaps = r.index.Match(s.overlaps[:0], q)
	r.extend(s, q)
	for _, o := range s.overlaps {
		if o.Slot == cache && o.Depth > 0 {
			return true
		}
	}
	for _, x := range s.extensions {
		if x.Slot == cache && x.Host+x.Disk+x.External > 0 {
			return true
		}
	}
	return false
}
