package feed

import (
	"errors"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/wire"
)

// ErrPosition is what Check answers for a Position that no feed can have had.
var ErrPosition = errors.New("no position of a feed")

// Position is how far a feed came: what a later feed of the same rank needs to go on from there, also in another process.
type Position struct {
	Last    uint64   // number of the last batch applied, below 2^64-1
	Seed    uint64   // of the fingerprints
	Prints  []uint64 // fingerprints of the last batches applied, 1 to 64, that of Last at the end; one 0 if a local indexer gave it
	Partial string   // why the view is partial; "" if every batch since 0 was applied
	Streams []byte   // what was learnt of the stream: wire.Normalizer.AppendState
}

// Check tells whether a feed can go on from there: ErrPosition if not.
func (p *Position) Check() error {
	switch n := uint64(len(p.Prints)); {
	case p.Last == math.MaxUint64: // the end marker's number
		return fmt.Errorf("%w: last batch is %d", ErrPosition, p.Last)
	case n == 0 || n > window || n > p.Last+1:
		return fmt.Errorf("%w: %d fingerprints of batches up to %d", ErrPosition, n, p.Last)
	}
	if err := wire.CheckState(p.Streams); err != nil {
		return fmt.Errorf("%w: %w", ErrPosition, err)
	}
	return nil
}

// Freeze stops the feed between two batches until the caller calls release, which it must: the view then stays at the
// position. The position is nil if there is none worth going on from: nothing is applied, or the next connection would
// begin anew. Several feeds may be frozen at once. The caller must not hold a lock that the sink takes.
func (f *Feed) Freeze() (at *Position, release func()) {
	f.step.Lock()
	m := f.machine
	if !m.hasLast || m.renewing || m.unproven || m.restoreAt != 0 {
		return nil, f.step.Unlock
	}
	at = &Position{Last: m.last, Seed: f.seed, Partial: m.partial, Streams: f.norm.AppendState(nil)}
	for seq := m.prints.from; seq < m.prints.to; seq++ {
		at.Prints = append(at.Prints, m.prints.ring[seq%window])
	}
	if len(at.Prints) == 0 {
		at.Prints = []uint64{0} // no batch equals it: a feed with only a replay socket would find another engine
	}
	return at, f.step.Unlock
}

// resume goes on from a position that passed Check, before anything else happens.
func (f *Feed) resume(at *Position) {
	f.seed = at.Seed
	f.norm.SetState(at.Streams)
	f.machine.resume(at)
}

func (m *machine) resume(at *Position) {
	m.hasLast, m.last, m.partial = true, at.Last, at.Partial
	if m.query {
		return // it is replaced by the indexer's state
	}
	first := at.Last + 1 - uint64(len(at.Prints))
	for i, print := range at.Prints {
		m.prints.add(batch{seq: first + uint64(i), print: print})
	}
}
