package feed

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// world is an engine with a bounded replay buffer, a network that loses, repeats and reorders, and the machine that
// follows. Each batch stores one block or removes one; an engine that restarts begins a new incarnation. With query, a local
// indexer answers instead of the replay socket; then batches may clear, too.
type world struct {
	t       testing.TB
	m       *machine
	now     time.Duration
	ring    int
	query   bool
	engines [][]change // by incarnation

	connected bool     // the network's view; the machine's follows when it has read what is in flight
	flight    []flying // live messages and disconnections not yet read

	request *asked
	applied []applied // since the last reset or renewal
	hidden  bool      // nobody sees it yet

	saved     *Position // what a snapshot holds
	savedView []applied
}

type change struct {
	store, clear bool
	void         bool // does nothing, and the indexer does not keep it
	name         uint64
}

type flying struct {
	down bool
	b    batch
}

type asked struct {
	id      int
	start   uint64
	served  bool
	whole   bool
	replies []batch
	end     bool // the marker follows; otherwise a failure
	dump    bool // replies is the whole state
	newest  uint64
	tooNew  bool

	publisher uint64
}

type applied struct{ incarnation, seq uint64 }

// lent is the incarnation of what a dump from elsewhere said.
const lent = 1 << 60

func (w *world) begin(buffer int) {
	w.m = newMachine(settings{replay: true, query: w.query, probe: 10 * time.Second, timeout: 5 * time.Second, backoffMin: time.Second,
		backoffMax: 4 * time.Second, retries: 3, maxCount: buffer, maxBytes: 1 << 20, jitter: func() float64 { return 0 }}, w)
}

