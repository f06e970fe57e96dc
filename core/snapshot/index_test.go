package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// saveIndex writes what an index holds for its first slots.
func saveIndex(t testing.TB, to io.Writer, x index.Index, slots int) {
	var ranks []Rank
	for slot := range slots {
		ranks = append(ranks, Rank{ID: worker.Rank{ID: uint64(slot)}, Slot: worker.Slot(slot), Blocks: x.Blocks(worker.Slot(slot))})
	}
	w, err := NewWriter(to, Header{BlockSize: 16, Created: time.Unix(1, 0)}, ranks)
	require.NoError(t, err)
	require.NoError(t, x.Runs(func(run *index.Run) error { return w.Run(event.Device, run) }))
	require.NoError(t, w.Close())
}

func loadIndex(t testing.TB, from io.Reader, x index.Index) {
	r, err := NewReader(from)
	require.NoError(t, err)
	require.NoError(t, r.Runs(func(tier event.Tier, run *index.Run) error {
		for _, slot := range run.Slots {
			if err := Restore(x, tier, slot, run); err != nil {
				return err
			}
		}
		return nil
	}))
}

// history makes events of a few slots over a small world of prompts, so that blocks are shared, named alike and
// differently, counted, and removed; holes says whether blocks in the middle are removed too.
type history struct {
	rng     *rand.Rand
	slots   int
	holes   bool
	prompts [][]block.Hash
	stored  [][]*event.Event // by slot, what was stored and not removed
}

func newHistory(seed uint64, slots int, holes bool) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 1)), slots: slots, holes: holes, stored: make([][]*event.Event, slots)}
	for range 6 {
		prompt := make([]block.Hash, 1+h.rng.IntN(40))
		for i := range prompt {
			prompt[i] = block.Hash(1 + h.rng.Uint64N(2))
		}
		h.prompts = append(h.prompts, prompt)
	}
	return h
}

// next gives an event that an engine may well send, and the slot of its rank.
func (h *history) next() (worker.Slot, *event.Event) {
	slot := h.rng.IntN(h.slots)
	if n := len(h.stored[slot]); n > 0 && h.rng.IntN(3) == 0 {
		at := h.rng.IntN(n)
		ev := &event.Event{Kind: event.Removed}
		for _, b := range slices.Backward(h.stored[slot][at].Blocks) {
			ev.Removed = append(ev.Removed, b.Engine)
		}
		h.stored[slot] = slices.Delete(h.stored[slot], at, at+1)
		if h.holes {
			ev.Removed = ev.Removed[h.rng.IntN(len(ev.Removed)):]
		}
		return worker.Slot(slot), ev
	}
	prompt := h.prompts[h.rng.IntN(len(h.prompts))]
	ev := &event.Event{Kind: event.Stored}
	seqs := block.Sequences(nil, prompt)
	variant := uint64(h.rng.IntN(2)) * uint64(slot) << 40 // half of the slots' names are their own
	for i := range prompt[:1+h.rng.IntN(len(prompt))] {
		ev.Blocks = append(ev.Blocks, event.Block{Hash: prompt[i], Engine: block.EngineHash(uint64(seqs[i]) + variant)})
	}
	h.stored[slot] = append(h.stored[slot], ev)
	return worker.Slot(slot), ev
}

func (h *history) queries() (all []index.Query) {
	for _, prompt := range h.prompts {
		all = append(all, index.Query{Hashes: prompt, Sequences: block.Sequences(nil, prompt)})
	}
	return all
}

func rows(x index.Index, q index.Query) []index.Overlap {
	got := x.Match(nil, q)
	slices.SortFunc(got, func(a, b index.Overlap) int { return cmp.Compare(a.Slot, b.Slot) })
	return got
}

// names gives all that a slot's dump says, whatever its order: each name with its parents' hashes.
func names(t testing.TB, x index.Index, slot worker.Slot) (all []string) {
	at := map[block.EngineHash]string{}
	for _, ev := range x.Dump(slot, 0) {
		path := ""
		if ev.HasParent {
			path = at[ev.Parent]
			require.NotEmpty(t, path)
		}
		for _, b := range ev.Blocks {
			path += fmt.Sprintf("/%d", b.Hash)
			at[b.Engine] = path
			all = append(all, fmt.Sprintf("%d %s", b.Engine, path))
		}
	}
	slices.Sort(all)
	return all
}

var kinds = map[string]func() index.Index{
	"model": model.New,
	"index": func() index.Index { return index.New(index.Options{}) },
}

