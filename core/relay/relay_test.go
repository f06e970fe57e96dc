package relay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	truth "github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/internal/enginetest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const free = "tcp://127.0.0.1:0"

var rank = worker.Rank{ID: 9}

func startSource(t *testing.T, blockSize, steps int) *publish.Source {
	s, err := publish.NewSource(publish.SourceConfig{Rank: rank, BlockSize: blockSize, Endpoint: free, Replay: free, Query: free, BufferSteps: steps})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func quick(c *feed.Config) { c.Probe, c.BackoffMin = 300*time.Millisecond, 10*time.Millisecond }

func startRelay(t *testing.T, endpoint, replay string, s *publish.Source) *Relay {
	r := Start(Config{Endpoint: endpoint, Replay: replay, Source: s, Tune: quick})
	t.Cleanup(r.Close)
	return r
}

// router is the view of one who follows a source.
type router struct {
	mu sync.Mutex
	x  index.Index
	f  *feed.Feed
}

func follow(t *testing.T, s *publish.Source) *router {
	r := &router{x: truth.New()}
	cfg := feed.Config{Rank: rank, Endpoint: s.Addr(), Replay: s.ReplayAddr(), BlockSize: s.BlockSize(), Sink: r}
	quick(&cfg)
	r.f = feed.Start(cfg)
	t.Cleanup(r.f.Close)
	return r
}

func (r *router) Apply(_ worker.Rank, ev *event.Event) (index.Applied, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ev.Tier != event.Device {
		return index.Applied{}, nil
	}
	return r.x.Apply(0, ev, index.Count)
}

func (r *router) Reset(worker.Rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.x.Drop(0)
}

func (r *router) names() (all []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range r.x.Dump(0, 0) {
		for _, b := range ev.Blocks {
			all = append(all, uint64(b.Engine))
		}
	}
	slices.Sort(all)
	return all
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 5*time.Millisecond, what)
}

