package router_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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

// saved gives the file of a router.
func (k *kit) saved() string {
	path := filepath.Join(k.t.TempDir(), "router.snapshot")
	require.NoError(k.t, k.Save(path))
	return path
}

// restarted gives a router that loaded what another one saved, and no workers.
func (k *kit) restarted(want int) *kit {
	again := newKit(k.t, k.size, router.DefaultConfig())
	n, err := again.Load(k.saved())
	require.NoError(k.t, err)
	require.Equal(k.t, want, n)
	return again
}

func (k *kit) waiting() int {
	stats, err := k.Stats()
	require.NoError(k.t, err)
	return stats.WaitingRanks
}

func (k *kit) health(id uint64) router.RankHealth {
	rows, err := k.Health()
	require.NoError(k.t, err)
	for _, row := range rows {
		if row.WorkerID == id {
			return row
		}
	}
	require.Fail(k.t, "no such worker", id)
	return router.RankHealth{}
}

func TestWarmRestartOfHostAppliedRanks(t *testing.T) {
	const big = uint64(0xF123456789ABCDEF)
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	require.NoError(t, a.AddWorker(router.Worker{ID: big, DPStart: 3, DPSize: 2}))
	a.store(1, 0, tokens(1, 40))
	a.store(1, 0, tokens(1, 20)) // two references
	a.store(2, 0, tokens(1, 20))
	a.store(big, 4, tokens(2, 8))
	b := a.restarted(5 - 1)
	require.Equal(t, 4, b.waiting())
	_, err := b.BestWorker(ask(tokens(1, 40)))
	require.ErrorIs(t, err, router.ErrNoWorkers, "what waits is no candidate")

	b.workers(1, 2)
	require.NoError(t, b.AddWorker(router.Worker{ID: big, DPStart: 3, DPSize: 2}))
	require.Zero(t, b.waiting())
	for _, prompt := range [][]uint32{tokens(1, 40), tokens(2, 8)} {
		require.Equal(t, a.depth(prompt), b.depth(prompt))
	}
	require.Equal(t, router.Choice{WorkerID: 1, OverlapBlocks: 10}, b.best(ask(tokens(1, 40))))
	for _, h := range block.Hashes(nil, tokens(1, 40), 4, nil) {
		b.remove(1, h)
	}
	require.EqualValues(t, 5, b.depth(tokens(1, 40))["1/0"], "the references came along")
	require.NoError(t, b.RemoveWorker(1))
	require.NoError(t, b.AddWorker(router.Worker{ID: 1}))
	require.EqualValues(t, 0, b.depth(tokens(1, 40))["1/0"], "what was loaded is claimed once")
}

func TestWarmRestartGivesTheSameDump(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2, 3)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		a.store(1+rng.Uint64N(3), 0, tokens(int(rng.Uint64N(9)), 4+rng.IntN(60)))
	}
	b := a.restarted(3).workers(3, 2, 1)
	require.Equal(t, blocksOf(t, a), blocksOf(t, b))
}

func TestLoadIntoRegisteredRanks(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2, 3)
	for id := range uint64(3) {
		a.store(id+1, 0, tokens(1, 40))
	}
	path := a.saved()
	b := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	b.store(2, 0, tokens(5, 8))
	require.NoError(t, b.AddWorker(router.Worker{ID: 3, KVEvents: router.Endpoints{Base: "tcp://127.0.0.1:1"}}))
	n, err := b.Load(path)
	require.NoError(t, err)
	require.Equal(t, 1, n, "one is empty, one holds what is newer, one has a feed of its own")
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0, "3/0": 0}, b.depth(tokens(1, 40)))
	require.EqualValues(t, 2, b.depth(tokens(5, 8))["2/0"])
	n, err = b.Load(path)
	require.NoError(t, err)
	require.Zero(t, n, "all are registered, and hold something")
}

func TestLoadedRanksThatNobodyAdds(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	a.store(1, 0, tokens(1, 40))
	a.store(2, 0, tokens(1, 40))
	b := a.restarted(2)
	c := b.restarted(2) // what waits is saved again
	n, err := c.Load(a.saved())
	require.NoError(t, err)
	require.Equal(t, 2, n, "and loaded anew")
	require.Equal(t, 2, c.waiting())
	require.NoError(t, c.RemoveWorker(1), "it can be given up")
	require.ErrorIs(t, c.RemoveWorker(1), router.ErrWorkerNotFound)
	c.workers(1, 2)
	require.Equal(t, map[string]uint32{"1/0": 0, "2/0": 10}, c.depth(tokens(1, 40)))

	require.NoError(t, b.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: "tcp://127.0.0.1:1"}}))
	require.EqualValues(t, 0, b.depth(tokens(1, 40))["1/0"], "a feed cannot prove what the host applied")
	require.Equal(t, 1, b.waiting())
	b.Close()
	_, err = b.Load(a.saved())
	require.ErrorIs(t, err, router.ErrClosed)
	require.ErrorIs(t, b.Save(filepath.Join(t.TempDir(), "x")), router.ErrClosed)
}

