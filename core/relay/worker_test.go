package relay

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/publish"
)

func startWorker(t *testing.T, config string) *Worker {
	cfg, err := ParseWorkerConfig([]byte(config))
	require.NoError(t, err)
	w, err := StartWorker(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func TestAWorkerPublishesForItsRanks(t *testing.T) {
	w := startWorker(t, `{"worker_id": 9, "dp_start": 4, "dp_size": 2, "block_size": 2, "kv_events": "tcp://127.0.0.1:0", "replay": "tcp://127.0.0.1:0"}`)
	_, err := w.Publish(5, chain(nil, 1, 2))
	require.NoError(t, err)
	for _, rank := range []uint32{0, 3, 6} {
		_, err = w.Publish(rank, publish.Cleared())
		require.ErrorIs(t, err, ErrRank)
	}
	info := w.Info()
	require.Len(t, info, 2)
	require.Equal(t, uint32(4), info[0].DPRank)
	require.Equal(t, RankInfo{DPRank: 5, KVEvents: info[1].KVEvents, Replay: info[1].Replay, Messages: 2, Blocks: 2, Stored: 2}, info[1])
	require.NoError(t, w.Close())
	_, err = w.Publish(5, publish.Cleared())
	require.ErrorIs(t, err, publish.ErrClosed)
}

func TestAWorkerRelaysEachRank(t *testing.T) {
	p := engine(t, free, free)
	w := startWorker(t, fmt.Sprintf(`{"worker_id": 9, "block_size": 2, "kv_events": "tcp://127.0.0.1:0", "replay": "tcp://127.0.0.1:0",
		"engine": {"kv_events": {"0": %q}, "replay": %q}}`, p.Addr(), p.ReplayAddr()))
	_, err := w.Publish(0, publish.Cleared())
	require.ErrorIs(t, err, ErrRelayed)
	down := follow(t, w.ranks.Rank(0))
	send(t, p, chain(nil, 1, 2))
	eventually(t, "the router holds the blocks", func() bool { return slices.Equal(down.names(), []uint64{1, 2}) })
	eventually(t, "exact", func() bool { return w.Info()[0].Engine.State == "exact" })
}

func TestAWorkerTakesWhatItsEnginePublishesUnderTheTopic(t *testing.T) {
	p, err := publish.New(publish.Config{Endpoint: free, Replay: free, Topic: "mine", BufferSteps: 100})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	config := func(topic string) string {
		return fmt.Sprintf(`{"worker_id": 9, "block_size": 2, "kv_events": "tcp://127.0.0.1:0", "engine": {"kv_events": {"0": %q}, "topic": %q}}`, p.Addr(), topic)
	}
	mine, other := startWorker(t, config("mine")), startWorker(t, config("other"))
	for _, w := range []*Worker{mine, other} {
		eventually(t, "subscribed", func() bool { return w.Info()[0].Engine.State != "disconnected" })
	}
	// A subscription is on its way still, so some messages may be lost.
	next := uint64(0)
	eventually(t, "the engine's topic is followed", func() bool {
		next++
		send(t, p, chain(nil, block.EngineHash(next)))
		return mine.Info()[0].Stored > 0
	})
	require.Zero(t, other.Info()[0].Stored)
}

func TestWorkersThatCannotBe(t *testing.T) {
	for _, config := range []string{``, `{`, `[]`, `{} {}`, `{"more": 1}`, `{"worker_id": 1.5}`, `{"engine": {"kv_events": 5}}`, `{"engine": {"kv_events": {"-1": "x"}}}`} {
		_, err := ParseWorkerConfig([]byte(config))
		require.ErrorIs(t, err, publish.ErrConfig, config)
	}
	for _, engine := range []string{`{}`, `{"kv_events": "tcp://*:5557"}`, `{"kv_events": {"1": "tcp://h:1"}}`, `{"kv_events": "tcp://h:1", "replay": "x"}`, `{"kv_events": {"0": "tcp://*:1"}}`} {
		cfg, err := ParseWorkerConfig([]byte(`{"block_size": 2, "kv_events": "tcp://127.0.0.1:0", "engine": ` + engine + `}`))
		require.NoError(t, err)
		_, err = StartWorker(cfg)
		require.ErrorIs(t, err, publish.ErrConfig, engine)
	}
}
