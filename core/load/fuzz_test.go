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

	fuzzMaxEnds = 2 // so that it takes several calls to end what the model ends in one
)

// mode is what a router may be set to track.
type mode struct {
	blocks, reuse, output, prefill bool
	durations                      durations
}

type durations int

const (
	noDurations durations = iota
	allDurations
	someDurations
)

// everyMode lists the settings that differ: reuse and output matter where blocks are tracked, durations where prefill is.
func everyMode() []mode {
	both := []bool{false, true}
	var modes []mode
	for _, m := range []mode{{}, {blocks: true}, {blocks: true, reuse: true}, {blocks: true, output: true}, {blocks: true, reuse: true, output: true}} {
		for _, m.prefill = range both {
			for m.durations = noDurations; m.durations == noDurations || m.prefill && m.durations <= someDurations; m.durations++ {
				modes = append(modes, m)
			}
		}
	}
	return modes
}

var everything = mode{blocks: true, reuse: true, output: true, prefill: true, durations: someDurations}

// pair drives the ledger and the model with the same calls and compares after each.
type pair struct {
	t      testing.TB
	mode   mode
	prompt int // the longest prompt, in blocks; long ones make the model slow
	ledger *load.Ledger
	model  *model.Ledger
	now    int64

	chained bool // the ledger is given sequence hashes; the model always block hashes
}

func newPair(t testing.TB, m mode, longest int) *pair {
	p := &pair{t: t, mode: m, prompt: longest, ledger: load.New(load.Options{ExpiryNanos: fuzzExpiry}), model: model.New(fuzzExpiry)}
	load.SetMaxEnds(p.ledger, fuzzMaxEnds)
	return p
}

// step decodes one operation. Small alphabets make requests meet: 16 ids, 4 slots, and prompts cut from a few families,
// some of which are not chains at all.
func (p *pair) step(op, a, b, c byte) {
	id := fmt.Sprintf("r%d", a%16)
	slot := worker.Slot(b % fuzzSlots)
	p.now += int64(a / 64) // sometimes time stands still
	switch op % 8 {
	case 0, 1, 2:
		booking := p.booking(op, b, c)
		booking.ID, booking.Slot, booking.Rank = id, slot, worker.Rank{ID: uint64(slot)}
		p.book(booking, c)
	case 3:
		if op >= 128 {
			require.Equal(p.t, p.model.RemoteFree(id, slot, load.Origin(c%3), p.now), p.ledger.RemoteFree(id, slot, load.Origin(c%3), p.now))
			break
		}
		p.same(p.ledger.Free(id, p.now), p.model.Free(id, p.now))
	case 4:
		if op >= 128 {
			require.Equal(p.t, p.model.RemotePrefillComplete(id, slot, load.Origin(c%3), p.now), p.ledger.RemotePrefillComplete(id, slot, load.Origin(c%3), p.now))
			break
		}
		p.same(p.ledger.PrefillComplete(id, p.now), p.model.PrefillComplete(id, p.now))
	case 5:
		if !p.mode.output {
			break
		}
		var fraction *float64
		if c > 40 {
			f := float64(c-41) / 200 // up to 1.07: refused
			fraction = &f
		}
		n := int(b%5) - 1
		p.same(p.ledger.AddOutputBlocks(id, n, fraction, p.now), p.model.AddOutputBlocks(id, n, fraction, p.now))
	case 6:
		p.now += int64(c%32) - 2 // a clock may go back
		require.Equal(p.t, p.model.Expire(p.now), p.inParts(func() int { return p.ledger.Expire(p.now) }), "expired")
	case 7:
		switch {
		case c < 16:
			require.Equal(p.t, p.model.DropSlot(slot, p.now), p.inParts(func() int { return p.ledger.DropSlot(slot, p.now) }))
		case c < 32:
			origin := load.Origin(b % 3)
			require.Equal(p.t, p.model.DropOrigin(origin, p.now), dropOrigin(p.t, p.ledger, origin, p.now))
		case c < 40:
			p.ledger.Reserve(int(a) % 8)
		case c == 40 && !p.chained:
			p.ledger.Chain()
			p.chained = true
		case c > 200:
			p.same(p.ledger.Renew(id, p.now), p.model.Renew(id, p.now))
		}
	}
	p.compare(id, prompt(c, a, p.prompt))
}

// inParts calls until there is no more to end, and tells how many ended.
func (p *pair) inParts(call func() int) (all int) {
	for n := fuzzMaxEnds; n == fuzzMaxEnds; all += n {
		n = call()
		require.LessOrEqual(p.t, n, fuzzMaxEnds)
	}
	return all
}

// dropOrigin ends all that a router placed, in as many calls as it takes.
func dropOrigin(t testing.TB, l *load.Ledger, origin load.Origin, now int64) (all int) {
	d := l.Departed(origin, now)
	for more := true; more; {
		var n int
		n, more = l.DropOrigin(&d, now)
		require.LessOrEqual(t, n, load.MaxEnds)
		all += n
	}
	return all
}

// book books, half of the time after a query for the same blocks, after which sometimes another request ends.
func (p *pair) book(booking load.Booking, c byte) {
	other := fmt.Sprintf("r%d", c%16)
	given := booking
	given.Blocks = p.named(booking.Blocks)
	if given.Walked = c%2 == 1; given.Walked {
		p.ledger.Matched(make([]uint32, fuzzSlots), given.Blocks)
		if c%8 == 7 {
			p.same(p.ledger.Free(other, p.now), p.model.Free(other, p.now))
		}
	}
	p.same(p.ledger.Book(&given, p.now), p.model.Book(booking, p.now))
}

