package feed

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// TestMain checks that no test left a goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = time.Minute // for what must happen; reached only by a failure

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 2*time.Millisecond, what)
}

// view is a sink: the names of the blocks held, and how often each event was applied.
type view struct {
	mu      sync.Mutex
	held    map[block.EngineHash]int
	applied []uint64 // ids of all events since the last reset
	resets  int
	fault   func(*event.Event) error
}

func (v *view) Apply(_ worker.Rank, ev *event.Event) (done index.Applied, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fault != nil {
		if err := v.fault(ev); err != nil {
			return index.Applied{Refused: len(ev.Blocks)}, err
		}
	}
	if v.held == nil {
		v.held = map[block.EngineHash]int{}
	}
	v.applied = append(v.applied, ev.ID)
	switch ev.Kind {
	case event.Stored:
		for _, b := range ev.Blocks {
			v.held[b.Engine]++
		}
	case event.Removed:
		for _, h := range ev.Removed {
			if v.held[h]--; v.held[h] <= 0 {
				delete(v.held, h)
			}
		}
	case event.Cleared:
		clear(v.held)
	}
	return done, nil
}

func (v *view) Reset(worker.Rank) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held, v.applied = nil, nil
	v.resets++
}

func (v *view) ids() []uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.applied)
}

func (v *view) names() []uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := []uint64{}
	for h := range v.held {
		out = append(out, uint64(h))
	}
	slices.Sort(out)
	return out
}

func upTo(n uint64) []uint64 {
	out := []uint64{}
	for i := range n {
		out = append(out, i)
	}
	return out
}

// engine is a publisher with a replay socket, and faults to order.
type engine struct {
	t      *testing.T
	pub    *zmq.Pub
	router *zmq.RouterSocket
	topic  string

	mu      sync.Mutex
	history [][]byte // from 0
	oldest  uint64   // replays begin here
	asked   []uint64
	newForm bool
	answer  func(start uint64, reply func(...[]byte) error) bool // true: answered
}

func newEngine(t *testing.T, live, replay string) *engine {
	t.Helper()
	e := &engine{t: t, topic: "kv@pod"}
	var err error
	e.pub, err = zmq.ListenPub(live, zmq.Options{})
	require.NoError(t, err)
	e.router, err = zmq.ListenRouter(replay, zmq.Options{}, e.serve)
	require.NoError(t, err)
	t.Cleanup(e.close)
	return e
}

// answers takes over the replay socket.
func (e *engine) answers(f func(start uint64, reply func(...[]byte) error) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = f
}

func (e *engine) close() { e.pub.Close(); e.router.Close() }

// fixed is an endpoint for an engine that comes back to it.
func fixed(t *testing.T) string { return "tcp://" + servertest.FreeAddress(t) }

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func (e *engine) serve(req [][]byte, reply func(...[]byte) error) {
	start := binary.BigEndian.Uint64(req[1])
	e.mu.Lock()
	e.asked = append(e.asked, start)
	history, answer, oldest := e.history, e.answer, e.oldest
	e.mu.Unlock()
	if answer != nil && answer(start, reply) {
		return
	}
	e.replay(history, max(start, oldest), reply)
}

func (e *engine) replay(history [][]byte, start uint64, reply func(...[]byte) error) {
	for seq := start; seq < uint64(len(history)); seq++ {
		e.send(seq, history[seq], reply)
	}
	e.send(1<<64-1, nil, reply)
}

func (e *engine) send(seq uint64, payload []byte, reply func(...[]byte) error) {
	e.mu.Lock()
	newForm := e.newForm
	e.mu.Unlock()
	if !newForm {
		reply(nil, number(seq), payload)
	} else if payload == nil {
		reply(nil, nil, number(seq), nil)
	} else {
		reply(nil, []byte(e.topic), number(seq), payload)
	}
}

func (e *engine) requests() []uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked)
}

// add puts a payload into the history; publish sends it live too.
func (e *engine) add(payload []byte) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history = append(e.history, payload)
	return uint64(len(e.history)) - 1
}

func (e *engine) publish(payload []byte) {
	seq := e.add(payload)
	require.NoError(e.t, e.pub.Publish([]byte(e.topic), number(seq), payload))
}

// store is the payload of a batch that stores one root block with a given name.
func store(t testing.TB, name uint64) []byte {
	return encode(t, wire.Event{Tag: "BlockStored", Kind: event.Stored, BlockHashes: []block.EngineHash{block.EngineHash(name)},
		TokenIDs: []uint32{uint32(name), 1, 2, 3}, BlockSize: 4, Medium: "GPU"})
}

