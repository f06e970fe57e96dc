package replica_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const slots = 4

// router is what a router does with a mesh: it books in a ledger under its lock, tells the others, and applies what they tell.
type router struct {
	mesh *replica.Mesh

	mu     sync.Mutex
	ledger *load.Ledger
	now    int64
	placed []string                // of its own, ended ones too
	mine   map[string]load.Booking // of those, the ones that live, as they are now
	pause  atomic.Int64            // before it applies, nanoseconds
	panics atomic.Int32            // so many calls are to panic
	most   int                     // events it was given at once
}

func newRouter(t testing.TB, c replica.Config) *router {
	r := &router{mine: map[string]load.Booking{}, ledger: load.New(load.Options{ExpiryNanos: 1000})}
	c.Model, c.BlockSize = "m", 16
	c.ZMQ.BackoffMin, c.ZMQ.BackoffMax = time.Millisecond, 20*time.Millisecond // reconnects are quick
	mesh, err := replica.New(c, r)
	require.NoError(t, err)
	r.mesh = mesh
	t.Cleanup(mesh.Close)
	return r
}

func rank(slot worker.Slot) worker.Rank {
	return worker.Rank{ID: 100 + uint64(slot), DPRank: uint32(slot)}
}

func (r *router) place(id string, slot worker.Slot, seqs []block.SequenceHash, tokens int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := load.Booking{ID: id, Slot: slot, Rank: rank(slot), Blocks: names(seqs), PrefillTokens: tokens}
	err := r.ledger.Book(&b, r.now)
	if err == nil {
		r.mine[id] = b
		r.placed = append(r.placed, id)
		r.mesh.Publish(&wire.SequenceEvent{
			Kind: wire.SequenceAdded, RequestID: id, Worker: rank(slot), HasSequences: true, Sequences: seqs, PrefillTokens: uint64(tokens),
		})
	}
	return err
}

func (r *router) prefilled(id string) { r.end(id, wire.SequencePrefilled, r.ledger.PrefillComplete) }
func (r *router) free(id string)      { r.end(id, wire.SequenceFreed, r.ledger.Free) }

func (r *router) end(id string, kind wire.SequenceKind, end func(string, int64) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.ledger.Placed(id); ok && end(id, r.now) == nil {
		b := r.mine[id]
		b.PrefillTokens = 0
		r.mine[id] = b
		if kind == wire.SequenceFreed {
			delete(r.mine, id)
		}
		r.mesh.Publish(&wire.SequenceEvent{Kind: kind, RequestID: id, Worker: p.Rank})
	}
}

// Apply implements replica.Sink.
func (r *router) Apply(events []wire.SequenceEvent) {
	if r.panics.Load() > 0 {
		r.panics.Add(-1)
		panic("a sink that fails")
	}
	time.Sleep(time.Duration(r.pause.Load()))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = max(r.most, len(events))
	for i := range events {
		e := &events[i]
		slot := worker.Slot(e.Worker.DPRank)
		if slot >= slots || e.Worker != rank(slot) {
			continue // a worker that is not known here
		}
		switch e.Kind {
		case wire.SequenceAdded:
			_ = r.ledger.Book(&load.Booking{
				ID: e.RequestID, Slot: slot, Rank: e.Worker, Blocks: names(e.Sequences), PrefillTokens: int(e.PrefillTokens),
				Origin: load.Origin(e.RouterID),
			}, r.now)
		case wire.SequencePrefilled:
			r.ledger.RemotePrefillComplete(e.RequestID, slot, load.Origin(e.RouterID), r.now)
		case wire.SequenceFreed:
			r.ledger.RemoteFree(e.RequestID, slot, load.Origin(e.RouterID), r.now)
		}
	}
}

// Gone implements replica.Sink.
func (r *router) Gone(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	departure := r.ledger.Departed(load.Origin(id), r.now)
	for more := true; more; {
		_, more = r.ledger.DropOrigin(&departure, r.now)
	}
}

func (r *router) loads() (all [slots]load.Load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ledger.Expire(r.now)
	for i := range all {
		all[i] = r.ledger.Load(worker.Slot(i))
	}
	return all
}

