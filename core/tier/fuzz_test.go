package tier_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/tier/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

var tiers = [...]event.Tier{event.HostPinned, event.Disk, event.External}

// A driver decodes bytes into operations, does each on the tiers and on the model, and compares what they answer and what
// they then hold. If bounded, the model has no bound and the tiers have: their answers may be shorter, and their memory
// never exceeds the bound.
type driver struct {
	t     testing.TB
	data  []byte
	got   *tier.Tiers
	want  *model.Model
	slots worker.Slot
	bound int64
	steps int
}

func drive(t testing.TB, data []byte, maxSteps int) {
	d := &driver{t: t, data: data, want: model.New()}
	d.slots = [...]worker.Slot{2, 5, 70, 130}[d.pick(4)]
	if d.pick(3) == 0 {
		d.bound = int64(30_000 + 1000*d.pick(100))
	}
	d.got = tier.New(d.bound)
	for ; d.steps < maxSteps && len(d.data) > 0; d.steps++ {
		d.step()
		if d.steps%8 == 0 { // it looks at everything, and a fault stays
			require.NoError(t, tier.Check(d.got))
		}
	}
	require.NoError(t, tier.Check(d.got))
	if d.bound == 0 {
		for slot := range d.slots {
			d.compareSlot(slot)
		}
		d.compareCopies()
	}
	for slot := range d.slots {
		d.got.Drop(slot)
	}
	require.True(t, d.got.Empty())
	require.NoError(t, tier.Check(d.got))
	for _, in := range tiers {
		require.Zero(t, d.got.Stats(in).Blocks+d.got.Stats(in).Pairs)
	}
}

func (d *driver) pick(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	v := int(d.data[0])
	d.data = d.data[1:]
	return v % n
}

func (d *driver) slot() worker.Slot {
	if v := d.pick(256); v < 160 {
		return [...]worker.Slot{0, 1, d.slots / 2, d.slots - 1}[v%4]
	} else {
		return worker.Slot(v) % d.slots
	}
}

func (d *driver) tier() event.Tier { return tiers[d.pick(5)%3] }

// chain gives the blocks of one of a few prompts, under one of two namings. Prompts have 30 blocks in common, or begin
// with equal contents.
func chain(prompt, naming int) []event.Block { return chains[prompt][naming] }

var chains = func() (all [4][2][]event.Block) {
	for prompt := range all {
		for naming := range all[prompt] {
			all[prompt][naming] = newChain(prompt, naming)
		}
	}
	return all
}()

func newChain(prompt, naming int) []event.Block {
	blocks := make([]event.Block, 80)
	for i := range blocks {
		h := block.Hash(i + 1)
		if i >= 30 {
			h = block.Hash(prompt*1000 + i)
		}
		if prompt == 3 {
			h = block.Hash(i / 60)
		}
		blocks[i] = event.Block{Hash: h, Engine: block.EngineHash(1_000_000*(naming+1) + 7*int(h) + 100_000*(prompt/3) + i)}
	}
	return blocks
}

func below(blocks []event.Block, from, to int) *event.Event {
	ev := &event.Event{Kind: event.Stored, Blocks: blocks[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, blocks[from-1].Engine
	}
	return ev
}

// chaos gives blocks of few names and contents, so that everything contradicts everything.
func (d *driver) chaos() *event.Event {
	ev := &event.Event{Kind: event.Stored, HasParent: d.pick(4) > 0, Parent: block.EngineHash(d.pick(12))}
	for range d.pick(6) {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(d.pick(12)), Hash: block.Hash(d.pick(3))})
	}
	return ev
}

func (d *driver) span(n int) (from, to int) {
	from = d.pick(n)
	return from, from + 1 + d.pick(n-from)
}

