package router_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// The engines of the bound test: 64, in a process of their own so that the router's memory can be told from theirs. Each
// stores prompts of 32 blocks, whose first 8 other engines have too, and removes the last 12 blocks of every fifth.
const (
	boundEngines = 64
	boundPrompt  = 32
	boundShared  = 8
	boundGroups  = 50
	boundRemoved = 12
	boundBlock   = 4 // tokens
)

// boundTokens gives prompt i of an engine.
func boundTokens(engine, i int) []uint32 {
	out := make([]uint32, boundPrompt*boundBlock)
	for at := range out {
		if at < boundShared*boundBlock {
			out[at] = uint32(i%boundGroups*1000 + at)
		} else {
			out[at] = uint32(1<<31 | engine<<24 | (i*boundPrompt+at/boundBlock)&(1<<24-1))
		}
	}
	return out
}

// boundDepth is how many leading blocks of prompt i its engine holds.
func boundDepth(i int) uint32 {
	if i%5 == 0 {
		return boundPrompt - boundRemoved
	}
	return boundPrompt
}

func boundEvents(engine, i int) []publish.Event {
	names := make([]block.EngineHash, boundPrompt)
	for at := range names {
		names[at] = block.EngineHash(engine<<48 | (i+boundGroups)<<8 | at)
		if at < boundShared {
			names[at] = block.EngineHash(engine<<48 | i%boundGroups<<8 | at)
		}
	}
	events := []publish.Event{publish.Stored(nil, names, boundTokens(engine, i), boundBlock)}
	if i%5 == 0 {
		events = append(events, publish.Removed(names[boundPrompt-boundRemoved:]))
	}
	return events
}

// TestEnginesInAnotherProcess is that process: it prints its endpoints, and publishes as many prompts as each line says.
func TestEnginesInAnotherProcess(t *testing.T) {
	if os.Getenv("DGO_TEST_ENGINES") == "" {
		return // TestMemoryStaysWithinItsBound starts it
	}
	var engines []*publish.Publisher
	var addresses [][2]string
	for rank := range uint32(boundEngines) {
		p, err := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Rank: 0, BufferSteps: 2000})
		require.NoError(t, err, rank)
		engines = append(engines, p)
		addresses = append(addresses, [2]string{p.Addr(), p.ReplayAddr()})
	}
	text, err := json.Marshal(addresses)
	require.NoError(t, err)
	fmt.Printf("\n%s\n", text)
	published := 0
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		upTo, err := strconv.Atoi(lines.Text())
		require.NoError(t, err)
		for ; published < upTo; published++ {
			for engine, p := range engines {
				_, err := p.Publish(boundEvents(engine, published)...)
				require.NoError(t, err)
			}
		}
		fmt.Println(published)
	}
}