// Blocks behind a removed one cannot be restored: the rank then under-counts, and says so until it is cleared.
func TestHiddenBlocksMakeARestoredRankPartial(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	a.store(1, 0, tokens(1, 40))
	a.store(2, 0, tokens(1, 40))
	a.remove(1, block.Hashes(nil, tokens(1, 40), 4, nil)[3])
	b := a.restarted(2).workers(1, 2)
	require.EqualValues(t, 3, b.depth(tokens(1, 40))["1/0"])
	row := b.health(1)
	require.Equal(t, feed.Partial, row.State)
	require.Equal(t, "snapshot: 3 of 9 blocks were restored", row.Reason)
	require.Equal(t, feed.Exact, b.health(2).State)
	c := b.restarted(2).workers(1)
	require.Equal(t, row.Reason, c.health(1).Reason, "also after the next restart")
	require.NoError(t, b.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	require.Equal(t, feed.Exact, b.health(1).State)
}

func TestFilesThatAreNotLoaded(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1)
	for i := range 300 {
		a.store(1, 0, tokens(i, 400)) // more than one section
	}
	file, err := os.ReadFile(a.saved())
	require.NoError(t, err)
	require.Greater(t, len(file), 400<<10)
	b := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	path := filepath.Join(t.TempDir(), "bad")
	for name, bad := range map[string][]byte{
		"foreign": []byte("[]"), "torn": file[:len(file)-1], "half": file[:len(file)/2], "corrupt": append(file[:len(file)-20:len(file)-20], make([]byte, 20)...),
	} {
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		_, err := b.Load(path)
		require.ErrorIs(t, err, router.ErrSnapshotRefused, name)
		require.ErrorContains(t, err, path)
		require.Zero(t, b.waiting(), name)
		stats, err := b.Stats()
		require.NoError(t, err)
		require.Zero(t, stats.Pairs, name)
	}
	require.NoError(t, os.WriteFile(path, file, 0o600))
	_, err = newKit(t, 16, router.DefaultConfig()).Load(path)
	require.ErrorIs(t, err, router.ErrSnapshotRefused)
	require.ErrorContains(t, err, "blocks of 4 tokens, the router's have 16")
	_, err = b.Load(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, router.ErrFileError)
	require.ErrorIs(t, b.Save(filepath.Join(t.TempDir(), "none", "x")), router.ErrFileError)
	n, err := b.Load(path)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the whole file is fine")
}

// follows gives the description of a worker whose events an engine publishes.
func follows(id uint64, e *engine) router.Worker {
	return router.Worker{ID: id, KVEvents: router.Endpoints{Base: e.Addr()}, Replay: router.Endpoints{Base: e.ReplayAddr()}}
}

func (k *kit) exact(id uint64) {
	k.t.Helper()
	k.eventually("exact", func() bool { return k.states()[id] == feed.Exact })
}

// A router that starts again goes on where the old one stopped: at once with what it knew, and exact as soon as the engine
// has shown that it is the same one, also if its history does not go back to its start.
func TestWarmRestartOfFollowedRanks(t *testing.T) {
	a := newKit(t, 16, router.DefaultConfig())
	p, err := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", BufferSteps: 100})
	require.NoError(t, err)
	defer p.Close()
	e := &engine{Publisher: p, t: t, size: 16, next: 1}
	require.NoError(t, a.AddWorker(follows(1, e)))
	a.exact(1)
	names := e.store(tokens(0, 64))
	for i := range 150 {
		e.store(tokens(i+1, 32))
		a.eventually("it follows", func() bool { return a.depth(tokens(i+1, 32))["1/0"] == 2 }) // slower than the ring
	}
	b := a.restarted(1)
	a.Close()
	e.send(publish.Removed(names[3:])) // while nobody listens
	e.store(tokens(500, 32))
	require.NoError(t, b.AddWorker(follows(1, e)))
	require.EqualValues(t, 2, b.depth(tokens(1, 32))["1/0"], "before anybody is connected")
	b.exact(1)
	require.EqualValues(t, 3, b.depth(tokens(0, 64))["1/0"], "removed meanwhile")
	require.EqualValues(t, 2, b.depth(tokens(500, 32))["1/0"], "stored meanwhile")
	require.EqualValues(t, 2, b.depth(tokens(1, 32))["1/0"], "beyond the engine's history")
	require.Zero(t, b.health(1).Counters["resets"])
}