func (d *driver) step() {
	counting := index.Counting(d.pick(4) / 3)
	op := d.pick(16)
	if d.bound > 0 && (op == 0 || op == 1 || op == 7) {
		op = 2 // contradictions are resolved by what is held already, and a bound changes that
	}
	switch op {
	case 0, 1:
		ev := d.chaos()
		ev.Tier = d.tier()
		d.apply(d.slot(), ev, counting)
	case 2, 3, 4:
		from, to := d.span(80)
		ev := below(chain(d.pick(4), d.pick(2)), from, to)
		ev.Tier = d.tier()
		for slot, end := d.slot(), worker.Slot(d.pick(4)); slot < d.slots && end < 4; slot, end = slot+1, end+1 {
			d.apply(slot, ev, counting)
		}
	case 5, 6:
		from, to := d.span(80)
		ev := &event.Event{Kind: event.Removed, Tier: d.tier()}
		for _, b := range chain(d.pick(4), d.pick(2))[from:to] {
			ev.Removed = append(ev.Removed, b.Engine)
		}
		for slot, end := d.slot(), worker.Slot(d.pick(4)); slot < d.slots && end < 4; slot, end = slot+1, end+1 {
			d.apply(slot, ev, counting)
		}
	case 7, 8:
		ev := &event.Event{Kind: event.Removed, Tier: d.tier()}
		for range d.pick(8) {
			ev.Removed = append(ev.Removed, block.EngineHash(d.pick(12)))
		}
		d.apply(d.slot(), ev, counting)
	case 9:
		if d.pick(4) == 0 {
			d.apply(d.slot(), &event.Event{Kind: event.Cleared}, counting)
		}
	case 10:
		if d.pick(4) == 0 {
			slot := d.slot()
			d.got.Drop(slot)
			d.want.Drop(slot)
			d.compareSlot(slot)
		}
	case 11:
		d.apply(d.slot(), &event.Event{Kind: event.Stored, Tier: event.Device, Blocks: chain(0, 0)[:2]}, counting)
	default:
		d.queries()
	}
}

func (d *driver) apply(slot worker.Slot, ev *event.Event, counting index.Counting) {
	want, wantErr := d.want.Apply(slot, ev, counting)
	got, err := d.got.Apply(slot, ev, counting)
	if d.bound > 0 {
		require.True(d.t, err == nil || errors.Is(err, tier.ErrFull) || errors.Is(err, wantErr), "%v", err)
		require.LessOrEqual(d.t, d.got.Bytes(), d.bound)
	} else {
		require.True(d.t, got == want && errors.Is(err, wantErr), "slot %d: %v, %v, not %v, %v after %v", slot, got, err, want, wantErr, ev)
		if d.steps%8 == 0 {
			d.compareSlot(slot)
		}
	}
	d.queries()
}

// queries asks for all slots at once, where they stand below different or equal blocks of a prompt, or anywhere.
func (d *driver) queries() {
	var hashes []block.Hash
	var starts []tier.Start
	if d.bound == 0 && d.pick(3) == 0 {
		for range 1 + d.pick(14) {
			hashes = append(hashes, block.Hash(d.pick(3)))
		}
		for slot := range d.slots {
			starts = append(starts, tier.Start{Slot: slot, Depth: uint32(d.pick(3)), Parent: block.EngineHash(d.pick(12))})
		}
	} else {
		prompt, depth, spread, namings := d.pick(4), d.pick(80), 1+d.pick(3), 1+d.pick(2)
		for _, b := range chain(prompt, 0) {
			hashes = append(hashes, b.Hash)
		}
		for slot := range d.slots {
			s := tier.Start{Slot: slot, Depth: uint32(depth * (int(slot) % spread) % 81)}
			if s.Depth > 0 {
				s.Parent = chain(prompt, int(slot)%namings)[s.Depth-1].Engine
			}
			starts = append(starts, s)
		}
	}
	rows := map[worker.Slot]tier.Extension{}
	for _, x := range d.got.Extend(nil, hashes, starts) {
		require.NotContains(d.t, rows, x.Slot)
		require.NotZero(d.t, x.Host+x.Disk+x.External)
		rows[x.Slot] = x
	}
	for _, s := range starts {
		want, got := d.want.Extend(hashes, s), rows[s.Slot]
		got.Slot = s.Slot
		if d.bound > 0 {
			require.LessOrEqual(d.t, got.Host, want.Host)
			require.LessOrEqual(d.t, got.Host+got.Disk+got.External, want.Host+want.Disk+want.External)
			continue
		}
		if got != want {
			require.Fail(d.t, "another extension", "%v, not %v, from %v of %v", got, want, s, hashes)
		}
	}
}