func remove(t testing.TB, name uint64) []byte {
	return encode(t, wire.Event{Tag: "BlockRemoved", Kind: event.Removed, BlockHashes: []block.EngineHash{block.EngineHash(name)}, Medium: "GPU"})
}

func encode(t testing.TB, events ...wire.Event) []byte {
	p, err := wire.EncodeBatch(&wire.Batch{TS: 1, HasRank: true, Events: events})
	require.NoError(t, err)
	return p
}

// follow starts a feed whose waits are short enough for a test and long enough for a busy machine.
func follow(t *testing.T, e *engine, v *view, tune func(*Config)) *Feed {
	t.Helper()
	cfg := Config{
		Rank: worker.Rank{ID: 7}, Endpoint: e.pub.Addr(), Topic: "kv@", BlockSize: 4, Sink: v,
		Probe: time.Hour, ReplayTimeout: 2 * time.Second, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
		ZMQ: zmq.Options{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond},
	}
	if e.router != nil {
		cfg.Replay = e.router.Addr()
	}
	if tune != nil {
		tune(&cfg)
	}
	f := Start(cfg)
	t.Cleanup(f.Close)
	return f
}

func (f *Feed) is(state State) func() bool { return func() bool { return f.Status().State == state } }

func subscribed(e *engine) func() bool { return func() bool { return e.pub.Stats().Subscribers == 1 } }

// https://github.com/ai-dynamo/dynamo/pull/7463 https://github.com/llm-d/llm-d-router/issues/1737
func TestGapBeforeTheFirstEvent(t *testing.T) {
	for _, newForm := range []bool{false, true} {
		e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		e.mu.Lock()
		e.newForm = newForm
		e.mu.Unlock()
		for i := range uint64(7) {
			e.add(store(t, i))
		}
		var v view
		f := follow(t, e, &v, nil)
		eventually(t, "joined", f.is(Exact))
		eventually(t, "subscribed", subscribed(e))
		e.publish(store(t, 7))
		eventually(t, "0..7", func() bool { return slices.Equal(v.ids(), upTo(8)) })
		require.Equal(t, []uint64{0}, e.requests())
		require.Equal(t, Exact, f.Status().State)
		f.Close()
	}
}

func TestFirstEventIsZero(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	e.publish(store(t, 0))
	eventually(t, "applied", func() bool { return len(v.ids()) == 1 })
	require.Equal(t, []uint64{0}, e.requests(), "none beyond the one made at the join")
}

func TestWithoutReplayEndpoint(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	noReplay := func(c *Config) { c.Replay = "" }
	e.add(store(t, 0))
	var v view
	f := follow(t, e, &v, noReplay)
	eventually(t, "subscribed", subscribed(e))
	e.publish(store(t, 1))
	eventually(t, "live events apply", func() bool { return slices.Equal(v.ids(), []uint64{1}) })
	require.Equal(t, Partial, f.Status().State)
	require.Contains(t, f.Status().Reason, reasonNoReplay)
	e.add(store(t, 2))
	e.publish(store(t, 3))
	eventually(t, "a gap drops what was before", func() bool { return slices.Equal(v.ids(), []uint64{3}) })
	require.EqualValues(t, 1, f.Status().Counters["gaps"])
	require.Equal(t, Partial, f.Status().State)

	whole := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var w view
	g := follow(t, whole, &w, noReplay)
	eventually(t, "subscribed", subscribed(whole))
	whole.publish(store(t, 0))
	eventually(t, "seen from the first batch", g.is(Exact))
}

func TestLiveLossIsRecovered(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "ipc://"+t.TempDir()+"/replay")
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	for i := range uint64(500) {
		if i%7 == 3 {
			e.add(store(t, i))
		} else if i%5 == 4 {
			e.publish(remove(t, i-2))
		} else {
			e.publish(store(t, i))
		}
	}
	eventually(t, "all applied once, in order", func() bool { return slices.Equal(v.ids(), upTo(500)) })
	eventually(t, "exact", f.is(Exact))
	require.Zero(t, v.resets)
}

func TestLostTailIsFoundByProbe(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var v view
	f := follow(t, e, &v, func(c *Config) { c.Probe = 30 * time.Millisecond })
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	e.publish(store(t, 0))
	e.add(store(t, 1))
	e.add(store(t, 2))
	eventually(t, "tail", func() bool { return slices.Equal(v.ids(), upTo(3)) })
	eventually(t, "exact", f.is(Exact))
	eventually(t, "asks for last+1", func() bool { return slices.Contains(e.requests(), 3) })
}

