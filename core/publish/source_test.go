package publish

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	truth "github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

const free = "tcp://127.0.0.1:0"

func startSource(t testing.TB, steps int) *Source {
	s, err := NewSource(SourceConfig{
		Rank: worker.Rank{ID: 1 << 60, DPRank: 3}, BlockSize: 2, Endpoint: free, Replay: free, Query: free, Topic: "kv", BufferSteps: steps,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// chain stores blocks with the given names; a block's tokens are its name's.
func chain(parent *block.EngineHash, names ...block.EngineHash) Event {
	var tokens []block.Token
	for _, n := range names {
		tokens = append(tokens, block.Token(n), block.Token(n>>32))
	}
	return Stored(parent, names, tokens, 2)
}

func names(n ...block.EngineHash) []block.EngineHash { return n }

// messages gives what a subscriber that lost nothing has: the events of the replay.
func messages(t testing.TB, s *Source) (all []wire.Event) {
	seq, payloads := s.out.steps.since(0)
	for _, payload := range payloads {
		b, err := wire.DecodeBatch(payload, wire.Limits{})
		require.NoError(t, err)
		require.Len(t, b.Events, 1, "a message has one event")
		require.NoError(t, b.Events[0].Err)
		all = append(all, b.Events[0])
		seq++
	}
	require.Equal(t, s.next, seq, "a message's number is its event's id")
	return all
}

func TestTheFirstMessageClears(t *testing.T) {
	s := startSource(t, 10)
	all := messages(t, s)
	require.Len(t, all, 1)
	require.Equal(t, event.Cleared, all[0].Kind)
	require.Equal(t, SourceStats{Messages: 1}, s.Stats())
	require.Equal(t, worker.Rank{ID: 1 << 60, DPRank: 3}, s.Rank())
	require.NotEqual(t, s.id, startSource(t, 10).id, "another process is another publisher")
}

func TestWhatIsStoredTwiceMustBeRemovedTwice(t *testing.T) {
	s := startSource(t, 100)
	done, err := s.Publish(chain(nil, 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 3}, done)
	two := block.EngineHash(2)
	done, err = s.Publish(chain(nil, 1, 2), chain(&two, 3, 4), chain(&two, 5))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 2, Duplicate: 3}, done)
	done, err = s.Publish(Removed(names(1, 2, 3, 4, 99)))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Removed: 1, Unknown: 1}, done)
	done, err = s.Publish(Removed(names(3, 3)))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Removed: 1, Unknown: 1}, done)
	all := messages(t, s)
	require.Len(t, all, 6)
	require.Equal(t, names(1, 2, 3), all[1].BlockHashes)
	require.Equal(t, names(4), all[2].BlockHashes, "the new block only, below the one before it")
	require.Equal(t, block.EngineHash(3), all[2].Parent)
	require.Equal(t, []uint32{4, 0}, all[2].TokenIDs)
	require.Equal(t, names(5), all[3].BlockHashes)
	require.Equal(t, names(4), all[4].BlockHashes)
	require.Equal(t, names(3), all[5].BlockHashes)
	require.Equal(t, SourceStats{Messages: 6, Blocks: 3, Stored: 5, Duplicate: 3, Removed: 2, Unknown: 2}, s.Stats())
	done, err = s.Publish(Cleared())
	require.NoError(t, err)
	require.Equal(t, index.Applied{Removed: 3}, done)
	_, err = s.Publish(chain(&two, 9))
	require.ErrorIs(t, err, index.ErrUnknownParent)
}

func TestANameUsedAgainIsAnotherBlock(t *testing.T) {
	s := startSource(t, 100)
	again := Stored(nil, names(1), []block.Token{8, 8}, 2)
	done, err := s.Publish(chain(nil, 1), chain(nil, 1), again)
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 2, Duplicate: 1}, done, "it starts anew")
	done, err = s.Publish(Removed(names(1)))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Removed: 1}, done)
	require.Zero(t, s.Stats().Blocks)
	all := messages(t, s)
	require.Len(t, all, 5)
	require.Equal(t, []event.Kind{event.Cleared, event.Stored, event.Removed, event.Stored, event.Removed}, []event.Kind{
		all[0].Kind, all[1].Kind, all[2].Kind, all[3].Kind, all[4].Kind,
	}, "who does not take the second block must not keep the first")
	_, err = s.Publish(chain(nil, 1), Cleared())
	require.NoError(t, err)
	done, err = s.Publish(chain(nil, 1))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 1}, done, "a clear forgets counts")
}