// save keeps the position and the view, as Feed.Freeze gives them.
func (w *world) save() {
	f := Feed{machine: w.m, applier: applier{norm: wire.NewNormalizer(4)}}
	var release func()
	w.saved, release = f.Freeze()
	release()
	if w.saved != nil && w.hidden {
		w.t.Fatal("a position of what nobody sees, beside the blocks that are seen")
	}
	w.savedView = nil
	if w.saved != nil {
		w.savedView = slices.Clone(w.applied)
		if err := w.saved.Check(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// crash begins anew with what was saved last.
func (w *world) crash() {
	w.begin(w.m.maxCount)
	w.reset()
	w.request, w.connected, w.flight = nil, false, nil
	if w.saved != nil {
		w.m.resume(w.saved)
		w.applied = slices.Clone(w.savedView)
	}
}

func newWorld(t testing.TB, ring, buffer int, query bool) *world {
	w := &world{t: t, ring: ring, query: query, engines: make([][]change, 1)}
	w.begin(buffer)
	return w
}

func (w *world) apply(b *batch) damage {
	if b.queried {
		inc := b.events[0].ID
		if b.events[0].DPRank == wholeState {
			for seq := range b.seq {
				w.applied = append(w.applied, applied{inc, seq})
			}
		}
		w.applied = append(w.applied, applied{inc, b.seq})
		return intact
	}
	b.content = b.print + 1
	w.applied = append(w.applied, applied{binary.BigEndian.Uint64(b.payload), b.seq})
	return intact
}

// wholeState marks an event as everything up to its batch.
const wholeState = 1

func (w *world) reset()        { w.applied, w.hidden = nil, false }
func (w *world) renew()        { w.applied, w.hidden = nil, true }
func (w *world) commit()       { w.hidden = false }
func (w *world) cancel()       { w.request = nil }
func (w *world) count(counter) {}
func (w *world) ask(id int, start uint64, whole bool) bool {
	w.request = &asked{id: id, start: start, whole: whole}
	return false
}

// queried is a batch as the indexer says it: one event, or the state after it.
func (w *world) queried(seq uint64, dump bool) batch {
	ev := event.Event{ID: w.incarnation()}
	if dump {
		ev.DPRank = wholeState
	}
	return batch{seq: seq, queried: true, events: []event.Event{ev}, content: w.batch(seq).print + 1}
}

func (w *world) incarnation() uint64 { return uint64(len(w.engines)) - 1 }

func (w *world) batch(seq uint64) batch {
	inc := w.incarnation()
	return batch{seq: seq, print: inc<<32 | seq, payload: binary.BigEndian.AppendUint64(nil, inc)}
}

// publish adds a batch; live says whether the network carries it.
func (w *world) publish(rng *rand.Rand, live bool) {
	h := &w.engines[w.incarnation()]
	c := change{store: true, name: uint64(len(*h))}
	if w.query && rng.UintN(16) == 0 {
		c = change{clear: true}
	} else if w.query && rng.UintN(16) == 0 {
		c = change{void: true}
	} else if held := state(*h); len(held) > 0 && rng.UintN(4) == 0 {
		c = change{name: slices.Min(slices.Collect(maps.Keys(held)))}
	}
	*h = append(*h, c)
	if live && w.connected {
		w.flight = append(w.flight, flying{b: w.batch(uint64(len(*h)) - 1)})
	}
}

func state(history []change) map[uint64]bool {
	held := map[uint64]bool{}
	for _, c := range history {
		c.apply(held)
	}
	return held
}

func (c change) apply(held map[uint64]bool) {
	switch {
	case c.void:
	case c.clear:
		clear(held)
	case c.store:
		held[c.name] = true
	default:
		delete(held, c.name)
	}
}

func (w *world) disconnect() {
	if w.connected {
		w.connected = false
		w.flight = append(w.flight, flying{down: true})
	}
}

// serve answers the open request from the ring of the engine that is there now, cut after some batches.
func (w *world) serve(cut int, twice, end bool) {
	r := w.request
	if r == nil || r.served {
		return
	}
	r.served, r.end = true, end
	n := uint64(len(w.engines[w.incarnation()]))
	if w.query {
		w.indexer(r)
		return
	}
	for seq := max(r.start, n-min(n, uint64(w.ring))); seq < n && cut > 0; seq++ {
		r.replies = append(r.replies, w.batch(seq))
		if twice {
			r.replies = append(r.replies, w.batch(seq))
		}
		cut--
	}
}

// indexer answers as a local indexer does; an answer comes whole or not at all.
func (w *world) indexer(r *asked) {
	n := w.newest()
	r.publisher = w.incarnation()
	first := n - min(n, uint64(w.ring))
	switch {
	case r.whole || n == 0 || r.start < first:
		r.dump = true
		if n > 0 {
			r.replies = []batch{w.queried(n-1, true)}
		}
	case r.start >= n:
		r.tooNew, r.newest = true, n-1
	default:
		from := r.start
		for seq := from; seq < n; seq++ {
			if w.engines[w.incarnation()][seq].clear {
				from = seq
			}
		}
		for seq := from; seq < n; seq++ {
			b := w.queried(seq, false)
			b.clears = seq == from && w.engines[w.incarnation()][seq].clear
			if !w.engines[w.incarnation()][seq].void {
				r.replies = append(r.replies, b)
			}
		}
	}
}

// newest is the number after the last batch that does something.
func (w *world) newest() uint64 {
	h := w.engines[w.incarnation()]
	n := uint64(len(h))
	for n > 0 && h[n-1].void {
		n--
	}
	return n
}

func (w *world) readAnswer(r *asked) {
	switch {
	case !r.end:
		w.m.replayFailed(w.now, r.id, "cut")
	case !w.m.answerer(w.now, r.id, r.publisher, r.dump):
	case r.tooNew:
		w.m.tooNew(w.now, r.id, r.newest)
	case r.dump && len(r.replies) == 0:
		w.m.dumped(w.now, r.id, batch{queried: true})
	case r.dump:
		w.m.dumped(w.now, r.id, r.replies[0])
	default:
		for _, b := range r.replies {
			w.m.replayed(w.now, r.id, b)
		}
		w.m.replayEnd(w.now, r.id)
	}
}

func (w *world) readReplay() {
	r := w.request
	switch {
	case r == nil || !r.served:
	case w.query:
		w.readAnswer(r)
	case len(r.replies) > 0:
		b := r.replies[0]
		r.replies = r.replies[1:]
		w.m.replayed(w.now, r.id, b)
	case r.end:
		w.m.replayEnd(w.now, r.id)
	default:
		w.m.replayFailed(w.now, r.id, "cut")
	}
}

func (w *world) readLive() {
	if len(w.flight) == 0 {
		return
	}
	f := w.flight[0]
	w.flight = w.flight[1:]
	if f.down {
		w.m.down("cut")
	} else {
		w.m.live(w.now, f.b)
	}
}

func (w *world) reconnect() {
	if !w.connected && len(w.flight) == 0 {
		w.connected = true
		w.m.up(w.now)
	}
}

func (w *world) wait() {
	if due, ok := w.m.deadline(); ok {
		w.now = max(w.now, due)
		w.m.tick(w.now)
	}
}

// step does one thing.
func (w *world) step(op, arg byte, rng *rand.Rand) {
	switch op % 16 {
	case 0, 1:
		w.publish(rng, true)
	case 2:
		w.publish(rng, false)
	case 3, 4:
		w.readLive()
	case 5:
		w.serve(int(arg%32), arg&32 != 0, arg&64 != 0)
	case 6:
		w.serve(1<<30, false, true)
	case 7, 8:
		for range arg%8 + 1 {
			w.readReplay()
		}
	case 9:
		w.reconnect()
	case 10:
		w.wait()
	case 11:
		switch arg % 4 {
		case 0: // restart; the request that is open may be served by the new process
			w.disconnect()
			w.engines = append(w.engines, nil)
		case 1:
			w.disconnect()
		default:
			w.reconnect()
		}
	case 12: // a message comes twice
		if n := len(w.flight); n > 0 && !w.flight[n-1].down {
			w.flight = append(w.flight, w.flight[n-1])
		}
	case 14:
		w.save()
	case 15:
		switch {
		case arg%4 == 0:
			w.crash()
		case arg%4 == 1 && w.m.lend():
			w.applied = append(w.applied, applied{lent, uint64(arg)})
		}
	case 13: // two messages change places
		if n := len(w.flight); n > 1 && !w.flight[n-1].down && !w.flight[n-2].down {
			w.flight[n-1], w.flight[n-2] = w.flight[n-2], w.flight[n-1]
		}
	}
	w.check()
}

// check holds whenever the machine has read that a connection broke.
func (w *world) check() {
	checkMachine(w.t, w.m)
	if w.hidden != w.m.renewing {
		w.t.Fatal("I5: what is applied is hidden, or not, against the machine's will")
	}
	if st, _ := w.m.state(); st != Exact || !w.connected {
		return
	}
	inc := w.incarnation()
	first := w.m.next() - uint64(len(w.applied)) // not 0 if an indexer left out what a clear undid
	if first > 0 && (!w.query || !w.engines[inc][first].clear) {
		w.t.Fatalf("I1: exact with %d batches applied, next is %d", len(w.applied), w.m.next())
	}
	for i, a := range w.applied {
		if a.incarnation != inc || a.seq != first+uint64(i) {
			w.t.Fatalf("I1: exact, but batch %d is %d of engine %d, now %d", i, a.seq, a.incarnation, inc)
		}
	}
}

// settle lets everything work, until nothing is to be done but probing.
func (w *world) settle() {
	for range 20_000 {
		switch {
		case len(w.flight) > 0:
			w.readLive()
		case !w.connected:
			w.reconnect()
		case w.request != nil && !w.request.served:
			w.serve(1<<30, false, true)
		case w.request != nil:
			w.readReplay()
		case w.m.phase == following && w.m.restoreAt == 0 && w.m.next() >= w.newest():
			return
		default:
			w.wait()
		}
		w.check()
	}
	w.t.Fatal("never settles")
}

func (w *world) verdict() {
	w.settle()
	history := w.engines[w.incarnation()]
	want, got := state(history), map[uint64]bool{}
	for _, a := range w.applied {
		if a.incarnation != w.incarnation() {
			w.t.Fatalf("a batch of engine %d is left, now %d", a.incarnation, w.incarnation())
		}
		history[a.seq].apply(got)
	}
	switch st, reason := w.m.state(); st {
	case Exact:
		if !maps.Equal(want, got) {
			w.t.Fatalf("exact, but holds %d blocks, the engine %d", len(got), len(want))
		}
	case Partial:
		if w.query {
			w.t.Fatalf("partial, and there is a local indexer: %s", reason)
		}
		for name := range got {
			if !want[name] {
				w.t.Fatalf("partial, and claims block %d, which the engine lost", name)
			}
		}
	default:
		w.t.Fatalf("settled as %s: %s", st, reason)
	}
}

func runWorld(t testing.TB, data []byte) *world {
	ring, buffer := 1<<20, 64
	if len(data) > 0 {
		ring = []int{1 << 20, 40, 8}[data[0]%3]
		buffer = []int{64, 3}[data[0]/3%2]
	}
	w := newWorld(t, ring, buffer, len(data) > 0 && data[0]/6%2 == 1)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := 1; i+1 < len(data); i += 2 {
		w.step(data[i], data[i+1], rng)
	}
	w.verdict()
	return w
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 9, 0, 0, 0, 2, 0, 0, 0, 3, 0, 3, 0, 6, 0, 7, 7})
	f.Add([]byte{1, 9, 0, 6, 0, 7, 1, 0, 0, 3, 0, 11, 0, 0, 0, 3, 0, 9, 0, 6, 0, 7, 7})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 600 { // every step checks everything: longer runs teach little and cost their square
			runWorld(t, data)
		}
	})
}

// TestMachineInManyWorlds is the fuzz target with random input, and checks that the worlds are not trivial.
func TestMachineInManyWorlds(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 15))
	exact, partial, restarts, resumed, queried := 0, 0, 0, 0, 0
	for range 8_000 {
		data := make([]byte, 1+rng.IntN(400))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		w := runWorld(t, data)
		restarts += len(w.engines) - 1
		if w.saved != nil {
			resumed++
		}
		if st, _ := w.m.state(); w.query {
			queried++
		} else if st == Exact {
			exact++
		} else {
			partial++
		}
	}
	t.Logf("exact %d, partial %d, with an indexer %d, restarts %d, saved %d", exact, partial, queried, restarts, resumed)
	if queried < 2000 || exact < 1000 || partial < 100 || restarts < 5000 || resumed < 2000 {
		t.Fatal("the worlds are too alike")
	}
}
