package mocker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// follower is a straightforward subscriber: it counts what each block was stored and removed.
type follower struct {
	blocks map[block.EngineHash]int
	events int
}

func (f *follower) apply(t *testing.T, payload []byte, blockSize int) {
	batch, err := wire.DecodeBatch(payload, wire.Limits{})
	require.NoError(t, err)
	for _, e := range batch.Events {
		f.events++
		require.NoError(t, e.Err)
		switch e.Kind {
		case event.Stored:
			require.Len(t, e.TokenIDs, len(e.BlockHashes)*blockSize)
			require.Equal(t, uint32(blockSize), e.BlockSize)
			if e.HasParent {
				require.Positive(t, f.blocks[e.Parent], "the parent of a stored block is there")
			}
			for _, h := range e.BlockHashes {
				f.blocks[h]++
			}
		case event.Removed:
			for _, h := range e.BlockHashes {
				require.Positive(t, f.blocks[h], "a removed block was there")
				if f.blocks[h]--; f.blocks[h] == 0 {
					delete(f.blocks, h)
				}
			}
		case event.Cleared:
			clear(f.blocks)
		default:
			t.Fatalf("unexpected event %+v", e)
		}
	}
}

// held gives the blocks that can be found in the engine's pool, with the number of their copies.
func held(m *Mocker) map[block.EngineHash]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	blocks := map[block.EngineHash]int{}
	for _, p := range m.scheduler.pool.pages {
		if p.hashed {
			blocks[p.hash]++
		}
	}
	return blocks
}

func TestEventsTellWhatThePoolHolds(t *testing.T) {
	m := start(t, func(c *Config) { c.Blocks, c.MaxRunning, c.DPRank, c.Topic = 40, 6, 2, "kv" })
	live, err := zmq.Dial(context.Background(), m.Info().Events, zmq.Sub, zmq.Options{})
	require.NoError(t, err)
	defer live.Close()
	require.NoError(t, live.Send([]byte{1}))
	heard := make(chan error, 1)
	go func() {
		_, err := live.Recv()
		heard <- err
	}()
	require.Eventually(t, func() bool { // nobody tells when the subscription has come into effect
		return len(heard) > 0 || !m.clear()
	}, patience, 5*time.Millisecond)
	require.NoError(t, <-heard)

	// Requests whose prefixes meet, many at once, in a pool that has to evict.
	rng := rand.New(rand.NewPCG(1, 2))
	var clients sync.WaitGroup
	for range 6 {
		bodies := make([]string, 40)
		for i := range bodies {
			tokens := make([]string, 1+rng.IntN(40))
			for k := range tokens {
				tokens[k] = fmt.Sprint(rng.IntN(1 + k/12))
			}
			bodies[i] = fmt.Sprintf(`{"prompt": [%s], "max_tokens": %d}`, strings.Join(tokens, ","), 1+rng.IntN(20))
		}
		clients.Go(func() {
			for _, body := range bodies {
				if status, text := post(t, m, body); status != 200 {
					t.Errorf("status %d: %s", status, text)
				}
			}
		})
	}
	clients.Wait()
	st := m.Stats()
	require.Equal(t, uint64(240), st.Finished)
	require.Positive(t, st.Evicted)
	require.Positive(t, st.CachedTokens)
	require.Zero(t, st.Failed)

	replay, err := zmq.Dial(context.Background(), m.Info().Replay, zmq.Dealer, zmq.Options{})
	require.NoError(t, err)
	defer replay.Close()
	require.NoError(t, replay.Send(nil, make([]byte, 8)))
	f := &follower{blocks: map[block.EngineHash]int{}}
	next := uint64(0)
	for {
		frames, err := replay.Recv()
		require.NoError(t, err)
		msg, err := wire.ParseReplay(frames)
		require.NoError(t, err)
		if msg.End {
			break
		}
		require.Equal(t, next, msg.Seq)
		next++
		f.apply(t, msg.Payload, 4)
	}
	require.Equal(t, st.Batches, next)
	require.Equal(t, held(m), f.blocks)

	// Live messages go on from there, up to an empty cache.
	require.True(t, m.clear())
	for {
		frames, err := live.Recv()
		require.NoError(t, err)
		msg, err := wire.ParseLive(frames)
		require.NoError(t, err)
		require.Equal(t, "kv", string(msg.Topic))
		if msg.Seq < next {
			continue
		}
		batch, err := wire.DecodeBatch(msg.Payload, wire.Limits{})
		require.NoError(t, err)
		require.Equal(t, uint32(2), batch.DPRank)
		f.apply(t, msg.Payload, 4)
		break
	}
	require.Empty(t, f.blocks)
	require.Empty(t, held(m))
}

func TestEnginesWithDifferentSeedsNameBlocksDifferently(t *testing.T) {
	tokens := []block.Token{1, 2, 3, 4}
	a, b := newChain("a"), newChain("b")
	require.Equal(t, newChain("a").next(tokens), a.next(tokens))
	require.NotEqual(t, newChain("a").next(tokens), b.next(tokens))
	require.NotEqual(t, newChain("a").next(tokens), a.next(tokens), "the same tokens after others are another block")
}