func (r *router) later(nanos int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now += nanos
}

func (r *router) requests() (n int32) {
	for _, l := range r.loads() {
		n += l.ActiveRequests
	}
	return n
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, 20*time.Second, time.Millisecond, what)
}

// fleet starts n routers that all know each other, and waits until each hears each.
func fleet(t testing.TB, n int) []*router {
	dir := t.TempDir()
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("ipc://%s/%d", dir, i))
	}
	var routers []*router
	for i := range n {
		routers = append(routers, newRouter(t, replica.Config{Bind: all[i], Connect: all}))
	}
	for _, r := range routers {
		eventually(t, "all are heard", func() bool { return r.mesh.Stats().Listeners == n })
	}
	return routers
}

// names are sequence hashes as a ledger takes them.
func names(seqs []block.SequenceHash) []block.Hash {
	out := make([]block.Hash, len(seqs))
	for i, s := range seqs {
		out[i] = block.Hash(s)
	}
	return out
}

func chain(family, n int) []block.SequenceHash {
	seqs := make([]block.SequenceHash, n)
	for i := range seqs {
		seqs[i] = block.SequenceHash(family<<32 | i)
	}
	return seqs
}

func TestReplicasAgree(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			routers := fleet(t, n)
			var working sync.WaitGroup
			for i, r := range routers {
				working.Go(func() { work(r, i, 400) })
			}
			working.Wait()
			all := load.New(load.Options{})
			for _, r := range routers {
				for _, id := range r.placed {
					if b, ok := r.mine[id]; ok {
						require.NoError(t, all.Book(&b, 0))
					}
				}
			}
			var want [slots]load.Load
			for i := range want {
				want[i] = all.Load(worker.Slot(i))
				require.Positive(t, want[i].ActiveRequests)
			}
			for _, r := range routers {
				eventually(t, "agrees", func() bool { return r.loads() == want })
				s := r.mesh.Stats()
				require.Zero(t, s.Dropped+s.Malformed+s.OtherRouter+s.OtherScope+s.Unsent+s.Gone)
				eventually(t, "its own endpoint is among its peers", func() bool { return r.mesh.Stats().Echoes == s.Published })
			}
			for _, r := range routers {
				for _, id := range r.placed {
					r.free(id)
				}
			}
			for _, r := range routers {
				eventually(t, "all ended", func() bool { return r.loads() == [slots]load.Load{} })
			}
		})
	}
}

// work places and ends requests at random.
func work(r *router, number, steps int) {
	rng := rand.New(rand.NewPCG(uint64(number), 1))
	for i := range steps {
		switch old := rng.IntN(i + 1); {
		case rng.IntN(2) == 0 || len(r.placed) == 0:
			id := fmt.Sprintf("%d-%d", number, i)
			_ = r.place(id, worker.Slot(rng.IntN(slots)), chain(rng.IntN(3), rng.IntN(40)), rng.IntN(3)*100)
		case rng.IntN(2) == 0:
			r.prefilled(r.placed[old%len(r.placed)])
		default:
			r.free(r.placed[old%len(r.placed)])
		}
	}
}

func TestTheFirstOwnerWins(t *testing.T) {
	r, far := alone(t, time.Hour)
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "x", Worker: rank(1), PrefillTokens: 10})
	eventually(t, "placed", func() bool { return r.requests() == 1 })
	require.ErrorIs(t, r.place("x", 2, nil, 99), load.ErrDuplicateRequest)
	require.NoError(t, r.place("y", 0, nil, 7))
	before := r.loads()
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "y", Worker: rank(3), PrefillTokens: 50})
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: "y", Worker: rank(3)})
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequencePrefilled, RequestID: "x", Worker: rank(2)})
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: "never", Worker: rank(0)})
	far.say(t, 9, wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "z", Worker: worker.Rank{ID: 1}, PrefillTokens: 50})
	eventually(t, "heard", func() bool { return r.mesh.Stats().Applied == 6 })
	require.Equal(t, before, r.loads())
}