func TestAStoreWithHolesIsSeveralMessages(t *testing.T) {
	s := startSource(t, 100)
	_, err := s.Publish(chain(nil, 1, 2, 3, 4, 5), Removed(names(1, 3)))
	require.NoError(t, err)
	e := chain(nil, 1, 2, 3, 4, 5)
	e.MM = [][]uint64{nil, nil, nil, nil, nil}
	e.LoRAName = "" // the same blocks
	done, err := s.Publish(e)
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 2, Duplicate: 3}, done)
	all := messages(t, s)[3:]
	require.Len(t, all, 2)
	require.Equal(t, names(1), all[0].BlockHashes)
	require.False(t, all[0].HasParent)
	require.Equal(t, names(3), all[1].BlockHashes)
	require.Equal(t, block.EngineHash(2), all[1].Parent)
}

func TestSourceRefusesWrongUseAtTheCall(t *testing.T) {
	s := startSource(t, 100)
	_, err := s.Publish(chain(nil, 1))
	require.NoError(t, err)
	group, salted, lora, medium, err1 := chain(nil, 7), chain(nil, 7), chain(nil, 7), chain(nil, 7), Cleared()
	group.HasGroup, salted.SaltRoot, salted.CacheSalt, lora.HasLoRAID, medium.Medium, err1.Err = true, true, "s", true, "TAPE", wire.ErrEvent
	for name, e := range map[string]Event{
		"block size":      Stored(nil, names(7), []block.Token{1, 2, 3}, 3),
		"too few tokens":  Stored(nil, names(7), []block.Token{1}, 2),
		"too many tokens": Stored(nil, names(7), []block.Token{1, 2, 3}, 2),
		"no blocks":       Stored(nil, nil, nil, 2),
		"nothing removed": Removed(nil),
		"no kind":         {},
		"a cache group":   group, "extra keys": salted, "an adapter's number": lora, "a medium": medium, "not decoded": err1,
	} {
		_, err := s.Publish(chain(nil, 8), e)
		require.ErrorIs(t, err, ErrEvent, name)
	}
	_, err = s.Publish()
	require.ErrorIs(t, err, ErrEvent)
	require.Equal(t, uint64(2), s.Stats().Messages, "nothing was published")

	unknown := block.EngineHash(70)
	done, err := s.Publish(chain(&unknown, 7, 8), chain(nil, 9), chain(nil, 4, 4))
	require.ErrorIs(t, err, index.ErrUnknownParent)
	require.ErrorContains(t, err, "events[0]")
	require.Equal(t, index.Applied{Stored: 1, Refused: 4}, done, "the others are published")
	_, err = s.Publish(chain(nil, 4, 4))
	require.ErrorIs(t, err, index.ErrBadChain)

	one := block.EngineHash(1)
	_, err = s.Publish(chain(&one, 4, 1))
	require.ErrorIs(t, err, index.ErrBadChain)

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Publish(Cleared())
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, uint64(8), s.Stats().Refused)
}

func TestLowerTiersNeedNoParent(t *testing.T) {
	s := startSource(t, 100)
	parent := block.EngineHash(50)
	e := chain(&parent, 1, 2)
	e.Medium = "CPU_PINNED"
	done, err := s.Publish(e, e)
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: 2, Duplicate: 2}, done)
	gone := Removed(names(2))
	done, err = s.Publish(gone)
	require.NoError(t, err)
	require.Equal(t, index.Applied{Unknown: 1}, done, "it is not on the device")
	gone.Medium = "CPU_PINNED"
	_, err = s.Publish(gone, gone)
	require.NoError(t, err)
	all := messages(t, s)
	require.Len(t, all, 3)
	require.Equal(t, "CPU_PINNED", all[1].Medium)
	require.Equal(t, "CPU_PINNED", all[2].Medium)
	require.Zero(t, s.Stats().Blocks)
}

