//go:build interop

package kvrouter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/dynamotest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

const (
	path      = "wire.back-end.generate"
	blockSize = 16
)

func newRouter(t *testing.T, r *runtime.Runtime, workers int) *kvrouter.KvRouter {
	e, err := r.Endpoint(path)
	require.NoError(t, err)
	c := router.DefaultConfig()
	c.RouterReplicaSync = true
	k, err := kvrouter.New(e, blockSize, c, router.Options{})
	require.NoError(t, err)
	t.Cleanup(k.Close)
	require.NoError(t, k.WaitForWorkers(patience(t), workers))
	return k
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), dynamotest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(dynamotest.Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

func prompt(tokens []uint32, model string) *kvrouter.Request {
	fields, err := wire.FromJSON(nil, []byte(`{"model":"`+model+`","stop_conditions":{"max_tokens":3}}`))
	if err != nil {
		panic(err)
	}
	q := &kvrouter.Request{Fields: fields}
	q.Tokens = tokens
	return q
}

func random(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rand.Uint32()
	}
	return tokens
}

// drain reads a stream to its end.
func drain(s *kvrouter.Stream) (items int, err error) {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return items, nil
		} else if err != nil {
			return items, err
		}
		items++
	}
}

// overlap is how much of a prompt a worker is known to hold.
func overlap(t *testing.T, k *kvrouter.KvRouter, tokens []uint32, worker uint64) int {
	rows, err := k.Router().OverlapScores(&router.Prompt{Tokens: tokens})
	require.NoError(t, err)
	for _, row := range rows.Workers {
		if row.WorkerID == worker {
			return int(row.DeviceBlocks)
		}
	}
	return -1
}

func idle(t *testing.T, k *kvrouter.KvRouter) {
	await(t, "nothing is booked any more", func() bool {
		s, err := k.Router().Stats()
		require.NoError(t, err)
		return s.ActiveRequests == 0
	})
}

// Our router with Dynamo's workers.
func TestRouterOfDynamosWorkers(t *testing.T) { dynamotest.Each(t, routerOf) }

