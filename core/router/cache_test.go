package router

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// stateOf is a dump of a rank that holds so many blocks of each prompt, in the tier that the prompt's number says, and the prompts.
func stateOf(prompts [][]block.Token, depths []int) []event.Event {
	var events []event.Event
	for i, p := range prompts {
		if depths[i] == 0 {
			continue
		}
		ev := event.Event{Kind: event.Stored}
		for at, h := range block.Hashes(nil, p, 4, nil)[:depths[i]] {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(i<<32 | at + 1), Hash: h})
		}
		events = append(events, ev)
	}
	return events
}

func promptsOf(n, blocks int) [][]block.Token {
	out := make([][]block.Token, n)
	for i := range out {
		out[i] = make([]block.Token, 4*blocks)
		for at := range out[i] {
			out[i][at] = block.Token(i<<20 | at)
		}
	}
	return out
}

// While a rank's state is replaced by another, again and again, whoever asks finds the one or the other: of each prompt what one of them holds, and never
// the old one again after the new one. Tiers, dumps and loads go with it.
func TestStateIsReplacedAtOnce(t *testing.T) {
	r := newWith(t, 1, 2)
	k, err := r.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	s := sink{r, k, index.Set}
	prompts := promptsOf(3, 300)
	states := [2][]int{{300, 7, 120}, {5, 290, 120}} // blocks of each prompt
	apply := func(state []int) {
		for _, ev := range stateOf(prompts, state) {
			_, err := s.Apply(k.id, &ev)
			require.NoError(t, err)
		}
	}
	lower := event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true, Parent: block.EngineHash(2<<32 | 120)}
	lower.Blocks = []event.Block{{Engine: 1 << 60, Hash: block.Hashes(nil, prompts[2], 4, nil)[120]}}
	apply(states[0])
	_, err = s.Apply(k.id, &lower)
	require.NoError(t, err)
	_, err = r.BestWorker(&Request{Prompt: Prompt{Tokens: prompts[0]}, ID: "load", Book: true})
	require.NoError(t, err)

	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			for at := i; ; at++ {
				select {
				case <-stop:
					return
				default:
				}
				p := at % len(prompts)
				out, err := r.OverlapScores(&Prompt{Tokens: prompts[p]})
				if err != nil || len(out.Workers) != 2 {
					t.Error(err, out)
					return
				}
				device, host := int(out.Workers[0].DeviceBlocks), out.Workers[0].HostPinnedExtensionBlocks
				if device != states[0][p] && device != states[1][p] || p == 2 && host > 1 || p != 2 && host > 0 || out.Workers[1].DeviceBlocks > 0 {
					t.Errorf("prompt %d: %+v, expected %d or %d blocks", p, out.Workers, states[0][p], states[1][p])
					return
				}
				if i == 0 {
					dump, err := r.DumpEvents()
					if err != nil || len(dump) == 0 {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for round := 1; round <= 40; round++ {
		s.Renew(k.id)
		if round%8 == 0 { // one that is given up half-way, and begun anew
			apply([]int{states[round%2][0], 3, 0})
			s.Renew(k.id)
		}
		apply(states[round%2])
		if round%2 == 0 {
			_, err := s.Apply(k.id, &lower)
			require.NoError(t, err)
		}
		out, err := r.OverlapScores(&Prompt{Tokens: prompts[0]})
		require.NoError(t, err)
		require.EqualValues(t, states[(round+1)%2][0], out.Workers[0].DeviceBlocks, "not yet")
		s.Commit(k.id)
		s.Commit(k.id) // does nothing
		for p := range prompts {
			out, err := r.OverlapScores(&Prompt{Tokens: prompts[p]})
			require.NoError(t, err)
			require.EqualValues(t, states[round%2][p], out.Workers[0].DeviceBlocks)
			require.Equal(t, round%2 == 0 && p == 2, out.Workers[0].HostPinnedExtensionBlocks == 1)
		}
	}
	close(stop)
	readers.Wait()
	loads, err := r.PotentialLoads(nil, &Prompt{})
	require.NoError(t, err)
	require.EqualValues(t, 1, loads[0].ActiveRequests, "what is booked stays")
	st, err := r.Stats()
	require.NoError(t, err)
	require.Equal(t, 300+7+120, st.Pairs)
	require.Equal(t, 1, st.HostPinnedBlocks)
	require.Zero(t, r.caches.hidden)
	require.LessOrEqual(t, len(r.caches.owners), 3, "caches are used again")
}

// A reset forgets the view that is being built too, and so does a removal: nothing of it is left, whoever has the caches next.
func TestStateThatIsNotCommitted(t *testing.T) {
	r := newWith(t, 1)
	k, err := r.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	s := sink{r, k, index.Set}
	prompts := promptsOf(2, 10)
	begin := func() {
		s.Renew(k.id)
		for _, ev := range stateOf(prompts, []int{10, 10}) {
			_, err := s.Apply(k.id, &ev)
			require.NoError(t, err)
		}
	}
	begin()
	s.Reset(k.id)
	require.Zero(t, r.index.Stats().Pairs)
	s.Commit(k.id)
	require.Zero(t, r.index.Stats().Pairs)
	begin()
	s.Commit(k.id)
	begin()
	require.Equal(t, 40, r.index.Stats().Pairs)
	require.NoError(t, r.RemoveWorker(1))
	require.Zero(t, r.index.Stats().Pairs)
	s.Renew(k.id)
	s.Commit(k.id)
	require.Zero(t, r.caches.hidden)
	require.Len(t, r.caches.free, len(r.caches.owners))
	for id := range uint64(3) {
		require.NoError(t, r.AddWorker(Worker{ID: 10 + id}))
	}
	out, err := r.OverlapScores(&Prompt{Tokens: prompts[0]})
	require.NoError(t, err)
	for _, row := range out.Workers {
		require.Zero(t, row.DeviceBlocks)
	}
}

// Two states that the memory bound has no room for: the old one goes as soon as that is known, and the new one is whole.
func TestStateReplacedUnderTheByteBound(t *testing.T) {
	for name, counting := range map[string]index.Counting{"set": index.Set, "count": index.Count} {
		t.Run(name, func(t *testing.T) {
			const bound = 2 << 20
			r := newWith(t)
			r.index = index.New(index.Options{MaxBytes: bound})
			require.NoError(t, r.AddWorker(Worker{ID: 1}))
			k, err := r.find(worker.Rank{ID: 1})
			require.NoError(t, err)
			s := sink{r, k, counting}
			other := event.Event{Kind: event.Stored}
			for i := range 500 { // of another rank, used the least recently
				other.Blocks = append(other.Blocks, event.Block{Engine: block.EngineHash(i + 1), Hash: block.Hash(i + 1)})
			}
			require.NoError(t, r.AddWorker(Worker{ID: 2}))
			require.NoError(t, r.ApplyEvent(2, &other, index.Set))
			neighbour, err := r.find(worker.Rank{ID: 2})
			require.NoError(t, err)
			const long = 400
			state := func(first int) { // disjoint for different numbers, about two thirds of what there is room for
				rng := rand.New(rand.NewPCG(uint64(first), 1))
				for i := range bound / 60 / long {
					ev := event.Event{Kind: event.Stored}
					for at := range long {
						ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(first<<40 | i<<20 | at + 1), Hash: block.Hash(rng.Uint64())})
					}
					done, err := s.Apply(k.id, &ev)
					require.NoError(t, err)
					require.Equal(t, index.Applied{Stored: long}, done)
					require.LessOrEqual(t, r.index.Stats().Bytes, bound)
				}
			}
			state(1)
			held := r.index.Blocks(k.cache)
			for round := range 4 {
				s.Renew(k.id)
				state(2 + round)
				require.Nil(t, k.next, "there was no room for both")
				s.Commit(k.id)
				require.Equal(t, held, r.index.Blocks(k.cache), fmt.Sprint(round))
				require.Zero(t, r.evictedBlocks(k.cache))
				require.Empty(t, k.partial)
				require.Zero(t, r.caches.hidden)
				require.Equal(t, held+500, r.index.Stats().Pairs)
				require.Zero(t, r.evictedBlocks(neighbour.cache), "a state that is replaced costs others nothing")
			}
			ev := event.Event{Kind: event.Removed, Removed: []block.EngineHash{5<<40 | 1<<20 | 1}}
			done, err := s.Apply(k.id, &ev)
			require.NoError(t, err)
			require.Equal(t, 1, done.Removed, "each block has one reference")
		})
	}
}

