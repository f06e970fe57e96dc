package indextest

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// holderCounts are what a run of the driver chooses from: within a word, more than one, more than two.
var holderCounts = [...]worker.Slot{3, 64, 130}

// maxSteps bounds a run, so that a fuzzer does not earn depth by length alone, and tries many a second.
const maxSteps = 150

// Drive decodes bytes into operations, does each on an index of the factory and on the model, and compares what they
// answer and what they then hold. check verifies the invariants of the implementation now and then; it may be nil.
func Drive(t testing.TB, data []byte, factory Factory, check func(index.Index) error) {
	d := &driver{t: t, data: data, got: factory(), want: model.New(), check: check}
	d.slots = holderCounts[d.pick(len(holderCounts))]
	for step := 0; step < maxSteps && len(d.data) > 0; step++ {
		d.step()
		if step%8 == 0 { // it looks at everything, and a fault stays
			d.verify()
			d.compareStats()
			d.compareNames()
		}
	}
	for slot := range d.slots {
		d.compareSlot(slot)
	}
	d.compareCopy()
	d.compareRuns()
	for slot := range d.slots {
		d.got.Drop(slot)
	}
	require.Equal(t, 0, d.got.Stats().Blocks+d.got.Stats().Pairs, "after dropping everything")
	d.verify()
}

// DriveBounded is Drive for an index of a factory that gives its bound in bytes too: it holds nothing that the model does not, and all
// that the model does for slots from which it took nothing.
func DriveBounded(t testing.TB, data []byte, factory func() (index.Index, int64), check func(index.Index) error) {
	x, bound := factory()
	d := &driver{t: t, data: data, got: x, want: model.New(), check: check, bound: bound, refused: make(map[worker.Slot]bool)}
	d.slots = holderCounts[d.pick(len(holderCounts))]
	for step := 0; step < maxSteps && len(d.data) > 0; step++ {
		d.step()
		if step%8 == 0 {
			d.verify()
			d.compareStats()
		}
	}
	for slot := range d.slots {
		d.compareSlot(slot)
		d.got.Drop(slot)
		require.Zero(t, d.got.Evicted(slot))
	}
	require.Equal(t, 0, d.got.Stats().Blocks+d.got.Stats().Pairs, "after dropping everything")
	d.verify()
}

type driver struct {
	t         testing.TB
	bound     int64                // 0: none
	refused   map[worker.Slot]bool // slots of which the bound refused a store
	data      []byte
	got, want index.Index
	check     func(index.Index) error
	slots     worker.Slot

	prompts [][]block.Hash     // that were stored, newest last
	names   []block.EngineHash // that were stored, newest last
}

const (
	keepPrompts = 24
	keepNames   = 512
)

// pick takes a number below n from the data; 0 when it is used up.
func (d *driver) pick(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	v := int(d.data[0])
	d.data = d.data[1:]
	if n > 256 && len(d.data) > 0 {
		v = v<<8 | int(d.data[0])
		d.data = d.data[1:]
	}
	return v % n
}

// slot takes a slot, often one of the few at the ends of the words of a set.
func (d *driver) slot() worker.Slot {
	v := d.pick(256)
	if v < 160 {
		return [...]worker.Slot{0, 1, d.slots / 2, d.slots - 1}[v%4]
	}
	return worker.Slot(v) % d.slots
}

func (d *driver) counting() index.Counting { return index.Counting(d.pick(4) / 3) }

func (d *driver) step() {
	switch op := d.pick(16); op {
	case 0, 1, 2:
		d.apply(d.slot(), d.storeRoot(d.prompt()), d.counting())
	case 3, 4, 5:
		d.apply(d.slot(), d.storeBelow(), d.counting())
	case 6:
		d.storeMany()
	case 7, 8, 9, 10:
		d.apply(d.slot(), d.removal(), index.Count)
	case 11:
		d.removeMany()
	case 12:
		d.apply(d.slot(), d.malformed(), d.counting())
	case 13:
		if d.pick(4) == 0 {
			d.apply(d.slot(), &event.Event{Kind: event.Cleared}, index.Count)
		}
	case 14:
		if d.pick(4) == 0 {
			slot := d.slot()
			d.got.Drop(slot)
			d.want.Drop(slot)
			delete(d.refused, slot)
			d.compareSlot(slot)
		}
	default:
		d.compareQuery(d.prompt())
	}
	if len(d.prompts) > 0 {
		last := d.prompts[len(d.prompts)-1]
		d.compareQuery(last)
		d.compareQuery(last[:(len(last)+1)/2])
		d.compareQuery(d.prompts[d.pick(len(d.prompts))])
	}
}

