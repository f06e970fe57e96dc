package feed

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/internal/xxh3"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Status is what a feed knows about its rank.
type Status struct {
	State    State
	Reason   string    // why not exact, its first word one of a fixed set when partial; when exact ""
	Since    time.Time // when State became what it is
	LastSeq  uint64    // number of the last batch applied
	HasSeq   bool      // LastSeq means something
	Counters map[string]uint64
}

// Feed follows one engine until it is closed.
//
// All of it belongs to whoever holds step, which is the goroutine of run while it works; except status, guarded by mu, and
// the tally, which is safe to read.
type Feed struct {
	step sync.Mutex // outermost: taken before anything the sink takes

	applier
	cfg     Config
	machine *machine
	counts  Tally
	began   time.Time
	seed    uint64 // of fingerprints; random, so that nobody makes batches that look alike
	sub     *zmq.Subscriber
	request *request

	ctx    context.Context
	cancel context.CancelFunc
	work   owned.Group

	mu     sync.Mutex
	status Status
}

// Start begins to follow; it does no I/O itself. Endpoints that cannot be used show in the status.
func Start(cfg Config) *Feed {
	f := &Feed{cfg: cfg, began: time.Now(), seed: rand.Uint64()}
	f.applier = applier{rank: cfg.Rank, sink: cfg.Sink, norm: wire.NewNormalizer(cfg.BlockSize), tally: &f.counts,
		intake: cfg.Intake, seed: f.seed, compares: cfg.Query != ""}
	f.journal = newJournal(&cfg)
	f.machine = newMachine(cfg.settings(), orders{f})
	if cfg.Resume != nil {
		f.resume(cfg.Resume)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.status.Since = f.began
	f.publish()
	if cfg.Stream == nil {
		f.sub = zmq.Subscribe(cfg.Endpoint, []string{cfg.Topic}, cfg.ZMQ)
	}
	f.work.Go(f.run)
	return f
}

// Close stops following and returns when every goroutine is gone; the sink is not called any more. The view stays as it
// is. The caller must not hold a lock that the sink takes. It may be called more than once.
func (f *Feed) Close() {
	f.cancel()
	if f.sub != nil {
		f.sub.Close()
	} else {
		f.cfg.Stream.Close()
	}
	f.work.Wait()
}

// Lend calls fill if the feed knows nothing of its rank yet and is about to ask for everything, and tells whether it did. fill gives
// the sink a view from elsewhere, which nothing proves: it answers until the feed has a view of its own, or knows that there is none. No other
// call of the sink is made meanwhile. The caller must not hold a lock that the sink takes.
func (f *Feed) Lend(fill func()) bool {
	f.step.Lock()
	defer f.step.Unlock()
	if !f.machine.lend() {
		return false
	}
	fill()
	return true
}

// Status gives the present state. It may be called at any time, by anyone.
func (f *Feed) Status() Status {
	f.mu.Lock()
	s := f.status
	f.mu.Unlock()
	s.Counters = f.counts.Snapshot()
	return s
}

func (f *Feed) now() time.Duration { return time.Since(f.began) }

func (f *Feed) run() {
	var engine <-chan zmq.Event // one of these two
	var stream <-chan StreamEvent
	if f.sub != nil {
		engine = f.sub.Events()
	} else {
		stream = f.cfg.Stream.Events()
	}
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	var set time.Duration // when the alarm rings; it may ring too early, never too late
	for {
		if due, ok := f.machine.deadline(); ok && (set == 0 || due < set) {
			alarm.Reset(due - f.now())
			set = due
		}
		var replies chan reply
		if f.request != nil {
			replies = f.request.replies
		}
		select {
		case <-f.ctx.Done():
			return
		case e, ok := <-engine:
			if !ok {
				return
			}
			f.guarded(func() { f.subscribed(e) })
		case e, ok := <-stream:
			if !ok {
				return
			}
			f.guarded(func() { f.streamed(e) })
		case r := <-replies:
			f.guarded(func() { f.replied(r) })
		case <-alarm.C:
			set = 0
			f.guarded(func() { f.machine.tick(f.now()) })
		}
		f.publish()
	}
}

// guarded runs one step; a panic is counted and everything starts anew.
func (f *Feed) guarded(step func()) {
	f.step.Lock()
	defer f.step.Unlock()
	defer func() {
		if cause := recover(); cause != nil {
			f.panicked(cause)
			f.machine.resync(f.now())
		}
	}()
	step()
}

func (f *Feed) subscribed(e zmq.Event) {
	switch e.Kind {
	case zmq.Connected:
		f.counts.add(countConnects, 1)
		f.machine.up(f.now())
	case zmq.Disconnected:
		f.counts.add(countDisconnects, 1)
		f.machine.down(e.Err.Error())
	case zmq.Message:
		m, err := wire.ParseLive(e.Frames)
		if err != nil || m.End {
			f.counts.add(countMalformed, 1)
			return
		}
		f.machine.live(f.now(), f.batch(&m))
	}
}

func (f *Feed) replied(r reply) {
	id := f.request.id
	switch r.kind {
	case replyBatch:
		f.machine.replayed(f.now(), id, f.batch(&r.msg))
	case replyEnd:
		f.machine.replayEnd(f.now(), id)
	case replyMalformed:
		f.counts.add(countMalformed, 1)
	case replyFailed:
		f.machine.replayFailed(f.now(), id, r.err.Error())
	case replyWaits:
		f.machine.waits(id)
	case replyStarted:
		f.machine.started(f.now(), id)
	case replyPart:
		f.machine.progressed(f.now(), id)
	case replyAnswer:
		defer r.free()
		f.answered(id, r.publisher, r.answer)
	}
}

func (f *Feed) batch(m *wire.Message) batch {
	return batch{seq: m.Seq, payload: m.Payload, print: xxh3.Sum(m.Payload, f.seed)}
}

// publish makes the machine's state visible.
func (f *Feed) publish() {
	state, reason := f.machine.state()
	f.mu.Lock()
	defer f.mu.Unlock()
	if state != f.status.State {
		f.journal.state(f.status.State, state, reason)
		f.status.State, f.status.Since = state, time.Now()
	}
	f.journal.leftOut(&f.counts)
	f.status.Reason = reason
	f.status.LastSeq, f.status.HasSeq = f.machine.last, f.machine.hasLast
}

// orders are the effects of the machine.
type orders struct{ *Feed }

func (o orders) ask(id int, start uint64, whole bool) (waits bool) {
	ctx, cancel := context.WithCancel(o.ctx)
	r := &request{id: id, replies: make(chan reply, replyQueue), cancel: cancel}
	o.request = r
	q := &event.RangeQuery{WorkerID: o.cfg.Rank.ID, DPRank: o.cfg.Rank.DPRank, HasStart: !whole, Start: start}
	ask := func(ctx context.Context, t *turn) error { return r.replay(ctx, t, o.cfg.Replay, start, o.cfg.ZMQ) }
	switch {
	case o.cfg.Stream != nil:
		ask = func(ctx context.Context, t *turn) error { return r.ask(ctx, t, o.cfg.Stream, q) }
	case o.cfg.Query != "":
		ask = func(ctx context.Context, t *turn) error { return r.query(ctx, t, o.cfg.Query, q, o.cfg.ZMQ) }
	}
	o.work.Go(func() { r.run(ctx, o.cfg.Limit, ask) })
	return o.cfg.Limit != nil
}

func (o orders) cancel() {
	if o.request != nil {
		o.request.cancel()
		o.request = nil
	}
}

func (o orders) count(c counter) { o.counts.add(c, 1) }