func routerOf(t *testing.T, release string, d *dynamotest.Deployment) {
	workers := map[uint64]*dynamotest.Process{}
	var started []*dynamotest.Process
	for range 2 {
		started = append(started, dynamotest.Start(t, release, d, "worker.py", path))
	}
	for _, w := range started {
		workers[w.Ready()] = w
	}
	ctx := patience(t)
	cut := d.Interpose(t, 2)
	k := newRouter(t, dynamotest.Join(t, d), 2)

	// Prompts that grow by a block: each finds what the one before left, and so the same worker.
	began := time.Now()
	var home uint64
	tokens := random(4 * blockSize)
	for i := range 100 {
		s, err := k.Generate(ctx, prompt(tokens, "ok"))
		require.NoError(t, err)
		c := s.Choice()
		if i == 0 {
			home = c.WorkerID
		} else {
			require.Equal(t, home, c.WorkerID)
			require.EqualValues(t, len(tokens)/blockSize-1, c.OverlapBlocks)
		}
		n, err := drain(s)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		timing := s.Timing()
		require.NotZero(t, timing.Prefill)
		require.NotZero(t, timing.Total)
		held := len(tokens) / blockSize
		await(t, "the worker's event arrives", func() bool { return overlap(t, k, tokens, home) == held })
		tokens = append(tokens, random(blockSize)...)
	}
	t.Logf("100 generates: %v", time.Since(began))
	idle(t, k)
	for _, h := range health(t, k) {
		require.Equal(t, "exact", string(h.State), "%+v", h)
	}

	// Events that are lost are asked for.
	for range 3 {
		cut.Close()
		lost := random(4 * blockSize)
		for n := 2; n <= 4; n++ {
			s, err := k.Generate(ctx, prompt(lost[:n*blockSize], "ok"))
			require.NoError(t, err)
			_, err = drain(s)
			require.NoError(t, err)
		}
		cut.Open()
		await(t, "what was lost is recovered", func() bool {
			best := 0
			for id := range workers {
				best = max(best, overlap(t, k, lost, id))
			}
			return best == 4
		})
	}

	breaks := uint64(0)
	for _, h := range health(t, k) {
		breaks += h.Counters["disconnects"]
	}
	require.GreaterOrEqual(t, breaks, uint64(3), "the connections broke")

	// Errors and ends of all kinds free what was booked.
	for model, want := range map[string]string{"err0": "boom before first item", "errmid": "boom after first item"} {
		s, err := k.Generate(ctx, prompt(random(64), model))
		require.NoError(t, err)
		_, err = drain(s)
		require.ErrorIs(t, err, plane.ErrWorker)
		require.ErrorContains(t, err, want)
	}
	for name, end := range map[string]func(*kvrouter.Stream){"stop": (*kvrouter.Stream).Stop, "close": (*kvrouter.Stream).Close} {
		s, err := k.Generate(ctx, prompt(random(64), "slow"))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		end(s)
		_, err = drain(s)
		require.ErrorIs(t, err, plane.ErrCancelled)
		var line struct{ Killed bool }
		workers[s.Choice().WorkerID].Await("killed", "", &line)
		require.Equal(t, name == "close", line.Killed)
	}
	cancelled, cancel := context.WithCancel(ctx)
	s, err := k.Generate(cancelled, prompt(random(64), "slow"))
	require.NoError(t, err)
	cancel()
	_, err = drain(s)
	require.ErrorIs(t, err, plane.ErrCancelled)
	idle(t, k)

	// A router that comes late recovers the tree, and both agree on loads.
	late := newRouter(t, dynamotest.Join(t, d), 2)
	tokens = tokens[:len(tokens)-blockSize]
	await(t, "the late router recovers", func() bool { return overlap(t, late, tokens, home) == len(tokens)/blockSize })
	await(t, "the routers hear each other", func() bool {
		a, err := k.Router().Stats()
		require.NoError(t, err)
		b, err := late.Router().Stats()
		require.NoError(t, err)
		return a.Replicas.Connected == 2 && b.Replicas.Connected == 2 && a.Replicas.Listeners == 2 && b.Replicas.Listeners == 2
	})
	var streams []*kvrouter.Stream
	for _, r := range []*kvrouter.KvRouter{k, late, k} {
		s, err := r.Generate(ctx, prompt(random(160), "slow"))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	agree := func() bool {
		x, err := k.Router().PotentialLoads(nil, &router.Prompt{})
		require.NoError(t, err)
		y, err := late.Router().PotentialLoads(nil, &router.Prompt{})
		require.NoError(t, err)
		return fmt.Sprint(x) == fmt.Sprint(y)
	}
	await(t, "both count three requests", func() bool {
		a, _ := k.Router().Stats()
		b, _ := late.Router().Stats()
		return a.ActiveRequests == 3 && b.ActiveRequests == 3 && agree()
	})
	for _, s := range streams {
		s.Close()
	}
	idle(t, k)
	idle(t, late)
	require.True(t, agree())

	// What a worker says of its load.
	direct(t, k, home, `{"cmd":"metrics"}`)
	await(t, "the worker's metrics arrive", func() bool {
		m := k.Metrics()
		return len(m) == 1 && m[0].Worker.ID == home && *m[0].DecodeBlocks == 7 && m[0].PrefillTokens == nil && *m[0].KVUsedBlocks == 9
	})

	// A worker that is killed ends its streams, and leaves within its lease. Meanwhile its requests go to the other one.
	s, err = k.Generate(ctx, prompt(tokens, "slow"))
	require.NoError(t, err)
	require.Equal(t, home, s.Choice().WorkerID)
	_, err = s.Recv()
	require.NoError(t, err)
	workers[home].Signal(syscall.SIGKILL)
	_, err = drain(s)
	require.ErrorIs(t, err, plane.ErrDisconnected)
	s, err = k.Generate(ctx, prompt(tokens, "ok"))
	require.NoError(t, err)
	require.NotEqual(t, home, s.Choice().WorkerID)
	_, err = drain(s)
	require.NoError(t, err)
	await(t, "the dead worker leaves", func() bool {
		rows, err := k.Router().Workers()
		require.NoError(t, err)
		return len(rows) == 1 && rows[0].WorkerID != home
	})
	idle(t, k)
}

func health(t *testing.T, k *kvrouter.KvRouter) []router.RankHealth {
	rows, err := k.Router().Health()
	require.NoError(t, err)
	return rows
}

func direct(t *testing.T, k *kvrouter.KvRouter, id uint64, body string) {
	b, err := wire.FromJSON(nil, []byte(body))
	require.NoError(t, err)
	s, err := k.Client().Direct(patience(t), id, &runtime.Request{ID: "direct", Body: b})
	require.NoError(t, err)
	for err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, io.EOF, err)
}