// https://github.com/sgl-project/sglang/pull/38945 https://github.com/llm-d/llm-d-router/pull/2410
func TestReplayThatStopsHalfWay(t *testing.T) {
	sockets := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(open)
	}
	before := sockets()
	defer func() { eventually(t, "no socket is left", func() bool { return sockets() <= before }) }()
	for round := range 50 {
		e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		for i := range uint64(100) {
			e.add(store(t, i))
		}
		e.answers(func(start uint64, reply func(...[]byte) error) bool {
			for i := range uint64(2) {
				e.send(i, store(t, i), reply)
			}
			return true
		})
		var v view
		// The first round waits long enough for every request to be seen.
		wait := 10 * time.Millisecond
		if round == 0 {
			wait = time.Second
		}
		f := follow(t, e, &v, func(c *Config) { c.ReplayTimeout, c.Retries = wait, 3 })
		if round == 0 {
			eventually(t, "the contiguous part is kept", func() bool { return len(v.ids()) == 2 })
			require.Equal(t, Recovering, f.Status().State)
		}
		eventually(t, "retries are spent", f.is(Partial))
		require.Contains(t, f.Status().Reason, reasonNoAnswer)
		require.Empty(t, v.ids(), "what was learnt before the hole is dropped")
		if round == 0 {
			require.Equal(t, []uint64{0, 2, 2, 2}, e.requests(), "asked for again from the next missing")
		}
		eventually(t, "subscribed", subscribed(e))
		e.publish(store(t, 100))
		eventually(t, "live events are served", func() bool { return slices.Contains(v.ids(), 100) })
		f.Close()
		e.close()
	}
}

func TestHoleThatNeverFills(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	for i := range uint64(10) {
		e.add(store(t, i))
	}
	e.answers(func(start uint64, reply func(...[]byte) error) bool {
		for seq := start; seq < 10; seq++ {
			if seq != 4 {
				e.send(seq, store(t, seq), reply)
			}
		}
		e.send(1<<64-1, nil, reply)
		return true
	})
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "given up", f.is(Partial))
	require.Contains(t, f.Status().Reason, reasonHole+": batch 4")
	require.Equal(t, []uint64{5, 6, 7, 8, 9}, v.ids())
	require.Len(t, e.requests(), 1+1+1, "the first, one after progress, and a retry: it is behind the hole that the replay begins")
}

func TestHistoryShorterThanAsked(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	for i := range uint64(50) {
		e.add(store(t, i))
	}
	e.mu.Lock()
	e.oldest = 30
	e.mu.Unlock()
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "partial", f.is(Partial))
	require.Equal(t, "history_gone: the engine's oldest batch is 30", f.Status().Reason)
	require.Equal(t, upTo(50)[30:], v.ids())
}

// https://github.com/go-zeromq/zmq4/issues/157 https://github.com/zeromq/zmq.rs/issues/162
func TestEngineRestartsOnTheSameAddress(t *testing.T) {
	e := newEngine(t, fixed(t), fixed(t))
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	for i := range uint64(5) {
		e.publish(store(t, i))
	}
	eventually(t, "five", func() bool { return len(v.ids()) == 5 })
	e.close()
	eventually(t, "disconnected", f.is(Disconnected))
	require.Len(t, v.names(), 5, "the old view answers")
	again := newEngine(t, e.pub.Addr(), e.router.Addr())
	for i := range uint64(8) { // overtakes what was applied before anybody is connected
		again.add(store(t, 100+i))
	}
	eventually(t, "only the new blocks", func() bool { return slices.Equal(v.names(), []uint64{100, 101, 102, 103, 104, 105, 106, 107}) })
	eventually(t, "exact", f.is(Exact))
	eventually(t, "subscribed", subscribed(again))
	again.publish(store(t, 108))
	eventually(t, "events flow", func() bool { return len(v.names()) == 9 })
	require.EqualValues(t, 1, f.Status().Counters["restarts"])
}

