package publish

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

func start(t *testing.T, cfg Config) *Publisher {
	if cfg.Endpoint == "" {
		cfg.Endpoint, cfg.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	}
	if cfg.BufferSteps == 0 {
		cfg.BufferSteps = 100
	}
	p, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func dial(t *testing.T, endpoint string, kind zmq.SocketType) *zmq.Conn {
	c, err := zmq.Dial(context.Background(), endpoint, kind, zmq.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a replay request and gives the sequence numbers and payloads of the answer, whose layout it checks.
func ask(t *testing.T, c *zmq.Conn, topic string, request ...[]byte) (seqs []uint64, payloads [][]byte) {
	require.NoError(t, c.Send(request...))
	for {
		frames, err := c.Recv()
		require.NoError(t, err)
		require.Len(t, frames, 4)
		require.Empty(t, frames[0])
		seq := binary.BigEndian.Uint64(frames[2])
		m, err := wire.ParseReplay(frames)
		require.NoError(t, err)
		require.Equal(t, seq == math.MaxUint64, m.End)
		if m.End {
			require.Empty(t, frames[1])
			require.Empty(t, frames[3])
			return seqs, payloads
		}
		require.Equal(t, topic, string(frames[1]))
		seqs, payloads = append(seqs, seq), append(payloads, frames[3])
	}
}

func from(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func upTo(low, high uint64) (seqs []uint64) {
	for s := low; s < high; s++ {
		seqs = append(seqs, s)
	}
	return seqs
}

func TestLiveMessagesAreNumberedAndDecode(t *testing.T) {
	clock := func() time.Time { return time.Unix(1700000000, 500_000_000) }
	p := start(t, Config{Topic: "kv@pod", Rank: 3, Clock: clock})
	c := dial(t, p.Addr(), zmq.Sub)
	require.NoError(t, c.Send(append([]byte{1}, "kv@"...)))
	require.Eventually(t, func() bool { return p.pub.Stats().Subscribers == 1 }, 20*time.Second, time.Millisecond)

	parent := block.EngineHash(math.MaxUint64)
	stored := Stored(&parent, []block.EngineHash{1, 1 << 63}, []block.Token{1, 2, 3, math.MaxUint32}, 2)
	stored.LoRAName = "adapter"
	for i, events := range [][]Event{{stored, Removed([]block.EngineHash{7})}, {Cleared()}} {
		seq, err := p.Publish(events...)
		require.NoError(t, err)
		require.Equal(t, uint64(i), seq)
		frames, err := c.Recv()
		require.NoError(t, err)
		require.Len(t, frames, 3)
		m, err := wire.ParseLive(frames)
		require.NoError(t, err)
		require.Equal(t, "kv@pod", string(m.Topic))
		require.Equal(t, seq, m.Seq)
		b, err := wire.DecodeBatch(m.Payload, wire.Limits{})
		require.NoError(t, err)
		require.Equal(t, 1700000000.5, b.TS)
		require.True(t, b.HasRank)
		require.Equal(t, uint32(3), b.DPRank)
		require.Len(t, b.Events, len(events))
		for k, e := range b.Events {
			require.NoError(t, e.Err)
			require.Equal(t, events[k].Kind, e.Kind)
			require.Equal(t, events[k].BlockHashes, e.BlockHashes)
			require.Equal(t, events[k].HasParent, e.HasParent)
			require.Equal(t, events[k].Parent, e.Parent)
			require.Equal(t, events[k].TokenIDs, e.TokenIDs)
			require.Equal(t, events[k].BlockSize, e.BlockSize)
			require.Equal(t, events[k].LoRAName, e.LoRAName)
			require.Equal(t, events[k].Medium, e.Medium)
		}
	}
}

func TestReplayGivesWhatIsKeptAndAnEndMarker(t *testing.T) {
	p := start(t, Config{Topic: "topic", BufferSteps: 20})
	c := dial(t, p.ReplayAddr(), zmq.Dealer)
	seqs, _ := ask(t, c, "topic", nil, from(0))
	require.Empty(t, seqs, "nothing was published yet")
	for i := range 50 {
		seq, err := p.Publish(Removed([]block.EngineHash{block.EngineHash(i)}))
		require.NoError(t, err)
		require.Equal(t, uint64(i), seq)
	}
	for _, at := range []struct{ start, first uint64 }{
		{0, 30}, {29, 30}, {30, 30}, {31, 31}, {49, 49}, {50, 50}, {51, 50}, {1e6, 50}, {1 << 63, 50}, {math.MaxUint64, 50},
	} {
		seqs, payloads := ask(t, c, "topic", nil, from(at.start))
		require.Equal(t, upTo(at.first, 50), seqs, "asked from %d", at.start)
		for i, payload := range payloads {
			b, err := wire.DecodeBatch(payload, wire.Limits{})
			require.NoError(t, err)
			require.Equal(t, []block.EngineHash{block.EngineHash(seqs[i])}, b.Events[0].BlockHashes)
		}
	}
}

func TestReplayRequestsOfOtherShapes(t *testing.T) {
	p := start(t, Config{})
	for range 3 {
		_, err := p.Publish(Cleared())
		require.NoError(t, err)
	}
	c := dial(t, p.ReplayAddr(), zmq.Dealer)
	// No answer: the one to the well-formed request behind is the first that comes.
	require.NoError(t, c.Send(from(0)))
	require.NoError(t, c.Send(nil, from(0), nil))
	seqs, _ := ask(t, c, "", nil, from(1))
	require.Equal(t, upTo(1, 3), seqs)
	// A number of any length.
	for _, number := range [][]byte{{}, {0, 0, 0, 2}, append([]byte{0}, from(2)...), append([]byte{1}, from(0)...)} {
		first := uint64(2)
		switch len(number) {
		case 0:
			first = 0
		case 9:
			if number[0] == 1 {
				first = 3
			}
		}
		seqs, _ := ask(t, c, "", nil, number)
		require.Equal(t, upTo(first, 3), seqs, "number %x", number)
	}
	// Two at once: two whole answers, one after the other.
	require.NoError(t, c.Send(nil, from(2)))
	seqs, _ = ask(t, c, "", nil, from(0))
	require.Equal(t, upTo(2, 3), seqs)
	seqs, _ = ask(t, c, "", nil, from(3), nil) // this one gets no answer; the second of the two comes first
	require.Equal(t, upTo(0, 3), seqs)
}

func TestReplayOfTenThousandBatchesIsWhole(t *testing.T) {
	const steps = 10_000
	p := start(t, Config{BufferSteps: steps})
	hashes, tokens := make([]block.EngineHash, 4), make([]block.Token, 64)
	for i := range steps + 10 {
		hashes[0] = block.EngineHash(i)
		_, err := p.Publish(Stored(nil, hashes, tokens, 16))
		require.NoError(t, err)
	}
	seqs, _ := ask(t, dial(t, p.ReplayAddr(), zmq.Dealer), "", nil, from(0))
	require.Equal(t, upTo(10, steps+10), seqs)
}

func TestWrongUseIsAnError(t *testing.T) {
	p := start(t, Config{})
	one := []block.EngineHash{1}
	for name, e := range map[string]Event{
		"no kind":              {},
		"unknown kind":         {Kind: 9},
		"nothing removed":      Removed(nil),
		"nothing stored":       Stored(nil, nil, nil, 1),
		"block size 0":         Stored(nil, one, nil, 0),
		"block size below 0":   Stored(nil, one, []block.Token{1}, -1),
		"block size too large": Stored(nil, one, []block.Token{1}, 1<<40),
		"too few tokens":       Stored(nil, one, []block.Token{1}, 2),
		"too many tokens":      Stored(nil, one, []block.Token{1, 2}, 1),
		"its own parent":       Stored(&one[0], one, []block.Token{1}, 1),
		"bigrams":              {Kind: event.Stored, BlockHashes: one, TokenIDs: []uint32{1}, BlockSize: 1, Bigram: true},
		"multimodal":           {Kind: event.Stored, BlockHashes: one, TokenIDs: []uint32{1}, BlockSize: 1, MM: [][]uint64{}},
	} {
		_, err := p.Publish(Cleared(), e)
		require.ErrorIs(t, err, ErrEvent, name)
		require.ErrorContains(t, err, "events[1]", name)
	}
	_, err := p.Publish()
	require.ErrorIs(t, err, ErrEvent)
	_, err = p.Publish(Event{Kind: event.Cleared, Err: wire.ErrEvent})
	require.ErrorIs(t, err, ErrEvent)
	seq, err := p.Publish(Cleared())
	require.NoError(t, err)
	require.Zero(t, seq, "what was refused used no number")

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Publish(Cleared())
	require.ErrorIs(t, err, ErrClosed)
}

func TestNewRefuses(t *testing.T) {
	for _, steps := range []int{-1, 0, MaxBufferSteps + 1} {
		_, err := New(Config{Endpoint: "tcp://127.0.0.1:0", BufferSteps: steps})
		require.ErrorIs(t, err, ErrConfig)
	}
	for _, endpoint := range []string{"", "tcp://", "tcp://127.0.0.1:99999", "inproc://x"} {
		_, err := New(Config{Endpoint: endpoint, BufferSteps: 1})
		require.ErrorIs(t, err, zmq.ErrEndpoint, endpoint)
	}
	p := start(t, Config{})
	_, err := New(Config{Endpoint: p.Addr(), BufferSteps: 1})
	require.Error(t, err, "the port is taken")
	_, err = New(Config{Endpoint: "tcp://127.0.0.1:0", Replay: p.Addr(), BufferSteps: 1})
	require.Error(t, err, "the replay port is taken")
}

func TestWithoutReplayAndOverIPC(t *testing.T) {
	path := "ipc://" + filepath.Join(t.TempDir(), "events")
	p := start(t, Config{Endpoint: path})
	require.Equal(t, path, p.Addr())
	require.Empty(t, p.ReplayAddr())
	c := dial(t, p.Addr(), zmq.Sub)
	require.NoError(t, c.Send([]byte{1}))
	require.Eventually(t, func() bool { return p.pub.Stats().Subscribers == 1 }, 20*time.Second, time.Millisecond)
	_, err := p.Publish(Cleared())
	require.NoError(t, err)
	frames, err := c.Recv()
	require.NoError(t, err)
	require.Len(t, frames, 3)
	require.Empty(t, frames[0])
}

func BenchmarkPublish(b *testing.B) {
	p, err := New(Config{Endpoint: "tcp://127.0.0.1:0", BufferSteps: 10_000})
	require.NoError(b, err)
	defer p.Close()
	e := Stored(nil, make([]block.EngineHash, 64), make([]block.Token, 1024), 16)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Publish(e); err != nil {
			b.Fatal(err)
		}
	}
}