// prompt takes a prompt: one of a few families, which differ from some depth on, or one stored before.
func (d *driver) prompt() []block.Hash {
	n := 1 + d.pick(40)
	if n > 36 { // now and then many sections' worth
		n *= 4
	}
	family, fork := d.pick(3), d.pick(64)
	hashes := prompt(family, n)
	for i := fork; i < n && fork < 32; i++ {
		hashes[i] = block.Hash(mix(uint64(hashes[i]) + uint64(fork%3)))
	}
	if fork%7 == 0 { // equal contents at every depth
		for i := range hashes {
			hashes[i] = hashes[0]
		}
	}
	return hashes
}

// named names the blocks that follow those of a prefix.
func (d *driver) named(before, hashes []block.Hash) []event.Block {
	if len(hashes) == 0 {
		return nil
	}
	names := engineNames(slices.Concat(before, hashes))[len(before):]
	switch style := d.pick(12); style {
	case 0, 1: // another name for the same block
		for i := range names {
			names[i] += block.EngineHash(1 + style)
		}
	case 2: // names that stand for other blocks too, each once in an event
		from := d.pick(8)
		for i := range names {
			names[i] = block.EngineHash(from + i)
		}
	case 3: // one name that stands for another block
		if len(d.names) > 0 {
			if n := d.names[d.pick(len(d.names))]; !slices.Contains(names, n) {
				names[d.pick(len(names))] = n
			}
		}
	case 4: // names in the other order
		slices.Reverse(names)
	}
	d.prompts = append(d.prompts, slices.Concat(before, hashes))
	d.prompts = d.prompts[max(0, len(d.prompts)-keepPrompts):]
	d.names = append(d.names, names...)
	d.names = d.names[max(0, len(d.names)-keepNames):]
	return blocks(names, hashes)
}

func (d *driver) storeRoot(hashes []block.Hash) *event.Event {
	return &event.Event{Kind: event.Stored, Blocks: d.named(nil, hashes)}
}

// storeBelow adds blocks below a name that may be known, known to others, or unknown.
func (d *driver) storeBelow() *event.Event {
	ev := &event.Event{Kind: event.Stored, HasParent: true, Parent: block.EngineHash(d.pick(8))}
	var before []block.Hash
	if len(d.prompts) > 0 && d.pick(8) > 0 {
		before = d.prompts[d.pick(len(d.prompts))]
		before = before[:1+d.pick(len(before))]
		names := engineNames(before)
		ev.Parent = names[len(names)-1] + block.EngineHash(d.pick(8)/6)
	}
	hashes := d.prompt()
	if d.pick(8) == 0 {
		hashes = nil
	}
	ev.Blocks = d.named(before, hashes[:min(len(hashes), 40)])
	return ev
}

// storeMany adds a prompt to a range of slots, each a little less deep than the one before.
func (d *driver) storeMany() {
	hashes, by := d.prompt(), d.pick(3)
	ev := d.storeRoot(hashes)
	for slot, end := d.slotRange(); slot < end && len(ev.Blocks) > 0; slot++ {
		d.apply(slot, ev, index.Count)
		ev.Blocks = ev.Blocks[:max(0, len(ev.Blocks)-by)]
	}
}

func (d *driver) slotRange() (from, end worker.Slot) {
	from = d.slot()
	return from, min(d.slots, from+worker.Slot(d.pick(20)))
}

// removal takes names that were stored by someone, forwards, backwards or every other, and unknown ones.
func (d *driver) removal() *event.Event {
	ev := &event.Event{Kind: event.Removed}
	if len(d.names) > 0 {
		from := d.pick(len(d.names))
		ev.Removed = slices.Clone(d.names[from:min(len(d.names), from+1+d.pick(60))])
	}
	switch d.pick(6) {
	case 0:
		slices.Reverse(ev.Removed)
	case 1:
		for i := 0; i < len(ev.Removed); i += 2 {
			ev.Removed[i] ^= 1 << 63
		}
	case 2:
		ev.Removed = append(ev.Removed, ev.Removed...)
	}
	return ev
}

func (d *driver) removeMany() {
	ev := d.removal()
	for slot, end := d.slotRange(); slot < end; slot++ {
		d.apply(slot, ev, index.Count)
	}
}

// malformed gives a store that contains its parent, or a block twice.
func (d *driver) malformed() *event.Event {
	ev := d.storeRoot(d.prompt())
	b := ev.Blocks[d.pick(len(ev.Blocks))]
	if d.pick(2) == 0 {
		return below(b.Engine, ev)
	}
	ev.Blocks = append(ev.Blocks, b)
	return ev
}

func (d *driver) apply(slot worker.Slot, ev *event.Event, counting index.Counting) {
	want, wantErr := d.want.Apply(slot, ev, counting)
	got, err := d.got.Apply(slot, ev, counting)
	if d.bound > 0 {
		d.refused[slot] = d.refused[slot] || errors.Is(err, index.ErrFull)
		require.LessOrEqual(d.t, int64(d.got.Stats().Bytes), d.bound)
	}
	if d.lost(slot) {
		d.compareSlot(slot)
		return
	}
	require.True(d.t, got == want && errors.Is(err, wantErr), "slot %d: %v, %v, not %v, %v after %v", slot, got, err, want, wantErr, ev)
	d.compareSlot(slot)
}