func TestWhoJoinsLateHearsWhatComes(t *testing.T) {
	endpoint := "ipc://" + t.TempDir() + "/a"
	a := newRouter(t, replica.Config{Bind: endpoint})
	require.NoError(t, a.place("before", 1, chain(1, 5), 80))
	b := newRouter(t, replica.Config{Connect: []string{endpoint}})
	require.Empty(t, b.mesh.Addr())
	eventually(t, "heard", func() bool { return a.mesh.Stats().Listeners == 1 })
	require.NoError(t, a.place("after", 2, chain(1, 6), 96))
	a.prefilled("before")
	a.free("before")
	a.prefilled("after")
	eventually(t, "settled", func() bool { return b.mesh.Stats().Applied == 4 })
	require.Equal(t, a.loads(), b.loads())
	require.Equal(t, load.Load{ActiveBlocks: 6, ActiveRequests: 1}, b.loads()[2])
}

func TestWhatADeadRouterPlacedEnds(t *testing.T) {
	dir := t.TempDir()
	ends := []string{"ipc://" + dir + "/a", "ipc://" + dir + "/b"}
	a := newRouter(t, replica.Config{Bind: ends[0], Connect: ends})
	b := newRouter(t, replica.Config{Bind: ends[1], Connect: ends, PeerTimeout: 20 * time.Millisecond})
	for _, r := range []*router{a, b} {
		eventually(t, "all are heard", func() bool { return r.mesh.Stats().Listeners == 2 })
	}
	require.NoError(t, a.place("a", 1, chain(1, 5), 80))
	require.NoError(t, b.place("b", 2, chain(1, 5), 80))
	eventually(t, "heard", func() bool { return b.requests() == 2 })
	a.mesh.Close()
	require.Zero(t, a.mesh.Stats().Connected)
	eventually(t, "gone", func() bool { return b.mesh.Stats().Gone == 1 })
	eventually(t, "ended", func() bool { return b.requests() == 1 })
	require.Equal(t, int32(1), b.loads()[2].ActiveRequests)
	require.Equal(t, 1, b.mesh.Stats().Connected)
}

// far is a peer that says whatever a test wants.
type far struct {
	*zmq.Pub
	endpoint string
}

var scope = wire.SequenceScope{Model: "m", Group: "default", BlockSize: 16}

// alone starts a router that hears one far peer.
func alone(t testing.TB, timeout time.Duration) (*router, *far) {
	f := &far{endpoint: "ipc://" + t.TempDir() + "/far"}
	f.listen(t)
	r := newRouter(t, replica.Config{Connect: []string{f.endpoint, f.endpoint}, PeerTimeout: timeout, ID: 5})
	f.listened(t)
	return r, f
}

func (f *far) listen(t testing.TB) {
	pub, err := zmq.ListenPub(f.endpoint, zmq.Options{})
	require.NoError(t, err)
	f.Pub = pub
	t.Cleanup(func() { pub.Close() })
}

func (f *far) listened(t testing.TB) {
	eventually(t, "listens", func() bool { return f.Stats().Subscribers == 1 })
}

// restart breaks the connection and takes another.
func (f *far) restart(t testing.TB) {
	require.NoError(t, f.Close())
	f.listen(t)
	f.listened(t)
}

func (f *far) say(t testing.TB, id uint64, e wire.SequenceEvent) {
	e.RouterID = id
	payload, err := wire.AppendSequence(nil, &scope, &e)
	require.NoError(t, err)
	require.NoError(t, f.Publish([]byte(replica.Topic), payload))
}

func added(id string) wire.SequenceEvent {
	return wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: id, Worker: rank(1), PrefillTokens: 10}
}

func TestABrokenConnectionEndsNothing(t *testing.T) {
	r, far := alone(t, time.Hour)
	far.say(t, 9, added("one"))
	eventually(t, "heard", func() bool { return r.requests() == 1 })
	far.restart(t)
	far.say(t, 9, added("two"))
	eventually(t, "heard", func() bool { return r.requests() == 2 })
	far.restart(t)
	far.say(t, 10, added("three"))
	eventually(t, "another router is there: what the old one placed ended", func() bool { return r.mesh.Stats().Applied == 3 })
	require.Equal(t, int32(1), r.requests())
	require.Equal(t, uint64(1), r.mesh.Stats().Gone)
}