// An identity other than the tokens alone reaches routers: they compute the hashes of the local indexer.
func TestRoutersHashWhatTheSourceHashed(t *testing.T) {
	s := startSource(t, 100)
	plain := chain(nil, 1, 2)
	salted, lora, mm, eagle := chain(nil, 3, 4), chain(nil, 5, 6), chain(nil, 7, 8), chain(nil, 9, 10)
	salted.CacheSalt, lora.LoRAName, mm.MM = "salt", "adapter", [][]uint64{nil, {5, 6}}
	eagle.Bigram, eagle.TokenIDs = true, append(eagle.TokenIDs, 77)
	_, err := s.Publish(plain, salted, lora, mm, eagle)
	require.NoError(t, err)
	_, err = s.Publish(Removed(names(10)))
	require.NoError(t, err)
	_, err = s.Publish(eagle) // its second half
	require.NoError(t, err)

	router := follow(t, messages(t, s), index.Count)
	a := s.log.Range(&event.RangeQuery{})
	indexer := truth.New()
	for i := range a.Events {
		_, err := indexer.Apply(0, &a.Events[i], index.Set)
		require.NoError(t, err)
	}
	require.Equal(t, 10, indexer.Blocks(0))
	require.Equal(t, indexer.Dump(0, 0), router.Dump(0, 0))
}

// follow gives the index of a router that heard these messages.
func follow(t testing.TB, all []wire.Event, counting index.Counting) index.Index {
	x, n := truth.New(), wire.NewNormalizer(2)
	for i := range all {
		ev, verdict := n.Normalize(&all[i], uint64(i), 3)
		require.Equal(t, wire.Keep, verdict)
		if ev.Tier != event.Device {
			continue
		}
		_, err := x.Apply(0, &ev, counting)
		require.NoError(t, err)
	}
	return x
}

// A router that counts, one that does not, and one that asks for everything: all hold what the engine holds.
func FuzzSource(f *testing.F) {
	f.Add([]byte{1, 2, 3, 1, 2, 3, 128, 1, 129, 2, 200, 7, 64, 3, 4})
	f.Add([]byte("stores and removals of a few names, over and over, in any order"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := startSource(t, 1000)
		engine, n := truth.New(), wire.NewNormalizer(2)
		for i := 0; i+3 < min(len(ops), 200); i += 4 {
			var e Event
			name := func(k int) block.EngineHash { return block.EngineHash(ops[i+k] % 8) }
			switch kind := ops[i] % 16; {
			case kind == 0:
				e = Cleared()
			case kind < 6:
				e = Removed(names(name(1), name(2)))
			default:
				parent := name(3)
				e = Stored(&parent, names(name(1), name(2)), []block.Token{uint32(ops[i+1] >> 6), 0, uint32(ops[i+2] >> 6), 0}, 2)
				if kind < 10 {
					e.HasParent, e.Parent = false, 0
				}
			}
			ev, verdict := n.Normalize(&e, 0, 3)
			_, err := s.Publish(e)
			if verdict != wire.Keep {
				require.Error(t, err)
				continue
			}
			_, refused := engine.Apply(0, &ev, index.Count)
			require.Equal(t, refused == nil, err == nil, "%v %v %+v", refused, err, e)
		}
		require.Equal(t, engine.Blocks(0), s.Stats().Blocks)
		heard := messages(t, s)
		for _, counting := range []index.Counting{index.Count, index.Set} {
			router := follow(t, heard, counting)
			require.Equal(t, engine.Dump(0, 0), router.Dump(0, 0))
			require.Equal(t, engine.Blocks(0), router.Blocks(0))
		}
		a := s.log.Range(&event.RangeQuery{})
		restored := truth.New()
		for i := range a.Events {
			_, err := restored.Apply(0, &a.Events[i], index.Set)
			require.NoError(t, err)
		}
		require.Equal(t, engine.Dump(0, 0), restored.Dump(0, 0))
	})
}

// query asks a source as a router does.
func query(t testing.TB, c *zmq.Conn, s *Source, q event.RangeQuery) (publisher uint64, a *event.RangeAnswer) {
	require.NoError(t, c.Send(nil, wire.AppendRangeQuery(nil, &q)))
	return receive(t, c, s)
}