// compareSlot compares what a slot holds, with references.
func (d *driver) compareSlot(slot worker.Slot) {
	held := false
	for _, in := range tiers {
		want := d.want.Names(slot, in)
		held = held || len(want) > 0
		require.Equal(d.t, len(want), d.got.Blocks(slot, in))
		got := names(d.t, d.got.Dump(slot, in, 3), in)
		require.Equal(d.t, len(want), len(got))
		for engine, p := range got {
			if want[engine].Place != p {
				require.Fail(d.t, "another place", "slot %d, %s, name %d: %v, not %v", slot, in, engine, p, want[engine].Place)
			}
		}
	}
	require.Equal(d.t, held, d.got.Holds(slot))
	if held {
		require.Contains(d.t, d.got.Holders(nil), slot)
	} else {
		require.NotContains(d.t, d.got.Holders(nil), slot)
	}
}

// names reads a dump: what each engine hash stands for.
func names(t testing.TB, dump []event.Event, in event.Tier) map[block.EngineHash]model.Place {
	out := make(map[block.EngineHash]model.Place)
	for i, ev := range dump {
		require.True(t, ev.Kind == event.Stored && ev.Tier == in && ev.ID == uint64(3+i) && len(ev.Blocks) > 0)
		p := model.Place{HasParent: ev.HasParent, Parent: ev.Parent}
		for _, b := range ev.Blocks {
			p.Hash = b.Hash
			if _, twice := out[b.Engine]; twice {
				require.Fail(t, "a name is dumped twice", "%d", b.Engine)
			}
			out[b.Engine] = p
			p.HasParent, p.Parent = true, b.Engine
		}
	}
	return out
}

// compareCopies loads dumps, last first, and runs into empty tiers.
func (d *driver) compareCopies() {
	loaded, restored := tier.New(0), tier.New(0)
	for _, in := range tiers {
		for slot := range d.slots {
			dump := d.got.Dump(slot, in, 0)
			for i := range dump {
				done, err := loaded.Apply(slot, &dump[len(dump)-1-i], index.Set)
				require.NoError(d.t, err)
				require.Equal(d.t, index.Applied{Stored: len(dump[len(dump)-1-i].Blocks)}, done)
			}
		}
		references := map[string]int{}
		require.NoError(d.t, d.got.Runs(in, func(r *index.Run) error {
			ev := &event.Event{Kind: event.Stored, Tier: in, HasParent: r.HasParent, Parent: r.Parent, Blocks: r.Blocks}
			for _, slot := range r.Slots {
				for range r.References {
					done, err := restored.Apply(slot, ev, index.Count)
					require.NoError(d.t, err)
					require.Zero(d.t, done.Refused+done.Removed)
				}
				for _, b := range r.Blocks {
					references[fmt.Sprint(slot, b.Engine)] += int(r.References)
				}
			}
			return nil
		}))
		for slot := range d.slots {
			for engine, n := range d.want.Names(slot, in) {
				require.Equal(d.t, n.References, references[fmt.Sprint(slot, engine)], "slot %d, %s, name %d", slot, in, engine)
				delete(references, fmt.Sprint(slot, engine))
			}
		}
		require.Empty(d.t, references)
		want := d.got.Stats(in)
		for _, copied := range []*tier.Tiers{loaded, restored} {
			require.Equal(d.t, want.Pairs, copied.Stats(in).Pairs)
			if tier.Owned(d.got, in)+tier.Owned(copied, in) == 0 { // else who shares depends on who came first
				require.Equal(d.t, want.Blocks, copied.Stats(in).Blocks)
			}
		}
	}
	for _, copied := range []*tier.Tiers{loaded, restored} {
		require.NoError(d.t, tier.Check(copied))
		d.got = copied
		for slot := range d.slots {
			d.compareSlot(slot)
		}
		d.queries()
	}
}

func randomBytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint64())
	}
	return data
}

func FuzzTiers(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomBytes(seed, 400))
	}
	f.Fuzz(func(t *testing.T, data []byte) { drive(t, data, 30) })
}

// TestTiersEqualTheModel does what the fuzz target does, with more operations than its seeds have.
func TestTiersEqualTheModel(t *testing.T) {
	for seed := range uint64(12) {
		drive(t, randomBytes(100+seed, 4000), 300)
	}
}