// named gives blocks as the ledger is to be given them.
func (p *pair) named(blocks []block.Hash) []block.Hash {
	if !p.chained {
		return blocks
	}
	var names []block.Hash
	for _, s := range block.Sequences(nil, blocks) {
		names = append(names, block.Hash(s))
	}
	return names
}

func (p *pair) booking(op, b, c byte) load.Booking {
	out := load.Booking{Origin: load.Origin(max(int(op/64)-1, 0))}
	if op == 255 {
		return load.Booking{Private: -1, PrefillTokens: -1}
	}
	switch seq := prompt(b/fuzzSlots, c, p.prompt); {
	case !p.mode.blocks:
	case p.mode.reuse && op%16 < 8:
		out.Blocks, out.Private = seq, int(op/8)%3
	default:
		out.Private = len(seq)
	}
	if p.mode.prefill {
		out.PrefillTokens = int(c) * int(b%4) // also 0
		out.PrefillModeled = p.mode.durations == allDurations || p.mode.durations == someDurations && op%32 < 16
		if out.PrefillModeled {
			out.PrefillNanos = int64(op/16) * int64(c%16) // also 0
		}
	}
	return out
}

// prompt gives one of several families of hashes: a shared chain, chains that leave it at different depths, and
// sequences that repeat hashes or meet again after they differed.
func prompt(family, length byte, longest int) []block.Hash {
	n := int(length) % longest
	seq := make([]block.Hash, n)
	for i := range seq {
		switch fork := int(family%8) * longest / 11; {
		case family%16 == 15:
			seq[i] = block.Hash(i % 3)
		case i == fork && family >= 32:
			seq[i] = block.Hash(1000 + uint64(family))
		case i > fork && family >= 128:
			seq[i] = block.Hash(2000 + uint64(family)*100 + uint64(i))
		default:
			seq[i] = block.Hash(i + 1)
		}
	}
	return seq
}

func (p *pair) same(got, want error) {
	for _, kind := range []error{load.ErrInvalid, load.ErrDuplicateRequest, load.ErrRequestNotFound} {
		if errors.Is(want, kind) != errors.Is(got, kind) {
			p.t.Fatalf("got %v, want %v", got, want)
		}
	}
	if (want == nil) != (got == nil) {
		p.t.Fatalf("got %v, want %v", got, want)
	}
}

// seen is what can be asked of a ledger about one slot.
type seen struct {
	load      load.Load
	depth     uint32 // matched of a query
	remaining int64
	modeled   bool
}

// known is what can be asked of a ledger about one request, and about all.
type known struct {
	place     load.Placement
	placed    bool
	next      int64
	scheduled bool
}

func (p *pair) compare(id string, query []block.Hash) {
	var got, want [fuzzSlots + 1]seen
	var gotDepth, wantDepth [fuzzSlots]uint32
	gotDepth[1] = 99 // left over
	p.ledger.Matched(gotDepth[:], p.named(query))
	p.model.Matched(wantDepth[:], query)
	loads := p.ledger.Loads()
	for i := range got {
		slot := worker.Slot(i)
		got[i].load, want[i].load = p.ledger.Load(slot), p.model.Load(slot)
		if i < len(loads) && loads[i] != got[i].load || i >= len(loads) && got[i].load != (load.Load{}) {
			p.t.Fatalf("loads of slot %d: %v alone, among all %v", i, got[i].load, loads)
		}
		if i < fuzzSlots {
			got[i].depth, want[i].depth = gotDepth[i], wantDepth[i]
		}
		got[i].remaining, got[i].modeled = p.ledger.RemainingPrefillNanos(slot)
		want[i].remaining, want[i].modeled = p.model.RemainingPrefillNanos(slot)
	}
	if got != want {
		require.Equal(p.t, want, got)
	}
	var gotKnown, wantKnown known
	gotKnown.place, gotKnown.placed = p.ledger.Placed(id)
	wantKnown.place, wantKnown.placed = p.model.Placed(id)
	gotKnown.next, gotKnown.scheduled = p.ledger.NextExpiry()
	wantKnown.next, wantKnown.scheduled = p.model.NextExpiry()
	if gotKnown != wantKnown {
		require.Equal(p.t, wantKnown, gotKnown)
	}
}

func FuzzLedgerAgainstModel(f *testing.F) {
	f.Add([]byte{0, 1, 0, 12, 0, 2, 0, 13, 5, 1, 2, 141, 4, 1, 0, 0, 3, 1, 0, 0, 6, 0, 0, 31, 6, 0, 0, 31, 3, 2, 0, 0, 3, 2, 0, 0})
	f.Add([]byte{0, 1, 128, 60, 1, 2, 129, 70, 2, 3, 228, 79, 5, 1, 4, 100, 7, 0, 0, 1, 4, 1, 0, 0, 4, 1, 0, 0, 0, 1, 60, 9})
	f.Add([]byte{32, 65, 1, 12, 40, 66, 1, 13, 16, 67, 1, 14, 4, 2, 1, 0, 6, 0, 0, 9, 131, 65, 1, 0, 192, 68, 1, 20, 7, 0, 1, 20, 6, 0, 0, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPair(t, everything, 80)
		for ; len(ops) >= 4; ops = ops[4:] {
			p.step(ops[0], ops[1], ops[2], ops[3])
			load.Check(t, p.ledger)
		}
	})
}

func TestLedgerAgainstModelInEveryMode(t *testing.T) {
	for i, m := range everyMode() {
		t.Run(fmt.Sprintf("%+v", m), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			longest := 24
			if m == everything {
				longest = 80
			}
			p := newPair(t, m, longest)
			for n := range 10_000 {
				v := rng.Uint32()
				p.step(byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
				if n%200 == 0 {
					load.Check(t, p.ledger)
				}
			}
		})
	}
}