// ourWorker is a worker of ours: it stores what it is asked, as an engine does, and does by the model's name what those of Dynamo do in tests.
type ourWorker struct {
	id     uint64
	source *kvsource.Source
	names  *names
	calls  chan string // how calls of "slow" ended
}

// names are the blocks a worker holds, by all that is before them.
type names struct {
	mu   sync.Mutex
	held map[block.EngineHash]bool
}

func newOurWorker(t *testing.T, r *runtime.Runtime) *ourWorker {
	w := &ourWorker{id: r.ID(), names: &names{held: map[block.EngineHash]bool{}}, calls: make(chan string, 100)}
	e, err := r.Endpoint(path)
	require.NoError(t, err)
	w.source, err = kvsource.New(e, kvsource.Config{BlockSize: blockSize})
	require.NoError(t, err)
	s, err := e.Serve(w.handle, runtime.ServeOptions{})
	require.NoError(t, err)
	require.NoError(t, s.RegisterModel(card(t)))
	t.Cleanup(func() {
		s.Close(false)
		w.source.Close()
	})
	return w
}

// card is one that Dynamo's own worker made.
func card(t *testing.T) json.RawMessage {
	text, err := os.ReadFile("../../testdata/golden/dynamo-wire/file_tcp_zmq/store_before_client.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var m struct {
			Type string
			Card json.RawMessage `json:"card_json"`
		}
		if json.Unmarshal([]byte(line), &m) == nil && m.Type == "Model" {
			return m.Card
		}
	}
	require.FailNow(t, "no card")
	return nil
}