func receive(t testing.TB, c *zmq.Conn, s *Source) (uint64, *event.RangeAnswer) {
	var r wire.RangeReceiver
	for {
		frames, err := c.Recv()
		require.NoError(t, err)
		require.Len(t, frames, 3)
		done, err := r.Add(frames)
		require.NoError(t, err)
		if done {
			break
		}
	}
	publisher, payload := r.Answer()
	a, err := wire.DecodeRangeAnswer(payload, s.Rank())
	require.NoError(t, err)
	return publisher, a
}

func TestQueriesAreAnswered(t *testing.T) {
	s := startSource(t, 4)
	c := dial(t, s.QueryAddr(), zmq.Dealer)
	all := event.RangeQuery{WorkerID: 1 << 60, DPRank: 3}
	from := func(start uint64) event.RangeQuery {
		q := all
		q.HasStart, q.Start = true, start
		return q
	}
	publisher, a := query(t, c, s, all)
	require.Equal(t, s.id, publisher)
	require.Equal(t, &event.RangeAnswer{Kind: event.RangeDump}, a, "of nothing, after event 0")
	for i := range 9 {
		_, err := s.Publish(chain(nil, block.EngineHash(i), 100+block.EngineHash(i)))
		require.NoError(t, err)
	}
	_, a = query(t, c, s, from(6))
	require.Equal(t, event.RangeEvents, a.Kind)
	require.Len(t, a.Events, 4)
	for i, ev := range a.Events {
		require.Equal(t, uint64(6+i), ev.ID)
		require.Equal(t, uint32(3), ev.DPRank)
		require.Equal(t, block.EngineHash(5+i), ev.Blocks[0].Engine, "event i is message i")
	}
	_, a = query(t, c, s, from(5))
	require.Equal(t, event.RangeDump, a.Kind)
	require.Equal(t, uint64(9), a.LastID)
	_, a = query(t, c, s, from(10))
	require.Equal(t, &event.RangeAnswer{Kind: event.RangeTooNew, HasStart: true, Start: 10, HasEnd: true, End: 9, Newest: 9}, a)
	q := from(3)
	q.HasEnd = true
	_, a = query(t, c, s, q)
	require.Equal(t, event.RangeInvalid, a.Kind)

	for _, q := range []event.RangeQuery{{WorkerID: 1, DPRank: 3}, {WorkerID: 1 << 60}} {
		_, a = query(t, c, s, q)
		require.Equal(t, event.RangeError, a.Kind)
		require.Contains(t, a.Message, "1152921504606846976/3")
	}
	// Requests of other shapes get no answer, or one that says what is wrong.
	require.NoError(t, c.Send(wire.AppendRangeQuery(nil, &all)))
	require.NoError(t, c.Send(nil, wire.AppendRangeQuery(nil, &all), nil))
	require.NoError(t, c.Send(nil, []byte(strings.Repeat("\xdf", 5000))))
	_, a = receive(t, c, s)
	require.Equal(t, event.RangeError, a.Kind)
	_, a = query(t, c, s, all)
	require.Equal(t, event.RangeDump, a.Kind)
}

func TestALargeDumpComesInParts(t *testing.T) {
	s := startSource(t, 10)
	const blocks = 20_000
	list, tokens := make([]block.EngineHash, blocks), make([]block.Token, 2*blocks)
	for i := range list {
		list[i], tokens[2*i] = block.EngineHash(math.MaxUint64-uint64(i)), block.Token(i)
	}
	_, err := s.Publish(Stored(nil, list, tokens, 2))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range maxDumps + 2 {
		wg.Go(func() {
			c := dial(t, s.QueryAddr(), zmq.Dealer)
			_, a := query(t, c, s, event.RangeQuery{WorkerID: 1 << 60, DPRank: 3})
			if len(a.Events) != 1 || len(a.Events[0].Blocks) != blocks {
				t.Errorf("%d events", len(a.Events))
			}
		})
	}
	wg.Wait()
}

