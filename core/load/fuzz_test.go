package load_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/load/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	fuzzSlots  = 4
	fuzzExpiry = 50
)

// pair drives the ledger and the model with the same calls and compares after each.
type pair struct {
	t      testing.TB
	ledger *load.Ledger
	model  *model.Ledger
	now    int64
}

func newPair(t testing.TB) *pair {
	return &pair{t: t, ledger: load.New(load.Options{ExpiryNanos: fuzzExpiry}), model: model.New(fuzzExpiry)}
}

// step decodes one operation. Small alphabets make requests meet: 16 ids, 4 slots, and prompts cut from a few families,
// some of which are not chains at all.
func (p *pair) step(op, a, b, c byte) {
	id := fmt.Sprintf("r%d", a%16)
	slot := worker.Slot(b % fuzzSlots)
	switch op % 8 {
	case 0, 1, 2:
		booking := load.Booking{ID: id, Slot: slot, Sequences: prompt(b/fuzzSlots, c), Private: int(op/8) % 3, PrefillTokens: int(c)}
		if op == 255 {
			booking.Private, booking.PrefillTokens = -1, -1
		}
		p.same(p.ledger.Book(booking, p.now), p.model.Book(booking, p.now))
	case 3:
		p.same(p.ledger.Free(id, p.now), p.model.Free(id, p.now))
	case 4:
		p.same(p.ledger.PrefillComplete(id, p.now), p.model.PrefillComplete(id, p.now))
	case 5:
		var fraction *float64
		if c > 40 {
			f := float64(c-41) / 200 // up to 1.07: refused
			fraction = &f
		}
		n := int(b%5) - 1
		p.same(p.ledger.AddOutputBlocks(id, n, fraction, p.now), p.model.AddOutputBlocks(id, n, fraction, p.now))
	case 6:
		p.now += int64(c % 32)
		require.Equal(p.t, p.model.Expire(p.now), p.ledger.Expire(p.now), "expired")
	case 7:
		if c < 32 {
			p.ledger.DropSlot(slot, p.now)
			p.model.DropSlot(slot, p.now)
		}
	}
	p.compare(prompt(c, a))
}

// prompt gives one of several families of hashes: a shared chain, chains that leave it at different depths, and
// sequences that repeat hashes or meet again after they differed.
func prompt(family, length byte) []block.SequenceHash {
	n := int(length) % 80
	seq := make([]block.SequenceHash, n)
	for i := range seq {
		switch fork := int(family%8) * 7; {
		case family%16 == 15:
			seq[i] = block.SequenceHash(i % 3)
		case i == fork && family >= 32:
			seq[i] = block.SequenceHash(1000 + uint64(family))
		case i > fork && family >= 128:
			seq[i] = block.SequenceHash(2000 + uint64(family)*100 + uint64(i))
		default:
			seq[i] = block.SequenceHash(i + 1)
		}
	}
	return seq
}

func (p *pair) same(got, want error) {
	p.t.Helper()
	for _, kind := range []error{load.ErrInvalid, load.ErrDuplicateRequest, load.ErrRequestNotFound} {
		require.Equal(p.t, errors.Is(want, kind), errors.Is(got, kind), "got %v, want %v", got, want)
	}
	require.Equal(p.t, want == nil, got == nil)
}

func (p *pair) compare(query []block.SequenceHash) {
	p.t.Helper()
	for slot := range worker.Slot(fuzzSlots + 1) {
		require.Equal(p.t, p.model.Load(slot), p.ledger.Load(slot), "load of slot %d", slot)
	}
	gotDepth, wantDepth := [fuzzSlots]uint32{9, 9, 9, 9}, [fuzzSlots]uint32{}
	p.ledger.Matched(gotDepth[:], query)
	p.model.Matched(wantDepth[:], query)
	require.Equal(p.t, wantDepth, gotDepth, "matched")
	load.Check(p.t, p.ledger)
}

func FuzzLedgerAgainstModel(f *testing.F) {
	f.Add([]byte{0, 1, 0, 12, 0, 2, 0, 13, 5, 1, 2, 141, 4, 1, 0, 0, 3, 1, 0, 0, 6, 0, 0, 31, 6, 0, 0, 31, 3, 2, 0, 0, 3, 2, 0, 0})
	f.Add([]byte{0, 1, 128, 60, 1, 2, 129, 70, 2, 3, 228, 79, 5, 1, 4, 100, 7, 0, 0, 1, 4, 1, 0, 0, 4, 1, 0, 0, 0, 1, 60, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPair(t)
		for ; len(ops) >= 4 && len(ops) > 0; ops = ops[4:] {
			p.step(ops[0], ops[1], ops[2], ops[3])
		}
	})
}

func TestLedgerAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := newPair(t)
		for range 1500 {
			v := rng.Uint32()
			p.step(byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
		}
	}
}