// resident is the memory of this process.
func resident(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int64
	_, err = fmt.Sscan(string(text), &size, &pages)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

// TestMemoryStaysWithinItsBound fills a router from 64 feeds, with about twice the blocks it has room for: the memory
// of the process grows by the bound, no match is deeper than what the engine holds, and the ranks that lost blocks say so.
// DGO_SOAK_BOUND_MIB makes it longer.
func TestMemoryStaysWithinItsBound(t *testing.T) {
	if raceEnabled {
		return // the race detector's own memory is not bounded; checked by the run without it
	}
	mib := 64
	if text := os.Getenv("DGO_SOAK_BOUND_MIB"); text != "" {
		var err error
		mib, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	config := router.DefaultConfig()
	config.MaxBytes = int64(mib) << 20
	r, err := router.New(boundBlock, config, router.Options{})
	require.NoError(t, err)
	defer r.Close()
	k := &kit{t: t, size: boundBlock, Router: r}

	program, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(program, "-test.run=^TestEnginesInAnotherProcess$")
	child.Env, child.Stderr = append(os.Environ(), "DGO_TEST_ENGINES=1"), os.Stderr
	in, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	defer func() {
		_ = in.Close()
		require.NoError(t, child.Wait())
	}()
	out := bufio.NewScanner(stdout)
	out.Buffer(nil, 1<<20)
	var addresses [][2]string
	for len(addresses) == 0 && out.Scan() {
		_ = json.Unmarshal(out.Bytes(), &addresses)
	}
	require.Len(t, addresses, boundEngines)
	for engine, a := range addresses {
		require.NoError(t, r.AddWorker(router.Worker{ID: uint64(engine), KVEvents: router.Endpoints{Base: a[0]}, Replay: router.Endpoints{Base: a[1]}}))
	}
	// publish lets every engine have published so many prompts, and waits until all of them were heard.
	most, base, published := int64(0), int64(0), 0
	publish := func(upTo int) {
		_, err := fmt.Fprintln(in, upTo)
		require.NoError(t, err)
		require.True(t, out.Scan())
		published = upTo
		k.eventually("all batches", func() bool {
			most = max(most, resident(t)-base)
			for _, row := range health(k) {
				if row.LastSeq == nil || *row.LastSeq != uint64(upTo-1) {
					return false
				}
			}
			return true
		})
	}
	const step = 100 // well within the engines' replay
	for range 3 {
		publish(published + step) // until connections, buffers and the heap are as they will be
	}
	stats, err := r.Stats()
	require.NoError(t, err)
	base, most = most-int64(stats.Bytes), 0

	start := time.Now()
	for room := mib << 20 / 16; published*(boundPrompt-boundShared)*boundEngines < room; {
		publish(published + step)
	}
	t.Logf("%d MiB, %d prompts of %d engines in %v; the process grew by %.1f MiB", mib, published, boundEngines, time.Since(start), float64(most)/(1<<20))
	require.LessOrEqual(t, most, config.MaxBytes*115/100)
	stats, err = r.Stats()
	require.NoError(t, err)
	require.LessOrEqual(t, int64(stats.Bytes), config.MaxBytes)
	require.Greater(t, int64(stats.Bytes), config.MaxBytes/2, "the bound is made use of")
	require.Positive(t, stats.EvictedBlocks)

	whole := 0
	for i := range published {
		engine := i % boundEngines
		prompt := boundTokens(engine, i)
		for name, depth := range k.depth(prompt) {
			want := uint32(boundShared) // others hold the shared part only
			if name == fmt.Sprintf("%d/0", engine) {
				want = boundDepth(i)
			}
			require.LessOrEqual(t, depth, want, "prompt %d, worker %s", i, name)
			if depth == want && want > boundShared {
				whole++
			}
		}
	}
	require.Positive(t, whole, "some are known whole")
	for _, row := range health(k) {
		require.Equal(t, feed.Partial, row.State)
		require.Contains(t, row.Reason, "max_bytes: ")
	}
	// A rank that is cleared lost nothing any more.
	require.NoError(t, r.RemoveWorker(0))
	require.NoError(t, r.AddWorker(router.Worker{ID: 0}))
	require.Equal(t, feed.Exact, k.health(0).State)
}

// What the host applies is bounded too, and going on below what went is no error.
func TestMemoryOfHostAppliedRanksIsBounded(t *testing.T) {
	if raceEnabled {
		return // it is slow, and checked by the run without
	}
	config := router.DefaultConfig()
	config.MaxBytes = router.MinMaxBytes
	k := newKit(t, 4, config).workers(1)
	ev := event.Event{Kind: event.Stored, Blocks: make([]event.Block, 500)}
	for i := range 1500 {
		for j := range ev.Blocks {
			ev.Blocks[j] = event.Block{Engine: block.EngineHash(i*1000 + j), Hash: block.Hash(i*1000 + j)}
		}
		require.NoError(t, k.ApplyEvent(1, &ev, index.Count))
	}
	row := k.health(1)
	require.Equal(t, feed.Partial, row.State)
	require.Contains(t, row.Reason, "max_bytes: ")
	stats, err := k.Stats()
	require.NoError(t, err)
	require.LessOrEqual(t, int64(stats.Bytes), config.MaxBytes)
	require.Positive(t, stats.EvictedBlocks)
	require.Equal(t, stats.EvictedBlocks, row.Counters["evicted_blocks"])
	below := event.Event{Kind: event.Stored, HasParent: true, Parent: 499, Blocks: []event.Block{{Engine: 1 << 60, Hash: 1}}}
	require.NoError(t, k.ApplyEvent(1, &below, index.Count))

	again := k.restarted(1).workers(1)
	require.Equal(t, row.Reason, again.health(1).Reason, "it is remembered")
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	require.Equal(t, feed.Exact, k.health(1).State)
	require.NoError(t, k.ApplyEvent(1, &ev, index.Count))
	require.Equal(t, feed.Exact, k.health(1).State)
}

// What the bound took from a rank is saved as the reason why it is partial, whoever applies its events.
func TestEvictionsAreSaved(t *testing.T) {
	if raceEnabled {
		return // it is slow, and checked by the run without
	}
	config := router.DefaultConfig()
	config.MaxBytes = router.MinMaxBytes
	k := newKit(t, 16, config).workers(1, 2)
	e := newEngine(t, 0)
	require.NoError(t, k.AddWorker(follows(3, e)))
	k.exact(3)
	k.store(1, 0, tokens(1, 160))
	e.store(tokens(2, 160))
	k.eventually("stored", func() bool { return k.depth(tokens(2, 160))["3/0"] == 10 })
	ev := event.Event{Kind: event.Stored, Blocks: make([]event.Block, 500)}
	evicted := func(id uint64) uint64 { return k.health(id).Counters["evicted_blocks"] }
	for i := 1; evicted(1) == 0 || evicted(3) == 0; i++ {
		require.Less(t, i, 10_000, "nothing is evicted")
		for j := range ev.Blocks {
			ev.Blocks[j] = event.Block{Engine: block.EngineHash(i*1000 + j), Hash: block.Hash(i*1000 + j)}
		}
		require.NoError(t, k.ApplyEvent(2, &ev, index.Count))
	}
	reason := func(id uint64) string { return fmt.Sprintf("max_bytes: %d blocks were evicted", evicted(id)) }
	again := k.restarted(3).workers(1)
	require.NoError(t, again.AddWorker(follows(3, e)))
	again.eventually("resumed", func() bool { return again.states()[3] == feed.Partial })
	for _, id := range []uint64{1, 3} {
		require.Equal(t, reason(id), k.health(id).Reason)
		require.Equal(t, reason(id), again.health(id).Reason)
	}
}