// Answers that are not read keep nobody else from theirs: all places are taken, for ever.
func TestSlowReadersKeepNobodyWaiting(t *testing.T) {
	s := startSource(t, 10)
	for i := range 2 * maxDumps {
		_, err := s.Publish(chain(nil, block.EngineHash(i)))
		require.NoError(t, err)
		require.NotNil(t, s.dumps.take(s.dump, s.log.Stats))
		require.LessOrEqual(t, len(s.dumps.alive), maxDumps)
	}
	alive := slices.Clone(s.dumps.alive)
	last := alive[maxDumps-1].last
	require.Less(t, last, s.log.Stats().Last)
	all := event.RangeQuery{WorkerID: 1 << 60, DPRank: 3}
	c := dial(t, s.QueryAddr(), zmq.Dealer)
	_, a := query(t, c, s, all)
	require.Equal(t, event.RangeDump, a.Kind)
	require.Equal(t, last, a.LastID, "the newest that is being sent")
	all.HasStart, all.Start = true, last+1
	_, a = query(t, c, s, all)
	require.Equal(t, event.RangeEvents, a.Kind)
	require.Equal(t, s.log.Stats().Last, a.LastID, "and what came since")

	for i := range 10 { // now the events since are gone
		_, err := s.Publish(chain(nil, 1000+block.EngineHash(i)))
		require.NoError(t, err)
	}
	got := make(chan *dump)
	go func() { got <- s.dumps.take(s.dump, s.log.Stats) }()
	for _, d := range alive {
		s.dumps.give(d)
	}
	require.Equal(t, s.log.Stats().Last, (<-got).last)
}

func TestAnAnswerHasOneDeadline(t *testing.T) {
	s, now, parts := startSource(t, 10), time.Unix(0, 0), 0
	answer := make([]byte, 100*wire.RangeChunkBytes)
	send := func(each time.Duration) error {
		parts = 0
		return s.transmit(answer, func() time.Time { return now }, func(_, _ []byte) error { parts++; now = now.Add(each); return nil })
	}
	require.NoError(t, send(time.Second))
	require.Equal(t, 100, parts)
	require.ErrorIs(t, send(patience), errSlow)
	require.Equal(t, 22, parts)
}

// Each message is far below what a subscriber takes, and the routers' chain is whole.
func TestALongStoreIsSeveralMessages(t *testing.T) {
	s := startSource(t, 100)
	const blocks = 300_000
	list, tokens := make([]block.EngineHash, blocks), make([]block.Token, 2*blocks)
	for i := range list {
		list[i], tokens[2*i] = block.EngineHash(math.MaxUint64-uint64(i)), block.Token(math.MaxUint32-uint32(i))
	}
	done, err := s.Publish(Stored(nil, list, tokens, 2))
	require.NoError(t, err)
	require.Equal(t, index.Applied{Stored: blocks}, done)
	all := messages(t, s)
	require.Greater(t, len(all), 2)
	require.Equal(t, s.index.Dump(0, 0), follow(t, all, index.Set).Dump(0, 0))
	_, err = s.Publish(Removed(append(list, make([]block.EngineHash, 700_000)...)))
	require.NoError(t, err)
	_, payloads := s.out.steps.since(0)
	for _, p := range payloads {
		require.LessOrEqual(t, len(p), maxEventBytes)
	}
	e := chain(nil, 1)
	e.LoRAName = strings.Repeat("x", 10<<20)
	_, err = s.Publish(e)
	require.ErrorIs(t, err, ErrEvent)
}

func TestAClearForgetsLowerTiers(t *testing.T) {
	s := startSource(t, 100)
	low := chain(nil, 1)
	low.Medium = "CPU_PINNED"
	for range 2 {
		done, err := s.Publish(low)
		require.NoError(t, err)
		require.Equal(t, index.Applied{Stored: 1}, done)
		_, err = s.Publish(Cleared())
		require.NoError(t, err)
	}
}