func (w *ourWorker) handle(c *runtime.Call) error {
	text, err := wire.ToJSON(nil, c.Body)
	if err != nil {
		return err
	}
	var q struct {
		Model  string
		Tokens []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(text, &q); err != nil {
		return err
	}
	send := func(format string, args ...any) error {
		b, err := wire.FromJSON(nil, fmt.Appendf(nil, format, args...))
		if err != nil {
			return err
		}
		return c.Send(b)
	}
	switch q.Model {
	case "err0":
		return fmt.Errorf("%w: boom before first item", plane.ErrInvalidArgument)
	case "slow":
		for i := range 200 {
			select {
			case <-c.Stopped().Done():
				w.calls <- map[bool]string{false: "stopped", true: "killed"}[c.Killed().Err() != nil]
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			if err := send(`{"token_ids":[%d]}`, 1000+i); err != nil && !errors.Is(err, plane.ErrCancelled) {
				return err
			}
		}
		return nil
	}
	for i := range 3 {
		if i == 2 {
			if err := w.store(q.Tokens); err != nil {
				return err
			}
			return send(`{"token_ids":[%d],"finish_reason":"length"}`, 1000+i)
		}
		if err := send(`{"token_ids":[%d]}`, 1000+i); err != nil {
			return err
		}
		if q.Model == "errmid" {
			return errors.New("boom after first item")
		}
	}
	return nil
}

func (w *ourWorker) store(tokens []uint32) error {
	w.names.mu.Lock()
	defer w.names.mu.Unlock()
	var parent *block.EngineHash
	var fresh []block.EngineHash
	at, name := 0, block.EngineHash(17)
	for i := range len(tokens) / blockSize {
		for _, token := range tokens[i*blockSize : (i+1)*blockSize] {
			name = name*1_000_003 + block.EngineHash(token) + 1
		}
		if w.names.held[name] && len(fresh) == 0 {
			held := name
			parent, at = &held, (i+1)*blockSize
			continue
		}
		w.names.held[name] = true
		fresh = append(fresh, name)
	}
	if len(fresh) == 0 {
		return nil
	}
	_, err := w.source.Publish(publish.Stored(parent, fresh, tokens[at:at+len(fresh)*blockSize], blockSize))
	return err
}

// TestWorkerProcess is a worker that the test above starts, and kills.
func TestWorkerProcess(t *testing.T) {
	if dir := os.Getenv("DGO_TEST_WORKER_IN"); dir != "" {
		newOurWorker(t, dynamotest.Join(t, dynamotest.Joined(dir)))
		time.Sleep(dynamotest.Patience)
	}
}

// Ranks hold caches of their own, in both directions; and a worker of Dynamo's may publish in the scope of another endpoint.
func TestRanksOfDynamosWorkers(t *testing.T) {
	for _, release := range dynamotest.Releases(t) {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			d := dynamotest.NewDeployment(t, "file tcp zmq")
			args := []string{path, "2"}
			if release == "1.6.1" {
				args = append(args, "wire.state.kv")
			}
			id := dynamotest.Start(t, release, d, "worker.py", args...).Ready()
			k := newRouter(t, dynamotest.Join(t, d), 1)
			held := map[uint32]bool{}
			for len(held) < 2 {
				tokens := random(4 * blockSize)
				s, err := k.Generate(patience(t), prompt(tokens, "ok"))
				require.NoError(t, err)
				require.Equal(t, id, s.Choice().WorkerID)
				home := s.Choice().DPRank
				_, err = drain(s)
				require.NoError(t, err)
				await(t, "its rank holds it, and no other", func() bool {
					rows, err := k.Router().OverlapScores(&router.Prompt{Tokens: tokens})
					require.NoError(t, err)
					for _, row := range rows.Workers {
						if row.DPRank != home {
							require.Zero(t, row.DeviceBlocks)
						} else if row.DeviceBlocks != 4 {
							return false
						}
					}
					return len(rows.Workers) == 2
				})
				held[home] = true
			}
		})
	}
}

func TestDynamosRouterOfOurRanks(t *testing.T) {
	for _, release := range dynamotest.Releases(t) {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			d := dynamotest.NewDeployment(t, "file tcp zmq")
			e, err := dynamotest.Join(t, d).Endpoint(path)
			require.NoError(t, err)
			s, err := e.Serve(func(*runtime.Call) error { return nil }, runtime.ServeOptions{})
			require.NoError(t, err)
			var sources []*kvsource.Source
			for rank := range uint32(2) {
				source, err := kvsource.New(e, kvsource.Config{DPRank: rank, BlockSize: blockSize})
				require.NoError(t, err)
				t.Cleanup(func() { source.Close() })
				sources = append(sources, source)
			}
			two := bytes.Replace(card(t), []byte(`"data_parallel_size":1`), []byte(`"data_parallel_size":2`), 1)
			require.NotEqual(t, card(t), json.RawMessage(two))
			require.NoError(t, s.RegisterModel(two))
			p := dynamotest.Start(t, release, d, "router.py", path, fmt.Sprint(blockSize))
			p.Ready()
			for rank, source := range sources {
				tokens := random(3 * blockSize)
				names := []block.EngineHash{block.EngineHash(rand.Uint64()), block.EngineHash(rand.Uint64()), block.EngineHash(rand.Uint64())}
				_, err := source.Publish(publish.Stored(nil, names, tokens, blockSize))
				require.NoError(t, err)
				await(t, "the rank is the best", func() bool {
					// The first event may have come before the router was connected: it sees what it missed when another one comes.
					_, err := source.Publish(publish.Stored(nil, []block.EngineHash{block.EngineHash(rand.Uint64())}, random(blockSize), blockSize))
					require.NoError(t, err)
					var b struct{ Worker, Rank, Overlap uint64 }
					p.Do(map[string]any{"do": "best", "tokens": tokens}, &b)
					return b.Overlap == 3 && b.Rank == uint64(rank) && b.Worker == e.Runtime().ID()
				})
			}
		})
	}
}