// compareQuery asks with sequence hashes and without.
func (d *driver) compareQuery(hashes []block.Hash) {
	q := query(hashes)
	want := match(d.t, d.want, q)
	d.compareRows(want, match(d.t, d.got, q))
	d.compareRows(want, match(d.t, d.got, index.Query{Hashes: hashes}))
}

// compareNames asks for names at the ends of what two slots hold of the newest prompt.
func (d *driver) compareNames() {
	if len(d.prompts) == 0 {
		return
	}
	q := query(d.prompts[len(d.prompts)-1])
	depths := match(d.t, d.want, q)
	for _, slot := range []worker.Slot{0, d.slots - 1} {
		if d.lost(slot) {
			continue
		}
		compareName(d.t, d.want, d.got, slot, q, depths[slot])
		compareName(d.t, d.want, d.got, slot, q, depths[slot]+1)
	}
}

// lost tells that the bound took something from a slot.
func (d *driver) lost(slot worker.Slot) bool {
	return d.bound > 0 && (d.refused[slot] || d.got.Evicted(slot) > 0)
}

func (d *driver) compareRows(want, got map[worker.Slot]int) {
	if d.bound > 0 {
		want = maps.Clone(want)
		for slot := range d.slots {
			require.LessOrEqual(d.t, got[slot], want[slot])
			if d.lost(slot) {
				delete(want, slot)
				delete(got, slot)
			}
		}
	}
	if !maps.Equal(want, got) { // require.Equal is slow when there is nothing to say
		require.Equal(d.t, want, got)
	}
}

func (d *driver) compareSlot(slot worker.Slot) {
	if d.lost(slot) {
		require.LessOrEqual(d.t, d.got.Blocks(slot), d.want.Blocks(slot))
		known := make(map[held]bool)
		for _, h := range contents(d.t, d.want.Dump(slot, 0), 0) {
			known[h] = true
		}
		for _, h := range contents(d.t, d.got.Dump(slot, 0), 0) {
			require.True(d.t, known[h], "slot %d holds %v", slot, h)
		}
		return
	}
	require.Equal(d.t, d.want.Blocks(slot), d.got.Blocks(slot))
	if d.want.Blocks(slot) == 0 {
		require.Empty(d.t, d.got.Dump(slot, 0))
		return
	}
	const id = 7
	want, got := contents(d.t, d.want.Dump(slot, id), id), contents(d.t, d.got.Dump(slot, id), id)
	if !slices.Equal(want, got) {
		require.Equal(d.t, want, got)
	}
}

// compareCopy loads the dumps of the implementation into a new model: it gives the same answers.
func (d *driver) compareCopy() {
	fresh := model.New()
	load(d.t, d.got, fresh, d.slots)
	for _, hashes := range d.prompts {
		q := query(hashes)
		d.compareRows(match(d.t, d.want, q), match(d.t, fresh, q))
	}
}

// compareRuns applies the runs of the implementation to a new model, which then knows the same of every slot but what is
// hidden: removals, which depend on names and references, do the same to both.
func (d *driver) compareRuns() {
	fresh, want := model.New(), model.New()
	restore(d.t, d.got, fresh)
	restore(d.t, d.want, want)
	for i := 0; i < len(d.names); i += 1 + len(d.names)/64 {
		n := d.names[i]
		for slot := range min(d.slots, 5) {
			ev := removed(n)
			a, err := want.Apply(slot, ev, index.Count)
			require.NoError(d.t, err)
			b, err := fresh.Apply(slot, ev, index.Count)
			require.NoError(d.t, err)
			require.Equal(d.t, a, b, "removal of %d from slot %d after a restore from runs", n, slot)
		}
	}
	for slot := range d.slots {
		want, got := contents(d.t, want.Dump(slot, 0), 0), contents(d.t, fresh.Dump(slot, 0), 0)
		if !slices.Equal(want, got) {
			require.Equal(d.t, want, got)
		}
	}
}

func (d *driver) compareStats() {
	want, got := d.want.Stats(), d.got.Stats()
	if d.bound > 0 {
		require.True(d.t, got.Blocks <= want.Blocks && got.Pairs <= want.Pairs, "%v, not more than %v", got, want)
		return
	}
	require.Equal(d.t, want.Blocks, got.Blocks)
	require.Equal(d.t, want.Pairs, got.Pairs)
}

func (d *driver) verify() {
	if d.check != nil {
		require.NoError(d.t, d.check(d.got))
	}
}