// TestRestoredIndexIsTheSame saves one implementation and loads another: it answers alike, and goes on alike.
func TestRestoredIndexIsTheSame(t *testing.T) {
	for from, newFrom := range kinds {
		for to, newTo := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				for seed := range uint64(60) {
					h := newHistory(seed, 5, false)
					x := newFrom()
					for range h.rng.IntN(60) {
						slot, ev := h.next()
						_, err := x.Apply(slot, ev, index.Count)
						require.NoError(t, err)
					}
					var file bytes.Buffer
					saveIndex(t, &file, x, h.slots)
					y := newTo()
					loadIndex(t, &file, y)
					sameAnswers(t, h, x, y)
					for range 40 { // references show when names are removed again
						slot, ev := h.next()
						want, wantErr := x.Apply(slot, ev, index.Count)
						got, err := y.Apply(slot, ev, index.Count)
						require.Equal(t, want, got)
						require.Equal(t, wantErr == nil, err == nil)
					}
					for slot := range worker.Slot(h.slots) {
						require.Equal(t, x.Blocks(slot), y.Blocks(slot))
					}
				}
			})
		}
	}
}

func sameAnswers(t *testing.T, h *history, x, y index.Index) {
	for _, q := range h.queries() {
		require.Equal(t, rows(x, q), rows(y, q))
	}
	for slot := range worker.Slot(h.slots) {
		require.Equal(t, x.Blocks(slot), y.Blocks(slot))
		require.Equal(t, names(t, x, slot), names(t, y, slot))
	}
	want, got := x.Stats(), y.Stats()
	require.Equal(t, []int{want.Blocks, want.Pairs}, []int{got.Blocks, got.Pairs})
}

// TestHiddenBlocksAreMissing: they cannot be restored; all else is, and the ranks' counts tell.
func TestHiddenBlocksAreMissing(t *testing.T) {
	hidden := 0
	for seed := range uint64(60) {
		h := newHistory(seed, 5, true)
		x, y := index.New(index.Options{}), index.New(index.Options{})
		for range 60 {
			slot, ev := h.next()
			_, err := x.Apply(slot, ev, index.Count)
			require.NoError(t, err)
		}
		var file bytes.Buffer
		saveIndex(t, &file, x, h.slots)
		loadIndex(t, bytes.NewReader(file.Bytes()), y)
		for _, q := range h.queries() {
			require.Equal(t, rows(x, q), rows(y, q))
		}
		r, err := NewReader(&file)
		require.NoError(t, err)
		for slot := range worker.Slot(h.slots) {
			require.Equal(t, names(t, x, slot), names(t, y, slot))
			require.Equal(t, x.Blocks(slot), r.Ranks()[slot].Blocks)
			hidden += x.Blocks(slot) - y.Blocks(slot)
		}
	}
	require.Positive(t, hidden)
}

// BenchmarkSave and BenchmarkLoad are per million pairs: 64 slots hold 16 blocks of each prompt alike, and one the rest.
func BenchmarkSave(b *testing.B) {
	x, pairs, blocks := bigIndex(b)
	var size int64
	for b.Loop() {
		var n counter
		saveIndex(b, &n, x, 64)
		size = int64(n)
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(pairs)*1e6, "s/Mpair")
	b.ReportMetric(float64(size)/float64(blocks), "B/block")
}

func BenchmarkLoad(b *testing.B) {
	x, pairs, _ := bigIndex(b)
	var file bytes.Buffer
	saveIndex(b, &file, x, 64)
	for b.Loop() {
		y := index.New(index.Options{})
		loadIndex(b, bytes.NewReader(file.Bytes()), y)
		y.Close()
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(pairs)*1e6, "s/Mpair")
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func bigIndex(b *testing.B) (x index.Index, pairs, blocks int) {
	x = index.New(index.Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	for p := range 1000 {
		ev := &event.Event{Kind: event.Stored}
		for range 500 {
			h := rng.Uint64()
			ev.Blocks = append(ev.Blocks, event.Block{Hash: block.Hash(h), Engine: block.EngineHash(h >> 1)})
		}
		for slot := range worker.Slot(32) {
			part := *ev
			if int(slot) != p%32 {
				part.Blocks = part.Blocks[:16]
			}
			_, err := x.Apply(slot, &part, index.Count)
			require.NoError(b, err)
		}
	}
	st := x.Stats()
	return x, st.Pairs, st.Blocks
}