// The engine comes back after half a second, after five, and (DGO_SOAK_OUTAGE=60s) after as long as is said: events arrive then, those of the topic
// only.
func TestEngineComesBackAfterAWhile(t *testing.T) {
	outages := []time.Duration{500 * time.Millisecond, 5 * time.Second}
	if text := os.Getenv("DGO_SOAK_OUTAGE"); text != "" {
		long, err := time.ParseDuration(text)
		require.NoError(t, err)
		outages = append(outages, long)
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, outage := range outages {
		addr := fixed(t)
		all.Go(func() {
			pub, err := zmq.ListenPub(addr, zmq.Options{})
			if !assert.NoError(t, err) {
				return
			}
			var v view
			f := Start(Config{Rank: worker.Rank{ID: 1}, Endpoint: addr, Topic: "kv@", BlockSize: 4, Sink: &v})
			defer f.Close()
			within := func(what string, ok func() bool) bool {
				return assert.Eventually(t, ok, patience, time.Millisecond, "%s, %v", what, outage)
			}
			say := func(topic string, seq uint64) {
				assert.NoError(t, pub.Publish([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), store(t, seq)))
			}
			subscribed := func() bool { return pub.Stats().Subscribers == 1 }
			if !within("subscribed", subscribed) {
				return
			}
			say("kv@a", 0)
			within("the first event", func() bool { return slices.Equal(v.ids(), []uint64{0}) })
			assert.NoError(t, pub.Close())
			time.Sleep(outage) // what the test is about
			if pub, err = zmq.ListenPub(addr, zmq.Options{}); !assert.NoError(t, err) {
				return
			}
			defer pub.Close()
			if within("subscribed again", subscribed) {
				say("other", 6)
				say("kv@b", 7)
				within("only what is new", func() bool { return slices.Equal(v.ids(), []uint64{7}) })
			}
		})
	}
}

func TestReconnectToTheSameEngine(t *testing.T) {
	e := newEngine(t, fixed(t), fixed(t))
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	for i := range uint64(200) {
		e.publish(store(t, i))
	}
	eventually(t, "all", func() bool { return len(v.ids()) == 200 })
	addr := e.pub.Addr()
	e.pub.Close()
	eventually(t, "disconnected", f.is(Disconnected))
	e.add(store(t, 200))
	e.mu.Lock()
	e.oldest = 150 // a full restore is no longer possible, and not needed
	e.mu.Unlock()
	var err error
	e.pub, err = zmq.ListenPub(addr, zmq.Options{})
	require.NoError(t, err)
	eventually(t, "exact", f.is(Exact))
	require.Equal(t, upTo(201), v.ids(), "what was missed is applied, nothing twice")
	require.Zero(t, v.resets)
}

// https://github.com/ai-dynamo/dynamo/pull/7863 https://github.com/ai-dynamo/dynamo/pull/12635
func TestWatermarkDoesNotSurviveRegistration(t *testing.T) {
	e := newEngine(t, fixed(t), fixed(t))
	for i := range uint64(100) {
		e.add(store(t, i))
	}
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "hundred", func() bool { return len(v.ids()) == 100 })
	f.Close()
	e.close()
	again := newEngine(t, e.pub.Addr(), e.router.Addr())
	var w view
	g := follow(t, again, &w, nil)
	eventually(t, "joined", g.is(Exact))
	eventually(t, "subscribed", subscribed(again))
	again.publish(store(t, 0))
	eventually(t, "accepted", func() bool { return slices.Equal(w.ids(), []uint64{0}) })
	require.Equal(t, []uint64{0}, again.requests())
}

// https://github.com/vllm-project/vllm/issues/45174 https://github.com/vllm-project/vllm/pull/45177
// https://github.com/llm-d/llm-d-kv-cache/pull/492 https://github.com/ROCm/ATOM/pull/1316
func TestFrameShapes(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	one := store(t, 1)
	e.answers(func(start uint64, reply func(...[]byte) error) bool {
		reply(nil, number(0), store(t, 0))
		reply(nil, []byte("kv"), number(1), one)
		reply(nil, []byte("kv"), []byte("abc"), one)
		reply([]byte("kv"))
		reply(nil)
		reply(nil, []byte("kv"), number(1<<64-1), nil)
		reply(nil, number(2), store(t, 2)) // after the marker: not part of the replay
		return true
	})
	var v view
	f := follow(t, e, &v, func(c *Config) { c.Topic = "" })
	eventually(t, "joined", f.is(Exact))
	require.Equal(t, upTo(2), v.ids())
	require.EqualValues(t, 3, f.Status().Counters["malformed_messages"])
	eventually(t, "subscribed", subscribed(e))
	e.pub.Publish(number(2), store(t, 2))
	e.pub.Publish([]byte("kv"), number(3), store(t, 3))
	e.pub.Publish([]byte("kv"), []byte("abc"), one)
	e.pub.Publish([]byte("kv"))
	e.pub.Publish(nil)
	e.pub.Publish([]byte("kv"), number(1<<64-1), nil)
	e.pub.Publish([]byte("kv"), number(4), store(t, 4))
	eventually(t, "the next good message", func() bool { return slices.Equal(v.ids(), upTo(5)) })
	require.EqualValues(t, 7, f.Status().Counters["malformed_messages"])
	require.EqualValues(t, 4, f.Status().LastSeq)
	require.Equal(t, Exact, f.Status().State)
}