func TestWarmRestartFindsARestartedEngine(t *testing.T) {
	a := newKit(t, 16, router.DefaultConfig())
	e := newEngine(t, 0)
	require.NoError(t, a.AddWorker(follows(1, e)))
	a.exact(1)
	e.store(tokens(1, 64))
	a.eventually("stored", func() bool { return a.depth(tokens(1, 64))["1/0"] == 4 })
	b := a.restarted(1)
	fresh := newEngine(t, 0)
	fresh.store(tokens(2, 64))
	require.NoError(t, b.AddWorker(follows(1, fresh)))
	b.eventually("the new engine's", func() bool { return b.depth(tokens(2, 64))["1/0"] == 4 })
	b.exact(1)
	require.Zero(t, b.depth(tokens(1, 64))["1/0"], "what cannot be proven is dropped")

	c := a.restarted(1) // and so it is if there is no way to prove anything
	w := follows(1, e)
	w.Replay = router.Endpoints{}
	require.NoError(t, c.AddWorker(w))
	c.eventually("dropped", func() bool { return c.states()[1] == feed.Partial && c.depth(tokens(1, 64))["1/0"] == 0 })
}

// Each rank is saved at one position, whatever is applied meanwhile: the restored one, having heard the rest, holds what
// the engine holds.
func TestSaveWhileEverythingMoves(t *testing.T) {
	a := newKit(t, 16, router.DefaultConfig()).workers(9)
	engines := map[uint64]*engine{}
	for id := range uint64(3) {
		engines[id] = newEngine(t, 0)
		require.NoError(t, a.AddWorker(follows(id, engines[id])))
	}
	for i := range 80 { // so that writing takes a while
		a.store(9, 0, tokens(10_000+i, 16*500))
	}
	path := filepath.Join(t.TempDir(), "router.snapshot")
	var busy sync.WaitGroup
	stop := make(chan struct{})
	for id, e := range engines {
		busy.Go(func() {
			for i := range 120 {
				names := e.store(tokens(int(id)*1000+i, 48))
				if i%3 == 0 {
					e.send(publish.Removed(names[1:]))
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	busy.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				a.store(9, 0, tokens(5000+i%100, 32))
				_, err := a.BestWorker(ask(tokens(5000, 32)))
				require.NoError(t, err)
			}
		}
	})
	var restarted []*kit
	for range 3 {
		require.NoError(t, a.Save(path))
		b := newKit(t, 16, router.DefaultConfig())
		_, err := b.Load(path)
		require.NoError(t, err)
		restarted = append(restarted, b)
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	busy.Wait()
	for _, b := range restarted {
		for id, e := range engines {
			require.NoError(t, b.AddWorker(follows(id, e)))
		}
	}
	held := func(b *kit, id uint64, i int) uint32 {
		return b.depth(tokens(int(id)*1000+i, 48))[fmt.Sprintf("%d/0", id)]
	}
	for _, b := range restarted {
		for id := range engines {
			b.eventually("all batches", func() bool { return held(b, id, 119) == 3 })
			b.exact(id)
			for i := range 120 {
				want := uint32(3)
				if i%3 == 0 {
					want = 1
				}
				require.Equal(t, want, held(b, id, i), "worker %d, prompt %d", id, i)
			}
		}
	}
	for _, e := range engines { // each name once: one that was applied twice would stay
		var all []block.EngineHash
		for name := uint64(1)<<32 + 1; name <= e.next; name++ {
			all = append(all, block.EngineHash(name))
		}
		e.send(publish.Removed(all))
	}
	for _, b := range restarted {
		for id := range engines {
			b.eventually("all gone", func() bool { // a feed that starts over has nothing for a moment: all at once, and to stay
				for i := range 120 {
					if held(b, id, i) != 0 {
						return false
					}
				}
				return true
			})
			b.exact(id)
		}
	}
}

// The blocks of a file that is refused are not there for one decision, and what was loaded before stays.
func TestRefusedFileIsNeverUsed(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1)
	for i := range 100 {
		a.store(1, 0, tokens(i, 4*256))
	}
	file, err := os.ReadFile(a.saved())
	require.NoError(t, err)
	torn := filepath.Join(t.TempDir(), "torn")
	require.NoError(t, os.WriteFile(torn, file[:len(file)-1], 0o600))
	b := newKit(t, 4, router.DefaultConfig()).workers(1)
	stop := make(chan struct{})
	var asked sync.WaitGroup
	asked.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c, err := b.BestWorker(ask(tokens(0, 4*256)))
				if err != nil || c.OverlapBlocks > 0 {
					t.Errorf("a decision used %d blocks, %v", c.OverlapBlocks, err)
					return
				}
			}
		}
	})
	for range 5 {
		_, err := b.Load(torn)
		require.ErrorIs(t, err, router.ErrSnapshotRefused)
	}
	close(stop)
	asked.Wait()
}