// Dynamo's router with our workers.
func TestDynamosRouterOfOurWorkers(t *testing.T) { dynamotest.Each(t, dynamosRouter) }

type generated struct {
	Items []struct {
		TokenIDs []uint32 `json:"token_ids"`
		Finish   any      `json:"finish_reason"`
		Routing  *struct {
			WorkerID *struct {
				Decode uint64 `json:"decode_worker_id"`
			} `json:"worker_id"`
			Timing *struct {
				HitRate float64 `json:"kv_hit_rate"`
			} `json:"timing"`
		} `json:"routing_data"`
	}
	Error *string
}

func dynamosRouter(t *testing.T, release string, d *dynamotest.Deployment) {
	first := newOurWorker(t, dynamotest.Join(t, d))
	dying := dynamotest.Join(t, d)
	second := newOurWorker(t, dying)
	workers := map[uint64]*ourWorker{first.id: first, second.id: second}
	cut := d.Interpose(t, 2)
	p := dynamotest.Start(t, release, d, "router.py", path, fmt.Sprint(blockSize))
	p.Ready()
	loads := func() map[uint64]float64 {
		var rows struct {
			Rows []struct {
				WorkerID uint64  `json:"worker_id"`
				Prefill  float64 `json:"potential_prefill_tokens"`
			}
		}
		p.Do(map[string]any{"do": "loads", "tokens": []uint32{}}, &rows)
		by := map[uint64]float64{}
		for _, row := range rows.Rows {
			by[row.WorkerID] = row.Prefill
		}
		return by
	}
	await(t, "Dynamo's router sees both", func() bool { return len(loads()) == 2 })

	generate := func(tokens []uint32, model string, more ...any) (g generated) {
		command := map[string]any{"do": "generate", "tokens": tokens, "model": model}
		for i := 0; i < len(more); i += 2 {
			command[more[i].(string)] = more[i+1]
		}
		p.Do(command, &g)
		return g
	}
	best := func(tokens []uint32) (b struct {
		Worker  uint64
		Overlap int
	}) {
		p.Do(map[string]any{"do": "best", "tokens": tokens}, &b)
		return b
	}

	// What Dynamo's router knows at first it has asked for, when its subscription may not be there yet: then the next event is lost, and noticed only by
	// what follows. One that it hears of with none after it came by the subscription.
	hears := func(w *ourWorker) bool {
		tokens := random(blockSize)
		require.NoError(t, w.store(tokens))
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
			if b := best(tokens); b.Worker == w.id && b.Overlap == 1 {
				return true
			}
		}
		return false
	}

	// Prompts that grow by a block find what the one before left.
	var home uint64
	tokens := random(4 * blockSize)
	began := time.Now()
	for i := range 100 {
		g := generate(tokens, "ok")
		require.Nil(t, g.Error)
		require.Len(t, g.Items, 3)
		require.Equal(t, []uint32{1002}, g.Items[2].TokenIDs)
		require.Equal(t, "length", g.Items[2].Finish)
		at := g.Items[0].Routing.WorkerID.Decode
		if i == 0 {
			home = at
		} else {
			blocks := float64(len(tokens) / blockSize)
			require.Equal(t, home, at)
			require.InDelta(t, (blocks-1)/blocks, g.Items[2].Routing.Timing.HitRate, 1e-9)
		}
		held := len(tokens) / blockSize
		await(t, "our worker's event arrives", func() bool {
			if i == 0 { // their subscription may be late, and they notice only by what follows
				require.NoError(t, workers[home].store(random(blockSize)))
			}
			b := best(tokens)
			return b.Worker == home && b.Overlap == held
		})
		if i == 0 {
			await(t, "our worker is heard", func() bool { return hears(workers[home]) })
		}
		tokens = append(tokens, random(blockSize)...)
	}
	t.Logf("100 generates: %v", time.Since(began))
	tokens = tokens[:len(tokens)-blockSize]

	// Events that are lost are asked for at our local indexer.
	for range 3 {
		cut.Close()
		lost := random(4 * blockSize)
		at := generate(lost, "ok").Items[0].Routing.WorkerID.Decode
		cut.Open()
		await(t, "what was lost is recovered", func() bool {
			require.NoError(t, workers[at].store(random(blockSize))) // they hear of a gap by what follows
			b := best(lost)
			return b.Worker == at && b.Overlap == 4
		})
	}

	// Errors before and in mid-stream, a stream that is stopped, one that is dropped.
	g := generate(random(64), "err0")
	require.NotNil(t, g.Error)
	require.Contains(t, *g.Error, "boom")
	require.Empty(t, g.Items)
	g = generate(random(64), "errmid")
	require.NotNil(t, g.Error)
	require.Contains(t, *g.Error, "boom")
	require.Len(t, g.Items, 1)
	p.Do(map[string]any{"do": "direct", "worker": home, "request": map[string]any{"model": "slow", "token_ids": []int{}}, "stop_after": 3}, nil)
	require.Equal(t, "stopped", <-workers[home].calls)
	g = generate(tokens, "slow", "stop_after", 3)
	require.Len(t, g.Items, 3)
	require.Equal(t, "killed", <-workers[home].calls)

	// A late router recovers the tree from our local indexer, and the two agree on loads, with one of ours too.
	late := dynamotest.Start(t, release, d, "router.py", path, fmt.Sprint(blockSize))
	late.Ready()
	var b struct {
		Worker  uint64
		Overlap int
	}
	await(t, "the late router recovers", func() bool {
		return late.Try(map[string]any{"do": "best", "tokens": tokens}, &b) == "" && b.Worker == home && b.Overlap == len(tokens)/blockSize
	})
	k := newRouter(t, dynamotest.Join(t, d), 2)
	await(t, "ours recovers, too", func() bool { return overlap(t, k, tokens, home) == len(tokens)/blockSize })
	await(t, "ours is heard by both", func() bool {
		s, err := k.Router().Stats()
		require.NoError(t, err)
		return s.Replicas.Connected == 3 && s.Replicas.Listeners == 3
	})
	p.Do(map[string]any{"do": "best", "tokens": random(160), "request_id": "theirs"}, nil)
	q := &router.Request{Prompt: router.Prompt{Tokens: random(320)}, ID: "ours", Book: true}
	_, err := k.Router().BestWorker(q)
	require.NoError(t, err)
	agree := func(total float64) func() bool {
		return func() bool {
			rows, err := k.Router().PotentialLoads(nil, &router.Prompt{})
			require.NoError(t, err)
			theirs, sum := loads(), 0.0
			for _, row := range rows {
				sum += float64(row.PotentialPrefillTokens)
				if theirs[row.WorkerID] != float64(row.PotentialPrefillTokens) {
					return false
				}
			}
			return sum == total
		}
	}
	await(t, "the routers agree on loads", agree(480))
	require.NoError(t, k.Router().Free("ours"))
	p.Do(map[string]any{"do": "prefilled", "request_id": "theirs"}, nil)
	p.Do(map[string]any{"do": "free", "request_id": "theirs"}, nil)
	await(t, "and on their ends", agree(0))

	// A worker that goes away leaves the candidates; one that is killed, within its lease.
	require.NoError(t, dying.Close())
	await(t, "it leaves", func() bool { return len(loads()) == 1 })
	killed := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$")
	killed.Env = append(append(os.Environ(), d.Env()...), "DGO_TEST_WORKER_IN="+d.Dir)
	require.NoError(t, killed.Start())
	await(t, "a worker process joins", func() bool { return len(loads()) == 2 })
	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	await(t, "it leaves within its lease", func() bool { return len(loads()) == 1 })
	g = generate(tokens, "ok")
	require.Nil(t, g.Error)
	require.Equal(t, first.id, g.Items[0].Routing.WorkerID.Decode)
}