// A router that starts again under its id is not the one before, also if it has nothing to say.
func TestARestartUnderTheSameIDIsNoticed(t *testing.T) {
	end := "ipc://" + t.TempDir() + "/a"
	a := newRouter(t, replica.Config{Bind: end, ID: 7})
	b := newRouter(t, replica.Config{Connect: []string{end}, PeerTimeout: time.Hour})
	eventually(t, "heard", func() bool { return a.mesh.Stats().Listeners == 1 })
	require.NoError(t, a.place("old", 1, chain(1, 5), 80))
	eventually(t, "placed", func() bool { return b.requests() == 1 })
	a.mesh.Close()
	again := newRouter(t, replica.Config{Bind: end, ID: 7})
	eventually(t, "ended", func() bool { return b.requests() == 0 })
	eventually(t, "heard", func() bool { return again.mesh.Stats().Listeners == 1 })
	require.NoError(t, again.place("new", 2, chain(1, 5), 80))
	eventually(t, "placed", func() bool { return b.requests() == 1 })
	require.Equal(t, int32(1), b.loads()[2].ActiveRequests)
	eventually(t, "counted", func() bool { return b.mesh.Stats().Gone == 1 })
}

func TestWhatIsNotForThisRouterIsCounted(t *testing.T) {
	r, far := alone(t, time.Hour)
	far.say(t, 9, added("mine"))
	good, err := wire.AppendSequence(nil, &scope, &wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: "mine", RouterID: 9, Worker: rank(1)})
	require.NoError(t, err)
	topic := []byte(replica.Topic)
	for _, frames := range [][][]byte{
		{topic}, {topic, good, nil}, {append(topic, '2'), good}, {topic, nil}, {topic, good[1:]}, {topic, good[:len(good)-1]},
		{topic, []byte("junk")}, {topic, append(good, 0)},
	} {
		require.NoError(t, far.Publish(frames...))
	}
	far.say(t, 5, added("own"))
	far.say(t, 11, added("another router on this connection"))
	far.say(t, 0, added("nobody"))
	for _, s := range []wire.SequenceScope{{Model: "n", Group: "default", BlockSize: 16}, {Model: "m", Group: "g", BlockSize: 16}, {Model: "m", Group: "default", BlockSize: 32}} {
		e := added("elsewhere")
		e.RouterID = 9
		payload, err := wire.AppendSequence(nil, &s, &e)
		require.NoError(t, err)
		require.NoError(t, far.Publish(topic, payload))
	}
	far.say(t, 9, added("last"))
	eventually(t, "heard", func() bool { return r.requests() == 2 })
	require.Equal(t, replica.Stats{Connected: 1, Applied: 2, Echoes: 1, OtherScope: 3, OtherRouter: 2, Malformed: 8}, r.mesh.Stats())
}

func TestHostileBytesDoNoHarm(t *testing.T) {
	r, far := alone(t, time.Hour)
	rng := rand.New(rand.NewPCG(3, 4))
	const messages = 3000
	for i := range messages {
		e := added(fmt.Sprint("r", rng.IntN(50)))
		e.RouterID, e.Kind = 9, wire.SequenceKind(1+rng.IntN(3))
		e.Sequences, e.HasSequences = chain(rng.IntN(4), rng.IntN(60)), true
		payload, err := wire.AppendSequence(nil, &scope, &e)
		require.NoError(t, err)
		for range rng.IntN(4) {
			payload[rng.IntN(len(payload))] = byte(rng.Uint32())
		}
		if i == 0 {
			far.say(t, 9, added("first"))
		}
		require.NoError(t, far.Publish([]byte(replica.Topic), payload[:len(payload)-rng.IntN(2)]))
	}
	eventually(t, "all is accounted for", func() bool {
		s := r.mesh.Stats()
		return s.Applied+s.Echoes+s.OtherScope+s.OtherRouter+s.Malformed == messages+1
	})
	require.Positive(t, r.mesh.Stats().Malformed)
	require.Zero(t, r.mesh.Stats().Panics)
	r.later(50_000)
	require.Equal(t, [slots]load.Load{}, r.loads(), "all of it expires")
}