// Peers that ask and do not read must not keep Close from ending.
func TestCloseDoesNotWaitForQueries(t *testing.T) {
	s := startSource(t, 10)
	list, tokens := make([]block.EngineHash, 60_000), make([]block.Token, 120_000)
	for i := range list {
		list[i] = block.EngineHash(i)
	}
	_, err := s.Publish(Stored(nil, list, tokens, 2))
	require.NoError(t, err)
	for range 2 * maxDumps {
		c := dial(t, s.QueryAddr(), zmq.Dealer)
		require.NoError(t, c.Send(nil, wire.AppendRangeQuery(nil, &event.RangeQuery{WorkerID: 1 << 60, DPRank: 3})))
	}
	require.NoError(t, s.Close())
}

func TestQueriesWhileEventsCome(t *testing.T) {
	s := startSource(t, 50)
	const events = 1000
	var wg sync.WaitGroup
	for range 3 {
		c := dial(t, s.QueryAddr(), zmq.Dealer)
		wg.Go(func() {
			x, cursor := truth.New(), uint64(0)
			for cursor < events {
				_, a := query(t, c, s, event.RangeQuery{WorkerID: 1 << 60, DPRank: 3, HasStart: true, Start: cursor + 1})
				if a.Kind == event.RangeTooNew {
					continue
				}
				if a.Kind == event.RangeDump {
					x = truth.New()
				}
				for i := range a.Events {
					if _, err := x.Apply(0, &a.Events[i], index.Set); err != nil {
						t.Error(err)
						return
					}
				}
				cursor = a.LastID
				if x.Blocks(0) != int(cursor) {
					t.Errorf("%d blocks after event %d", x.Blocks(0), cursor)
					return
				}
			}
		})
	}
	for i := range events {
		_, err := s.Publish(chain(nil, block.EngineHash(i)))
		require.NoError(t, err)
	}
	wg.Wait()
}

func TestAWorkerHasASourceForEachRank(t *testing.T) {
	cfg := SourceConfig{Rank: worker.Rank{ID: 5, DPRank: 2}, BlockSize: 16, Endpoint: free, Replay: free, Query: free, BufferSteps: 10}
	w, err := NewWorker(cfg, 3)
	require.NoError(t, err)
	defer w.Close()
	require.Len(t, w.Sources(), 3)
	for i, s := range w.Sources() {
		require.Equal(t, worker.Rank{ID: 5, DPRank: uint32(2 + i)}, s.Rank())
		require.Same(t, s, w.Rank(uint32(2+i)))
	}
	for _, rank := range []uint32{0, 1, 5, math.MaxUint32} {
		require.Nil(t, w.Rank(rank))
	}
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())

	fixed := func(endpoint, replay, query string) SourceConfig {
		c := cfg
		c.Endpoint, c.Replay, c.Query = endpoint, replay, query
		return c
	}
	dir := t.TempDir()
	for name, c := range map[string]struct {
		cfg   SourceConfig
		ranks uint32
	}{
		"no ranks":              {cfg, 0},
		"too many ranks":        {cfg, MaxRanks + 1},
		"ranks beyond 32 bits":  {SourceConfig{Rank: worker.Rank{DPRank: math.MaxUint32}, BlockSize: 1, Endpoint: free, BufferSteps: 1}, 2},
		"ports that meet":       {fixed("tcp://127.0.0.1:39001", "tcp://127.0.0.1:39002", ""), 2},
		"ports that meet later": {fixed("tcp://127.0.0.1:39001", "", "tcp://127.0.0.1:39003"), 3},
		"one port":              {fixed("tcp://127.0.0.1:39001", "", "tcp://127.0.0.1:39001"), 1},
		"a port beyond all":     {fixed("tcp://127.0.0.1:65535", "", ""), 1},
		"ipc of rank 2":         {fixed("ipc://"+dir+"/x", "", ""), 1},
		"no endpoint":           {fixed("nonsense", "", ""), 1},
		"no block size":         {SourceConfig{Endpoint: free, BufferSteps: 1}, 1},
		"no steps":              {SourceConfig{Endpoint: free, BlockSize: 1}, 1},
	} {
		_, err := NewWorker(c.cfg, c.ranks)
		require.ErrorIs(t, err, ErrConfig, name)
	}
	taken, err := zmq.ParseEndpoint(startSource(t, 1).Addr())
	require.NoError(t, err)
	taken.Port -= 2
	_, err = NewWorker(fixed(free, free, taken.String()), 1)
	require.ErrorContains(t, err, "query socket")
}
