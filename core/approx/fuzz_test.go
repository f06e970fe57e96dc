package approx_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/approx"
	"github.com/dynamo-go/dynamo-go/core/approx/model"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	indexmodel "github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	fuzzSlots = 4
	ms        = 1_000_000
	fuzzTTL   = 1000 * ms
)

// pair drives Approx and the model with the same calls and compares after each.
type pair struct {
	t     testing.TB
	x     *approx.Approx
	model *model.Approx
	ends  map[string]index.Query // what each lease holds, so that outputs continue it
	now   int64
	bound int64 // the model has none: TTL ranks then hold as much as there, or less
}

func newPair(t testing.TB, inner index.Index, section int, bound int64) *pair {
	p := &pair{t: t, bound: bound, x: approx.New(inner, approx.Options{TTLNanos: fuzzTTL, MaxBytes: bound}), model: model.New(fuzzTTL), ends: map[string]index.Query{}, now: 12345}
	p.x.SetSection(section)
	return p
}

// prompt gives one of several families of prompts: a shared chain, and chains that leave it at different depths.
func prompt(family, length int) index.Query {
	hashes := make([]block.Hash, length)
	for i := range hashes {
		hashes[i] = block.Hash(i + 1)
		if fork := family % 8 * 5; i >= fork && family >= 32 {
			hashes[i] += block.Hash(family) << 16
		}
	}
	return index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
}

// step decodes one operation. Slots 0 and 1 begin as TTL ranks; small alphabets make requests meet.
func (p *pair) step(op, a, b, c byte) {
	id, slot := fmt.Sprintf("r%d", a%8), worker.Slot(b%fuzzSlots)
	q := prompt(int(a), int(c%64))
	switch op % 16 {
	case 0, 1, 2:
		require.NoError(p.t, p.x.Route(slot, q, p.now))
		p.model.Route(slot, q.Sequences, p.now)
	case 3, 4, 5, 6:
		private := int(b/fuzzSlots)%4 - int(op/128)
		want := p.model.Acquire(slot, id, q.Sequences, private, p.now)
		got := p.x.Acquire(slot, id, q, private, p.now)
		if p.same(got, want); want != nil && got == nil { // the lease that the model has is gone
			p.model.Route(slot, q.Sequences, p.now)
		}
		if want == nil {
			p.ends[id] = q
		}
	case 7, 8:
		all := p.ends[id].Hashes
		all = append(all[:len(all):len(all)], prompt(int(b), int(c%8)).Hashes...)
		out := index.Query{Hashes: all, Sequences: block.Sequences(nil, all)}
		done := len(p.ends[id].Hashes)
		q = out
		more := index.Query{Hashes: out.Hashes[done:], Sequences: out.Sequences[done:]}
		want := p.model.Materialise(id, more.Sequences)
		p.same(p.x.Materialise(id, more), want)
		if want == nil {
			p.ends[id] = out
		}
	case 9, 10, 11:
		p.same(p.x.Release(id), p.model.Release(id))
	case 12, 13:
		p.now += int64(c) * 4 * ms
	case 14:
		capacity, incarnation := uint64(a)%100, uint64(c%8)/7
		if slot < 2 && b > 16 {
			capacity = 0
		}
		require.NoError(p.t, p.x.SetCapacity(slot, capacity, incarnation))
		p.model.SetCapacity(slot, capacity, incarnation)
	case 15:
		if c < 64 {
			p.x.Drop(slot)
			p.model.Drop(slot)
		}
		if c > 192 {
			for slot := range worker.Slot(fuzzSlots) {
				if p.bound == 0 {
					require.Equal(p.t, p.model.Blocks(slot, p.now), p.x.Blocks(slot, p.now), "blocks of slot %d", slot)
				}
			}
		}
	}
	p.compare(q)
	p.compare(prompt(int(c), 64))
}

func (p *pair) same(got, want error) {
	p.t.Helper()
	if p.bound > 0 {
		return
	}
	for _, kind := range []error{approx.ErrInvalid, approx.ErrDuplicateLease, approx.ErrLeaseNotFound} {
		require.Equal(p.t, errors.Is(want, kind), errors.Is(got, kind), "got %v, want %v", got, want)
	}
	require.Equal(p.t, want == nil, got == nil, "%v", got)
}

func (p *pair) compare(q index.Query) {
	p.t.Helper()
	got := map[worker.Slot]int{}
	for _, row := range p.x.Match(nil, q, p.now) {
		require.NotContains(p.t, got, row.Slot)
		got[row.Slot] = int(row.Depth)
	}
	if p.bound > 0 {
		require.LessOrEqual(p.t, int64(p.x.Stats(p.now).Bytes), p.bound)
	}
	for slot := range worker.Slot(fuzzSlots) {
		if p.bound > 0 {
			if p.model.Capacity(slot) == 0 {
				require.LessOrEqual(p.t, got[slot], p.model.Depth(slot, q.Sequences, p.now))
			}
			continue
		}
		if depth := p.model.Depth(slot, q.Sequences, p.now); depth > 0 {
			require.Equal(p.t, depth, got[slot], "depth of slot %d", slot)
		} else {
			require.NotContains(p.t, got, slot)
		}
	}
	approx.Check(p.t, p.x)
}

func FuzzApproxAgainstModel(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 60, 12, 0, 0, 200, 0, 40, 0, 50, 12, 0, 0, 60, 12, 0, 0, 100})
	f.Add([]byte{0, 14, 50, 2, 0, 3, 1, 2, 40, 3, 34, 2, 45, 7, 1, 3, 5, 9, 1, 0, 0, 9, 2, 0, 0, 3, 99, 2, 63, 14, 20, 2, 1, 14, 20, 2, 7})
	f.Add([]byte{1, 14, 50, 2, 0, 3, 1, 2, 40, 3, 34, 2, 45, 3, 67, 2, 63, 7, 1, 3, 5, 0, 99, 0, 63, 0, 41, 0, 63, 9, 1, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 {
			return
		}
		p := newPair(t, index.New(index.Options{OneShard: true}), 5, boundOf(int(ops[0])))
		defer p.x.Close()
		ops = ops[1:min(len(ops), 1+4*40)]
		for ; len(ops) >= 4; ops = ops[4:] {
			p.step(ops[0], ops[1], ops[2], ops[3])
		}
	})
}

// boundOf gives the bound of half of the runs: few runs.
func boundOf(n int) int64 {
	if n%2 == 0 {
		return 0
	}
	return approx.BytesOf(n % 16)
}

func TestApproxAgainstModel(t *testing.T) {
	for seed := range uint64(12) {
		inner := index.New(index.Options{})
		if seed%3 == 0 {
			inner = indexmodel.New()
		}
		rng := rand.New(rand.NewPCG(seed, 7))
		p := newPair(t, inner, []int{3, 20, 256}[seed%3], boundOf(int(seed)))
		for range 150 {
			v := rng.Uint32()
			p.step(byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
		}
	}
}