func TestAPeerThatIsTooSlowLosesEventsAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	endpoint := "ipc://" + dir + "/a"
	a := newRouter(t, replica.Config{Bind: endpoint, ZMQ: zmq.Options{SendQueue: 4}})
	b := newRouter(t, replica.Config{Connect: []string{endpoint}})
	b.pause.Store(int64(2 * time.Millisecond))
	eventually(t, "heard", func() bool { return a.mesh.Stats().Listeners == 1 })
	for i := 0; a.mesh.Stats().Dropped < 500; i++ {
		id := fmt.Sprint(i)
		require.NoError(t, a.place(id, worker.Slot(i%slots), chain(i, 2000), 100))
		a.prefilled(id)
		if i > 3 {
			a.free(fmt.Sprint(i - 3))
		}
	}
	s := a.mesh.Stats()
	eventually(t, "what was sent is applied", func() bool { return b.mesh.Stats().Applied == s.Published-s.Dropped })
	require.NoError(t, b.place("mine", 3, chain(7, 10), 160))
	for range 11 {
		b.later(999)
		b.prefilled("mine") // renews it
	}
	require.Equal(t, [slots]load.Load{3: {ActiveBlocks: 10, ActiveRequests: 1}}, b.loads(), "bookings whose end was lost expire")
}

// What waits for a busy sink comes at once, up to a number.
func TestBatches(t *testing.T) {
	r, far := alone(t, time.Hour)
	r.mu.Lock()
	far.say(t, 9, added("first"))
	const many = 2000
	for i := range many {
		far.say(t, 9, added(fmt.Sprint(i)))
	}
	eventually(t, "all was sent", func() bool { return far.Stats().Sent == many+1 })
	r.mu.Unlock()
	eventually(t, "all is placed", func() bool { return r.requests() == many+1 })
	require.Greater(t, r.most, 100)
	require.LessOrEqual(t, r.most, 256)
}

func TestASinkThatPanicsIsCounted(t *testing.T) {
	r, far := alone(t, time.Hour)
	leaktest.Faults(1)
	r.panics.Store(1)
	far.say(t, 9, added("lost"))
	eventually(t, "panicked", func() bool { return r.mesh.Stats().Panics == 1 })
	far.say(t, 9, added("heard"))
	eventually(t, "lives", func() bool { return r.requests() == 1 })
}

func TestEventsThatCannotBeSentAreCounted(t *testing.T) {
	r := newRouter(t, replica.Config{Bind: "tcp://127.0.0.1:0"})
	require.Contains(t, r.mesh.Addr(), "tcp://127.0.0.1:")
	r.mesh.Publish(&wire.SequenceEvent{})
	require.Equal(t, replica.Stats{Unsent: 1}, r.mesh.Stats())
	r.mesh.Close()
	r.mesh.Close()
	r.mesh.Publish(&wire.SequenceEvent{Kind: wire.SequenceFreed})
	require.Equal(t, uint64(0), r.mesh.Stats().Published)
}

func TestConfigurationsThatCannotBe(t *testing.T) {
	for name, c := range map[string]replica.Config{
		"no block size":    {Bind: "tcp://127.0.0.1:0"},
		"no endpoint":      {BlockSize: 16},
		"a negative time":  {BlockSize: 16, Bind: "tcp://127.0.0.1:0", PeerTimeout: -1},
		"a wildcard peer":  {BlockSize: 16, Connect: []string{"tcp://*:5555"}},
		"a peer of port 0": {BlockSize: 16, Connect: []string{"tcp://localhost:0"}},
		"no peer":          {BlockSize: 16, Connect: []string{"hello"}},
		"too many peers":   {BlockSize: 16, Connect: slices.Repeat([]string{"tcp://127.0.0.1:1"}, replica.MaxPeers+1)},
	} {
		_, err := replica.New(c, nil)
		require.ErrorIs(t, err, replica.ErrInvalid, name)
	}
	_, err := replica.New(replica.Config{BlockSize: 16, Bind: "tcp://nowhere"}, nil)
	require.ErrorIs(t, err, zmq.ErrEndpoint)
}