// What was left out of a new view is missing also when the view takes the old one's place for want of room.
func TestStateReplacedUnderTheByteBoundTellsWhatIsMissing(t *testing.T) {
	r := newWith(t, 1)
	r.index = index.New(index.Options{MaxBytes: 1 << 20})
	k, err := r.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	s := sink{r, k, index.Count}
	state := func(first int) { // of two thirds of what there is room for
		rng := rand.New(rand.NewPCG(uint64(first), 1))
		for i := range 50 {
			ev := event.Event{Kind: event.Stored}
			for at := range 400 {
				ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(first<<40 | i<<20 | at + 1), Hash: block.Hash(rng.Uint64())})
			}
			_, err := s.Apply(k.id, &ev)
			require.NoError(t, err)
		}
	}
	state(1)
	s.Renew(k.id)
	r.tiers.SetMaxBytes(1)
	offloaded := event.Event{Kind: event.Stored, Tier: event.HostPinned, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	done, err := s.Apply(k.id, &offloaded)
	require.NoError(t, err)
	require.Equal(t, 1, done.Refused)
	require.NotNil(t, k.next)
	state(2)
	require.Nil(t, k.next, "there was no room for both")
	require.Contains(t, k.partial, "max_bytes")
	s.Commit(k.id)
	require.Contains(t, k.partial, "max_bytes")
	s.Renew(k.id)
	s.Commit(k.id)
	require.Empty(t, k.partial, "a whole state leaves nothing missing")
}