func engine(t *testing.T, endpoint, replay string) *publish.Publisher {
	p, err := publish.New(publish.Config{Endpoint: endpoint, Replay: replay, Rank: rank.DPRank, BufferSteps: 10_000})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func send(t *testing.T, p *publish.Publisher, events ...publish.Event) {
	_, err := p.Publish(events...)
	require.NoError(t, err)
}

func chain(parent *block.EngineHash, names ...block.EngineHash) publish.Event {
	var tokens []block.Token
	for _, n := range names {
		tokens = append(tokens, block.Token(n), 0)
	}
	return publish.Stored(parent, names, tokens, 2)
}

func TestRelaySplitsCountsAndPassesOn(t *testing.T) {
	p := engine(t, free, free)
	s := startSource(t, 2, 100)
	r := startRelay(t, p.Addr(), p.ReplayAddr(), s)
	down := follow(t, s)
	one := block.EngineHash(1)
	other, wrong := chain(nil, 50), publish.Stored(nil, []block.EngineHash{60}, []block.Token{1, 2, 3}, 3)
	other.HasGroup, other.GroupIdx, other.SpecKind = true, 1, "mamba"
	send(t, p, chain(nil, 1, 2), chain(&one, 3), other, wrong, chain(nil, 1, 2)) // the last is a second copy
	unknown := block.EngineHash(77)
	send(t, p, publish.Removed([]block.EngineHash{2, 3}), chain(&unknown, 8))
	eventually(t, "the router holds the blocks", func() bool { return slices.Equal(down.names(), []uint64{1, 2}) })
	eventually(t, "all is counted", func() bool { return s.Stats().Refused == 1 })
	require.Equal(t, publish.SourceStats{Messages: 4, Blocks: 2, Stored: 3, Duplicate: 2, Removed: 1, Refused: 1}, s.Stats())
	c := r.Status().Counters
	require.Equal(t, uint64(1), c["non_main_attention"])
	require.Equal(t, uint64(1), c["wrong_block_size"])
	send(t, p, publish.Cleared())
	eventually(t, "nothing is held", func() bool { return len(down.names()) == 0 })
}

// What names a block besides its tokens is passed on, also where the engine says it of the first block only.
func TestRelayPassesOnWhatNamesBlocks(t *testing.T) {
	salted := chain(nil, 1, 2)
	salted.CacheSalt, salted.SaltRoot = "salt", true
	one := block.EngineHash(2)
	mm := chain(nil, 5, 6)
	mm.MM = [][]uint64{{7}}
	pairs := chain(nil, 20, 21)
	pairs.Bigram, pairs.TokenIDs = true, append(pairs.TokenIDs, 4)
	lora := chain(nil, 10)
	lora.LoRAName = "adapter"
	cpu := chain(nil, 30)
	cpu.Medium = "CPU"
	grouped := chain(nil, 40)
	grouped.HasGroup, grouped.SpecKind = true, "full_attention"
	engineSays := []publish.Event{salted, chain(&one, 3), mm, pairs, lora, cpu, grouped}

	direct, n := truth.New(), wire.NewNormalizer(2)
	s := startSource(t, 2, 100)
	k := &sink{source: s}
	for i := range engineSays {
		e := &engineSays[i]
		ev, verdict := n.Normalize(e, 0, 0)
		require.Equal(t, wire.Keep, verdict)
		if ev.Tier == event.Device {
			_, err := direct.Apply(0, &ev, index.Count)
			require.NoError(t, err)
		}
		_, err := k.ApplyRaw(rank, e, n.Salt())
		require.NoError(t, err)
	}
	_, err := k.ApplyRaw(rank, &publish.Event{Kind: event.Removed}, "")
	require.NoError(t, err)
	_, err = k.Apply(rank, &event.Event{})
	require.ErrorIs(t, err, errRaw)
	down := follow(t, s)
	eventually(t, "the router has all", func() bool {
		down.mu.Lock()
		defer down.mu.Unlock()
		return down.x.Blocks(0) == direct.Blocks(0)
	})
	down.mu.Lock()
	defer down.mu.Unlock()
	require.Equal(t, direct.Dump(0, 0), down.x.Dump(0, 0), "the same hashes")
}

func TestRelayOfARestartedEngineClears(t *testing.T) {
	live, replay := "tcp://"+servertest.FreeAddress(t), "tcp://"+servertest.FreeAddress(t)
	p := engine(t, live, replay)
	s := startSource(t, 2, 100)
	startRelay(t, p.Addr(), p.ReplayAddr(), s)
	down := follow(t, s)
	send(t, p, chain(nil, 1, 2))
	eventually(t, "the first engine's blocks", func() bool { return slices.Equal(down.names(), []uint64{1, 2}) })
	require.NoError(t, p.Close())
	p = engine(t, live, replay)
	send(t, p, chain(nil, 3))
	eventually(t, "the second engine's blocks, and no others", func() bool { return slices.Equal(down.names(), []uint64{3}) })
	require.NotZero(t, s.Stats().Removed)
}

// SGLang's own publisher, whose live messages are lost now and then, reaches a router through a relay without a loss.
func TestRelaysSGLangPublisher(t *testing.T) {
	p := enginetest.StartSGLang(t, "0.5.23")
	const batches = 3000
	rng := rand.New(rand.NewPCG(3, 5))
	var lost []string
	for seq := 1; seq < batches; seq++ {
		if rng.UintN(100) < 3 || seq == batches-1 {
			lost = append(lost, fmt.Sprint(seq))
		}
	}
	p.Tell("drop %s", strings.Join(lost, ","))
	s := startSource(t, 16, 100)
	r := startRelay(t, p.Live, p.Replay, s)
	down := follow(t, s)
	eventually(t, "joined", func() bool { return r.Status().State == feed.Exact })
	for done := 0; done < batches; done += 500 {
		p.Tell("chain 500 42")
		p.Tell("sync")
	}
	want := p.State()
	eventually(t, "the last batch, which was lost live, is found", func() bool {
		st := r.Status()
		return st.HasSeq && st.LastSeq == batches-1
	})
	require.NotZero(t, r.Status().Counters["gaps"])
	require.Equal(t, len(want), s.Stats().Blocks)
	eventually(t, "the router holds what the engine holds", func() bool { return slices.Equal(down.names(), want) })
}
