package mocker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// recorder writes down what happened, one line each.
type recorder struct{ lines []string }

func (r *recorder) at(now, id int, tokens []block.Token, p progress) {
	r.lines = append(r.lines, fmt.Sprintf("%d: request %d got %v, %+v", now, id, tokens, p))
}

func (r *recorder) removed(h block.EngineHash) {
	r.lines = append(r.lines, fmt.Sprintf("removed %x", h))
}

func (r *recorder) stored(before, hashes []block.EngineHash, tokens []block.Token) {
	parent := "root"
	if n := len(before); n > 0 {
		parent = fmt.Sprintf("%x", before[n-1])
	}
	r.lines = append(r.lines, fmt.Sprintf("stored %x below %s: %v", hashes, parent, tokens))
}

// changes writes down the changes of a scheduler like the model does its own.
func (r *recorder) changes(s *scheduler) {
	for _, c := range s.takeChanges() {
		for _, h := range c.removed {
			r.removed(h)
		}
		if c.cleared {
			r.lines = append(r.lines, "cleared")
		}
		if len(c.stored) > 0 {
			var before []block.EngineHash
			if c.hasParent {
				before = append(before, c.parent)
			}
			r.stored(before, c.stored, c.tokens)
		}
	}
}

// tap is a sink that writes into a recorder.
type tap struct {
	s   *scheduler
	log *recorder
	id  int
}

func (t *tap) generated(tokens []block.Token, p progress) {
	t.log.changes(t.s)
	t.log.at(int(t.s.now), t.id, tokens, p)
}

// checkPool verifies the invariants of a pool, and of the scheduler over it.
func checkPool(t *testing.T, s *scheduler) {
	t.Helper()
	p := s.pool
	idle, hashed := 0, 0
	prev, cachedSeen := noPage, false
	for i := p.first; i != noPage; i = p.pages[i].next {
		require.Equal(t, prev, p.pages[i].prev)
		require.Zero(t, p.pages[i].refs)
		require.False(t, cachedSeen && !p.pages[i].hashed, "an empty page is reused before a cached one")
		cachedSeen = cachedSeen || p.pages[i].hashed
		prev = i
		idle++
	}
	require.Equal(t, prev, p.last)
	require.Equal(t, p.idle, idle)
	used := 0
	for _, pg := range p.pages {
		if pg.refs > 0 {
			used++
		}
		if pg.hashed {
			hashed++
		}
	}
	require.Equal(t, len(p.pages), idle+used)
	for h, i := range p.heads {
		for ; i != noPage; i = p.pages[i].copy {
			require.True(t, p.pages[i].hashed)
			require.Equal(t, h, p.pages[i].hash)
			hashed--
		}
	}
	require.Zero(t, hashed, "every hashed page is found from its head")
	require.LessOrEqual(t, s.reserved, p.idle)
	require.LessOrEqual(t, len(s.prefilling)+len(s.decoding), s.running)
}

// against drives the scheduler and the model with the same random requests and cancellations.
func against(t *testing.T, rng *rand.Rand) {
	r := rates{
		blockSize:  1 + rng.IntN(4),
		perToken:   float64(1+rng.IntN(12)) / 4,
		interToken: int64(rng.IntN(5)),
		coalesce:   int64(rng.IntN(3) * 4),
		chunk:      1 + rng.IntN(12),
		running:    1 + rng.IntN(4),
	}
	r.pages = (16+8)/r.blockSize + 1 + rng.IntN(20)
	got, want := &recorder{}, &recorder{}
	s, m := newScheduler(r), newModel(r, want)
	var sequences []*sequence
	for range 30 + rng.IntN(40) {
		now := m.now + rng.IntN(20)
		m.run(now)
		s.advance(int64(now))
		got.changes(s)
		n := len(sequences)
		switch choice := rng.IntN(20); {
		case choice == 0:
			m.clear()
			s.clear(int64(now))
		case choice < 5 && n > 0:
			k := rng.IntN(n)
			m.cancel(m.requests[k])
			s.cancel(sequences[k], int64(now))
		default:
			prompt := make([]block.Token, 1+rng.IntN(16))
			for i := range prompt {
				prompt[i] = block.Token(rng.IntN(1 + i%3)) // few tokens, so that prefixes meet
			}
			q := newSequence(prompt, 1+rng.IntN(8), r.blockSize, "", &tap{s, got, n})
			sequences = append(sequences, q)
			m.submit(&modelRequest{sequence: newSequence(prompt, q.maxTokens, r.blockSize, "", nil), id: n})
			s.submit(q, int64(now))
		}
		got.changes(s)
		checkPool(t, s)
		require.Equal(t, want.lines, got.lines)
	}
	for len(m.in(waiting, prefill, decode)) > 0 {
		m.run(m.now + 1)
	}
	for {
		next, ok := s.next()
		if !ok {
			break
		}
		s.advance(next)
	}
	got.changes(s)
	require.Equal(t, want.lines, got.lines)
	checkPool(t, s)
	require.Equal(t, len(s.pool.pages), s.pool.idle, "everything was given back")
	require.Zero(t, s.reserved)
	require.Empty(t, s.queue)
	require.Equal(t, uint64(len(sequences)), s.totals.Finished+s.totals.Cancelled)
}

func TestSchedulerAgainstTheModel(t *testing.T) {
	for seed := range uint64(150) {
		against(t, rand.New(rand.NewPCG(seed, 1)))
	}
}

func FuzzSchedulerAgainstTheModel(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, seed+1)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) { against(t, rand.New(rand.NewPCG(a, b))) })
}