func TestRefusedFileLeavesWhatWasLoaded(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	a.store(1, 0, tokens(1, 40))
	a.store(2, 0, tokens(2, 40))
	good := a.saved()
	file, err := os.ReadFile(good)
	require.NoError(t, err)
	torn := filepath.Join(t.TempDir(), "torn")
	require.NoError(t, os.WriteFile(torn, file[:len(file)-1], 0o600))
	b := newKit(t, 4, router.DefaultConfig())
	for range 2 {
		_, err = b.Load(good)
		require.NoError(t, err)
		_, err = b.Load(torn)
		require.ErrorIs(t, err, router.ErrSnapshotRefused)
		stats, err := b.Stats()
		require.NoError(t, err)
		require.Equal(t, []int{2, 20}, []int{stats.WaitingRanks, stats.Pairs})
	}

	// A second good file replaces the first, and is not added to it.
	a.store(1, 0, tokens(3, 20))
	a.remove(1, block.Hashes(nil, tokens(1, 40), 4, nil)[9])
	require.NoError(t, a.Save(good))
	_, err = b.Load(good)
	require.NoError(t, err)
	b.workers(1, 2)
	require.EqualValues(t, 9, b.depth(tokens(1, 40))["1/0"])
	require.EqualValues(t, 5, b.depth(tokens(3, 20))["1/0"])
	for _, h := range block.Hashes(nil, tokens(1, 40), 4, nil) {
		b.remove(1, h)
	}
	require.Zero(t, b.depth(tokens(1, 40))["1/0"], "each block is held once")
}

// Nobody ever writes to a FIFO: the router must not wait for it, least of all with workers at the door.
func TestNoRegularFileIsLoadedOrReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	k := newKit(t, 4, router.DefaultConfig())
	_, err := k.Load(path)
	require.ErrorIs(t, err, router.ErrFileError)
	require.ErrorContains(t, err, "expected a regular file")
	require.ErrorIs(t, k.Save(path), router.ErrFileError)
	k.workers(1)
}

// Of a rank that holds something in a lower tier only, nothing is restored either.
func TestLoadLeavesRanksWithLowerTiers(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1)
	a.store(1, 0, tokens(1, 40))
	b := newKit(t, 4, router.DefaultConfig()).workers(1)
	b.storeIn(event.HostPinned, 1, tokens(1, 40), 0, 3)
	n, err := b.Load(a.saved())
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, [5]uint32{0, 3, 3, 3, 0}, b.row(1, tokens(1, 40)))
}

// A rank without endpoints takes nothing that a feed followed: nobody knows what the host missed.
func TestHostAppliedRankTakesNothingOfAFeed(t *testing.T) {
	a := newKit(t, 16, router.DefaultConfig())
	e := newEngine(t, 0)
	require.NoError(t, a.AddWorker(follows(1, e)))
	a.exact(1)
	e.store(tokens(1, 64))
	a.eventually("stored", func() bool { return a.depth(tokens(1, 64))["1/0"] == 4 })
	path := a.saved()
	b := newKit(t, 16, router.DefaultConfig()).workers(1)
	n, err := b.Load(path)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, b.depth(tokens(1, 64))["1/0"])
}

// A registered rank that is restored is as partial as the one that was saved.
func TestLoadIntoARegisteredRankTellsWhatIsMissing(t *testing.T) {
	a := newKit(t, 4, router.DefaultConfig()).workers(1)
	a.store(1, 0, tokens(1, 40))
	a.remove(1, block.Hashes(nil, tokens(1, 40), 4, nil)[3])
	b := newKit(t, 4, router.DefaultConfig()).workers(1)
	n, err := b.Load(a.saved())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, feed.Partial, b.health(1).State)
	require.Equal(t, "snapshot: 3 of 9 blocks were restored", b.health(1).Reason)
}
