package workload

import (
	"iter"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// The shape of Base. Prefixes are drawn twice, each draw below the one before: a few are in most conversations.
const (
	Prefixes     = 100 // shared system prompts
	PrefixBlocks = 64
	minUser      = 32 // blocks of a conversation after its prefix
	maxUser      = 512
	maxEvent     = 32 // blocks of an event
)

const (
	baseSeed    = 42
	removeSeed  = 43
	sessionSeed = 11
	removeID    = 1_000_000 // the first event id of Removes
)

// Base is the stream of stores of workers that serve conversations.
type Base struct {
	Workers int
	Pairs   int // (block, worker) pairs stored
	Unique  int // distinct blocks
	Users   int // conversations
	Placed  int // (worker, conversation) pairs

	users  []user
	placed []placement
	queues [][]run // by worker, in order
	prefix [Prefixes][]block.SequenceHash
}

type user struct {
	prefix int
	hashes []block.Hash
	seqs   []block.SequenceHash
}

type placement struct{ worker, user int }

// A run is what one event stores: blocks [from, from+n) of a prefix or of a conversation.
type run struct {
	user     bool
	id       int
	from, to int
}

// NewBase places conversations on the workers until that many pairs are stored.
func NewBase(workers, pairs int) *Base {
	b := &Base{Workers: workers, queues: make([][]run, workers)}
	for p := range b.prefix {
		b.prefix[p] = block.Sequences(nil, Hashes(Prefix, uint64(p), PrefixBlocks))
	}
	rng := RNG(baseSeed)
	var used [Prefixes]bool
	has := map[run]map[int]bool{} // a whole prefix or conversation, by worker
	first := func(r run, w int) bool {
		if has[r] == nil {
			has[r] = map[int]bool{}
		}
		was := has[r][w]
		has[r][w] = true
		return !was
	}
	for b.Pairs < pairs {
		w := int(rng.Below(uint64(workers)))
		u := len(b.users)
		if rng.Below(4) == 0 && u > 0 {
			u = int(rng.Below(uint64(u))) // an old conversation goes on at another worker
		} else {
			b.addUser(&rng)
		}
		p := b.users[u].prefix
		used[p] = true
		if first(run{id: p}, w) {
			b.queue(&rng, w, run{id: p, to: PrefixBlocks})
		}
		if first(run{user: true, id: u}, w) {
			b.placed = append(b.placed, placement{w, u})
			b.queue(&rng, w, run{user: true, id: u, to: len(b.users[u].seqs)})
		}
	}
	for _, is := range used {
		if is {
			b.Unique += PrefixBlocks
		}
	}
	for _, u := range b.users {
		b.Unique += len(u.seqs)
	}
	b.Users, b.Placed = len(b.users), len(b.placed)
	return b
}

func (b *Base) addUser(rng *RNG) {
	p := int(rng.Below(rng.Below(Prefixes) + 1))
	n := int(minUser + rng.Below(maxUser-minUser+1))
	u := user{p, Hashes(User, uint64(len(b.users)), n), make([]block.SequenceHash, n)}
	last := b.prefix[p][PrefixBlocks-1]
	for i, h := range u.hashes {
		last = block.Extend(last, h)
		u.seqs[i] = last
	}
	b.users = append(b.users, u)
}

// queue cuts a run into events.
func (b *Base) queue(rng *RNG, w int, r run) {
	for end := r.to; r.from < end; r.from = r.to {
		r.to = min(r.from+int(1+rng.Below(maxEvent)), end)
		b.queues[w] = append(b.queues[w], r)
		b.Pairs += r.to - r.from
	}
}

// Stores are the events in turns: the first of each worker, then the second of each, and so on.
func (b *Base) Stores(name Naming) iter.Seq[Op] {
	return inTurns(b.queues, func(r run, round int) *event.Event { return b.store(name, r, uint64(round)+1) })
}

func (b *Base) store(name Naming, r run, id uint64) *event.Event {
	if !r.user {
		seqs := b.prefix[r.id]
		return name.store(id, before(nil, seqs, r.from), Hashes(Prefix, uint64(r.id), PrefixBlocks)[r.from:r.to], seqs[r.from:r.to])
	}
	u := &b.users[r.id]
	prefix := b.prefix[u.prefix]
	return name.store(id, before(&prefix[PrefixBlocks-1], u.seqs, r.from), u.hashes[r.from:r.to], u.seqs[r.from:r.to])
}

// before gives the block before seqs[from]: for the first one the given parent.
func before(parent *block.SequenceHash, seqs []block.SequenceHash, from int) *block.SequenceHash {
	if from == 0 {
		return parent
	}
	return &seqs[from-1]
}

// Removes takes every other placed conversation from its worker, last block first; its prefix stays.
func (b *Base) Removes(name Naming) iter.Seq[Op] {
	queues := make([][]run, b.Workers)
	rng := RNG(removeSeed)
	for k := 0; k < len(b.placed); k += 2 {
		at := b.placed[k]
		for left := len(b.users[at.user].seqs); left > 0; {
			n := min(int(1+rng.Below(maxEvent)), left)
			queues[at.worker] = append(queues[at.worker], run{true, at.user, left - n, left})
			left -= n
		}
	}
	return inTurns(queues, func(r run, round int) *event.Event {
		ev := &event.Event{ID: removeID + uint64(round), Kind: event.Removed}
		for i := r.to - 1; i >= r.from; i-- {
			ev.Removed = append(ev.Removed, name(b.users[r.id].seqs[i]))
		}
		return ev
	})
}

// Churn is Removes, and then the stores that bring back what it takes: after it, the workers hold what they held before.
func (b *Base) Churn(name Naming) []Op {
	ops := slices.Collect(b.Removes(name))
	type held struct {
		slot worker.Slot
		name block.EngineHash
	}
	gone := map[held]bool{}
	for _, op := range ops {
		for _, n := range op.Event.Removed {
			gone[held{op.Slot, n}] = true
		}
	}
	for op := range b.Stores(name) {
		if gone[held{op.Slot, op.Event.Blocks[0].Engine}] {
			ops = append(ops, op)
		}
	}
	return ops
}

// inTurns makes events of the runs: round by round, in each round the next one of every worker.
func inTurns(queues [][]run, make func(r run, round int) *event.Event) iter.Seq[Op] {
	return func(yield func(Op) bool) {
		for round, more := 0, true; more; round++ {
			more = false
			for w, q := range queues {
				if round >= len(q) {
					continue
				}
				more = true
				if !yield(Op{worker.Slot(w), make(q[round], round)}) {
					return
				}
			}
		}
	}
}

// Session is the whole prompt of a conversation: 96 to 576 blocks, all of them stored somewhere.
func (b *Base) Session(u int) []block.Hash {
	return append(Hashes(Prefix, uint64(b.users[u].prefix), PrefixBlocks), b.users[u].hashes...)
}

// Sessions draws n conversations.
func (b *Base) Sessions(n int) [][]block.Hash {
	rng := RNG(sessionSeed)
	all := make([][]block.Hash, n)
	for i := range all {
		all[i] = b.Session(int(rng.Below(uint64(len(b.users)))))
	}
	return all
}