// https://github.com/vllm-project/aibrix/pull/2385 https://github.com/llm-d/llm-d-kv-cache/pull/593
// https://github.com/ai-dynamo/dynamo/pull/1279 https://github.com/lightseekorg/tokenspeed/pull/166
func TestClearedAndUnknownRank(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	cleared := wire.Event{Tag: "AllBlocksCleared", Kind: event.Cleared}
	e.publish(store(t, 0))
	e.publish(encode(t, cleared))
	e.publish(store(t, 2))
	eventually(t, "cleared", func() bool { return slices.Equal(v.names(), []uint64{2}) })
	v.mu.Lock()
	v.fault = func(*event.Event) error { return ErrUnknownRank }
	v.mu.Unlock()
	e.publish(encode(t, cleared))
	eventually(t, "counted", func() bool { return f.Status().Counters["unknown_rank"] == 1 })
	require.Equal(t, []uint64{2}, v.names())
	// Another rank's clear does not touch this one.
	v.mu.Lock()
	v.fault = nil
	v.mu.Unlock()
	foreign, err := wire.EncodeBatch(&wire.Batch{TS: 1, HasRank: true, DPRank: 1, Events: []wire.Event{cleared}})
	require.NoError(t, err)
	e.publish(foreign)
	e.publish(store(t, 5))
	eventually(t, "next", func() bool { return slices.Equal(v.names(), []uint64{2, 5}) })
	require.EqualValues(t, 1, f.Status().Counters["other_rank"])
	require.Equal(t, Exact, f.Status().State)
}

func TestUndecodable(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	e.publish(store(t, 0))
	// [1.0, [["BlockStored", "bad"], ["SomethingNew"], ["BlockStored", [1], nil, [1,2,3,4], 4]]]
	e.publish([]byte("\x92\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x93\x92\xabBlockStored\xa3bad\x91\xacSomethingNew" +
		"\x95\xabBlockStored\x91\x01\xc0\x94\x01\x02\x03\x04\x04"))
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "a stored event is lost", f.is(Partial))
	require.Contains(t, f.Status().Reason, reasonStore)
	require.Equal(t, []uint64{0, 1}, v.names(), "neighbours are applied, nothing is dropped")
	require.EqualValues(t, 1, f.Status().Counters["unknown_tag"])
	eventually(t, "subscribed", subscribed(e))
	e.publish([]byte("\x92\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x91\x92\xacBlockRemoved\xa3bad"))
	e.publish(store(t, 3))
	eventually(t, "a removal is lost", func() bool { return slices.Equal(v.names(), []uint64{3}) })
	require.Contains(t, f.Status().Reason, reasonUndecodable+": removal or batch 2")
	e.publish([]byte("\xc1garbage"))
	e.publish(store(t, 5))
	eventually(t, "a batch is lost", func() bool { return slices.Equal(v.names(), []uint64{5}) })
	require.EqualValues(t, 1, f.Status().Counters["undecodable_batches"])
	require.Equal(t, Partial, f.Status().State)
}

func TestPanicInTheSink(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var v view
	f := follow(t, e, &v, nil)
	eventually(t, "joined", f.is(Exact))
	eventually(t, "subscribed", subscribed(e))
	var once sync.Once
	v.mu.Lock()
	v.fault = func(ev *event.Event) error {
		if ev.ID == 2 {
			once.Do(func() { panic("fault in the sink") })
		}
		return nil
	}
	v.mu.Unlock()
	for i := range uint64(5) {
		e.publish(store(t, i))
	}
	eventually(t, "resynchronised", func() bool { return slices.Equal(v.ids(), upTo(5)) })
	eventually(t, "exact", f.is(Exact))
	require.EqualValues(t, 1, f.Status().Counters["panics"])
}

func TestBadEndpointShowsInStatus(t *testing.T) {
	var v view
	f := Start(Config{Endpoint: "inproc://x", Sink: &v, BlockSize: 4})
	eventually(t, "reason", func() bool { return len(f.Status().Reason) > 20 })
	require.Contains(t, f.Status().Reason, "inproc is not reachable")
	require.Equal(t, Disconnected, f.Status().State)
	f.Close()
	f.Close()
}
