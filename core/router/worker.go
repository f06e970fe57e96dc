package router

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// MaxRanks bounds the data-parallel ranks of one worker.
const MaxRanks = 4096

// maxAnswers bounds the replays and dumps that the feeds of a router read at a time: 16 of them fill any machine, at 16 MiB of
// queue each. It is also what Dynamo's routers have.
const maxAnswers = 16

// Endpoints tell where the ranks of a worker publish: at Base with the port raised by the global rank, or as ByRank says.
// The zero value means nowhere.
type Endpoints struct {
	Base   string            // "tcp://*:5557": "*" becomes the worker's Host, the port becomes 5557 + rank
	ByRank map[uint32]string // by global rank; excludes Base; events need one for each rank of the worker
}

func (e Endpoints) none() bool { return e.Base == "" && len(e.ByRank) == 0 }

func (e Endpoints) equal(o Endpoints) bool { return e.Base == o.Base && maps.Equal(e.ByRank, o.ByRank) }

// resolve gives the endpoint of one rank, or "" if there is none.
func (e Endpoints) resolve(host string, rank uint32) (string, error) {
	if e.Base != "" {
		return zmq.RankEndpoint(e.Base, host, rank)
	}
	endpoint, ok := e.ByRank[rank]
	if !ok {
		return "", nil
	}
	return zmq.RankEndpoint(endpoint, host, 0)
}

// Worker describes a worker to AddWorker. Only ID is required.
type Worker struct {
	ID       uint64
	DPStart  uint32 // first data-parallel rank
	DPSize   uint32 // number of ranks, 1 to MaxRanks; 0 means 1
	KVEvents Endpoints
	Replay   Endpoints
	Query    Endpoints // of the ranks' local indexers; where there is one, Replay is not used
	Topic    string    // prefix of the topics to subscribe to
	// Stream gives where the events of a rank come from, instead of endpoints, when the rank joins. It is called with the router's lock held: it must
	// be quick, and not call the router.
	Stream              func(rank uint32) feed.Stream
	Host                string // stands for "*" in endpoints
	BlockSize           int    // 0, or the router's
	MaxNumBatchedTokens uint64 // 0 if unknown
	TotalKVBlocks       uint64 // 0 if unknown
	Taints              []string
	Adapters            []string // LoRA adapters that are loaded. Requests for one that any worker names go to those that name it, if they can
}

// rank is one registered worker rank.
type rank struct {
	id      worker.Rank
	slot    worker.Slot
	worker  *workerState
	feed    *feed.Feed // nil if events are applied directly
	added   time.Time
	applied feed.Tally // events that the host gave
	intake  diagnose.Intake
	watch   diagnose.Watch

	mu   sync.Mutex // held while an event is applied; guards what follows
	dead bool       // removed: nothing may be applied any more
	view            // changed under Router.mu too
	next *view      // a new one that the feed builds; nil: there is none
}

// workerState is a registered worker. spec and ranks change under Router.mu only.
type workerState struct {
	spec      Worker
	ranks     map[uint32]*rank
	suspended bool // none of them is a candidate
}

type rankEndpoints struct {
	events, replay, query string
	stream                bool // instead of them
}

// followed tells whether a feed follows the rank.
func (e rankEndpoints) followed() bool { return e.events != "" || e.stream }

// resolveAll checks the description and gives the endpoints of each of its ranks.
func (w *Worker) resolveAll(blockSize int) (map[uint32]rankEndpoints, error) {
	if w.DPSize == 0 {
		w.DPSize = 1
	}
	if w.DPSize > MaxRanks || uint64(w.DPStart)+uint64(w.DPSize) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: dp_start=%d dp_size=%d: expected 1 to %d ranks, and their sum below 2^32", ErrInvalidArgument, w.DPStart, w.DPSize, MaxRanks)
	}
	if w.BlockSize != 0 && w.BlockSize != blockSize {
		return nil, fmt.Errorf("%w: worker %d has block_size=%d, the router %d: its blocks could never match", ErrInvalidArgument, w.ID, w.BlockSize, blockSize)
	}
	if w.KVEvents.none() && !(w.Replay.none() && w.Query.none()) {
		return nil, fmt.Errorf("%w: worker %d has replay or query endpoints but no kv_events endpoints", ErrInvalidArgument, w.ID)
	}
	if w.Stream != nil && !w.KVEvents.none() {
		return nil, fmt.Errorf("%w: worker %d has both a stream and kv_events endpoints", ErrInvalidArgument, w.ID)
	}
	for _, e := range []Endpoints{w.KVEvents, w.Replay, w.Query} {
		if e.Base != "" && len(e.ByRank) > 0 {
			return nil, fmt.Errorf("%w: worker %d: endpoints are given both as base %q and by rank", ErrInvalidArgument, w.ID, e.Base)
		}
		for r := range e.ByRank {
			if r < w.DPStart || r-w.DPStart >= w.DPSize {
				return nil, fmt.Errorf("%w: worker %d: endpoint %q is for rank %d, outside [%d, %d)", ErrInvalidArgument, w.ID, e.ByRank[r], r, w.DPStart, w.DPStart+w.DPSize)
			}
		}
	}
	if w.KVEvents.Base != "" && w.Replay.Base != "" {
		if err := zmq.CheckRanges(w.KVEvents.Base, w.Replay.Base, w.Host, w.DPStart, w.DPSize); err != nil {
			return nil, fmt.Errorf("%w: worker %d: %w", ErrInvalidArgument, w.ID, err)
		}
	}
	resolved, used := make(map[uint32]rankEndpoints, w.DPSize), make(map[string]bool)
	for r := w.DPStart; r-w.DPStart < w.DPSize; r++ {
		events, err := w.KVEvents.resolve(w.Host, r)
		if err != nil {
			return nil, fmt.Errorf("%w: worker %d: kv_events: %w", ErrInvalidArgument, w.ID, err)
		}
		replay, err := w.Replay.resolve(w.Host, r)
		if err != nil {
			return nil, fmt.Errorf("%w: worker %d: replay: %w", ErrInvalidArgument, w.ID, err)
		}
		query, err := w.Query.resolve(w.Host, r)
		if err != nil {
			return nil, fmt.Errorf("%w: worker %d: query: %w", ErrInvalidArgument, w.ID, err)
		}
		if events == "" && !w.KVEvents.none() {
			return nil, fmt.Errorf("%w: worker %d: kv_events has no endpoint for rank %d", ErrInvalidArgument, w.ID, r)
		}
		for _, e := range []string{events, replay, query} {
			if e != "" && used[e] {
				return nil, fmt.Errorf("%w: worker %d: endpoint %q is given twice; each socket of each rank has its own", ErrInvalidArgument, w.ID, e)
			}
			used[e] = true
		}
		resolved[r] = rankEndpoints{events, replay, query, w.Stream != nil}
	}
	return resolved, nil
}

func (w *Worker) sameEndpoints(o *Worker) bool {
	return (w.Stream == nil) == (o.Stream == nil) && w.KVEvents.equal(o.KVEvents) && w.Replay.equal(o.Replay) && w.Query.equal(o.Query) && w.Topic == o.Topic && w.Host == o.Host
}

// AddWorker registers a worker; it is a candidate at once, whether its ports answer or not. The same id with the same
// endpoints updates the rest of the description, ranks included; other endpoints are ErrDuplicateWorker.
func (r *Router) AddWorker(spec Worker) error {
	resolved, err := spec.resolveAll(r.blockSize)
	if err != nil {
		return err
	}
	for _, e := range []*Endpoints{&spec.KVEvents, &spec.Replay, &spec.Query} {
		e.ByRank = maps.Clone(e.ByRank)
	}
	spec.Taints = slices.Compact(slices.Sorted(slices.Values(spec.Taints)))
	spec.Adapters = slices.Compact(slices.Sorted(slices.Values(spec.Adapters)))

	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	w := r.workers[spec.ID]
	n := r.table.Len() + r.caches.hidden - len(r.waiting) // those that wait give way. A rank that goes keeps its slot until it is retired
	for dp := range resolved {
		if w == nil || w.ranks[dp] == nil {
			n++
		}
	}
	full := n+len(r.waiting) > index.MaxSlots
	r.mu.Unlock() // r.admin is held: no worker joins or leaves meanwhile
	if n > index.MaxSlots {
		return fmt.Errorf("%w: worker %d would make %d ranks; a router has at most %d", ErrInvalidArgument, spec.ID, n, index.MaxSlots)
	}
	if w != nil && !w.spec.sameEndpoints(&spec) {
		return fmt.Errorf("%w: worker %d is registered with kv_events=%s replay=%s query=%s topic=%q host=%q; remove it before giving it others",
			ErrDuplicateWorker, spec.ID, w.spec.KVEvents, w.spec.Replay, w.spec.Query, w.spec.Topic, w.spec.Host)
	}
	if full {
		r.forget(r.waitingFor(0, true))
	}
	claimed := r.claim(spec.ID, resolved)
	joins := w == nil
	r.mu.Lock()
	if joins {
		w = &workerState{ranks: make(map[uint32]*rank)}
		r.workers[spec.ID] = w
	}
	w.spec = spec
	var gone []*rank
	for dp, k := range w.ranks {
		if _, keep := resolved[dp]; !keep {
			gone = append(gone, r.detach(k))
		}
	}
	for dp, e := range resolved {
		if w.ranks[dp] == nil {
			r.attach(w, dp, e, claimed[dp])
		}
	}
	for _, k := range w.ranks {
		r.setCapacity(k)
	}
	r.recandidate(spec.ID)
	r.settleAll()
	r.mu.Unlock()
	r.retire(gone)
	if joins {
		r.log.Info("worker joined", "worker_id", spec.ID, "ranks", len(resolved), "kv_events", spec.KVEvents.String())
	}
	return nil
}

// attach gives a worker one more rank, with what waited for it, if anything; followed if it has an endpoint. recandidate
// makes it a candidate. r.mu is held.
func (r *Router) attach(w *workerState, dp uint32, e rankEndpoints, loaded *waiting) {
	id := worker.Rank{ID: w.spec.ID, DPRank: dp}
	k := &rank{id: id, slot: r.table.Add(id), worker: w, added: r.clock()}
	if waited := r.waiting[id]; waited != nil {
		k.cache = waited.cache
	} else {
		k.cache = r.caches.take(k.slot)
	}
	var resume *feed.Position
	if delete(r.waiting, id); loaded != nil {
		resume, k.partial = loaded.feed, loaded.partial
	}
	if e.followed() && r.config.UseKVEvents {
		cfg := feed.Config{Rank: id, Endpoint: e.events, Replay: e.replay, Query: e.query, Topic: w.spec.Topic,
			BlockSize: r.blockSize, Sink: sink{r, k, counting(e)}, Intake: &k.intake, Resume: resume, Limit: r.answers, Log: r.log}
		if e.stream {
			cfg.Stream, cfg.ReplayTimeout = w.spec.Stream(dp), streamTimeout
		}
		k.feed = feed.Start(cfg)
	}
	w.ranks[dp] = k
}

// streamTimeout is how long the answer of a Stream may take, which comes whole: Dynamo's number.
const streamTimeout = 30 * time.Second

// counting says what a block stored twice means: two copies to an engine; nothing to a local indexer, whose states and events
// overlap.
func counting(e rankEndpoints) index.Counting {
	if e.query != "" || e.stream {
		return index.Set
	}
	return index.Count
}

// recandidate makes what is known of the candidates agree with a worker, which may be new or gone. The others' stay where they
// are: with thousands of workers, sorting them all anew whenever one joins would stop decisions for seconds. r.mu is held.
func (r *Router) recandidate(id uint64) {
	from, _ := slices.BinarySearchFunc(r.ranks, worker.Rank{ID: id}, func(k *rank, id worker.Rank) int { return k.id.Compare(id) })
	to := from
	for ; to < len(r.ranks) && r.ranks[to].id.ID == id; to++ {
		r.bySlot[r.ranks[to].slot] = nil
		r.adapters -= len(r.targets[to].Adapters)
	}
	var ranks []*rank
	if w := r.workers[id]; w != nil && !w.suspended {
		ranks = slices.SortedFunc(maps.Values(w.ranks), func(a, b *rank) int { return a.id.Compare(b.id) })
	}
	targets, slots := make([]schedule.Target, len(ranks)), make([]worker.Slot, len(ranks))
	r.bySlot = append(r.bySlot, make([]*rank, max(r.table.Cap()-len(r.bySlot), 0))...)
	for i, k := range ranks {
		spec := &k.worker.spec
		targets[i] = schedule.Target{
			Rank: k.id, Slot: k.slot, Taints: spec.Taints, Adapters: spec.Adapters, TotalBlocks: spec.TotalKVBlocks, MaxBatchedTokens: spec.MaxNumBatchedTokens,
		}
		r.adapters += len(spec.Adapters)
		slots[i] = k.slot
		r.bySlot[k.slot] = k
	}
	r.ranks = slices.Replace(r.ranks, from, to, ranks...)
	r.targets = slices.Replace(r.targets, from, to, targets...)
	r.slots = slices.Replace(r.slots, from, to, slots...)
}

// detach takes a rank from its worker; recandidate and retire do the rest. r.mu is held.
func (r *Router) detach(k *rank) *rank {
	delete(k.worker.ranks, k.id.DPRank)
	if r.sessions != nil {
		r.sessions.DropRank(k.id)
	}
	return k
}

// retire ends the bookings of detached ranks, stops their feeds and empties their index; only then can their slots be used again. r.admin is
// held, r.mu is not.
func (r *Router) retire(gone []*rank) {
	if len(gone) == 0 {
		return // no slot changes hands
	}
	for _, k := range gone {
		r.dropBookings(k.slot)
		if k.feed != nil {
			k.feed.Close()
		}
		k.mu.Lock()
		k.dead = true
		r.drop(k.cache)
		k.mu.Unlock()
		sink{r: r, rank: k}.abandon()
		if r.presumed != nil {
			r.presumed.Drop(k.slot)
		}
	}
	r.mu.Lock()
	for _, k := range gone {
		r.table.Remove(k.id)
		r.caches.give(k.cache)
	}
	r.epoch.Add(1)
	r.mu.Unlock()
}

// dropBookings ends what is booked on a slot that is no candidate any more. Others have turns at the lock meanwhile. r.mu is not held.
func (r *Router) dropBookings(slot worker.Slot) {
	for n := load.MaxEnds; n == load.MaxEnds; {
		now := r.now()
		r.mu.Lock()
		n = r.ledger.DropSlot(slot, now)
		r.mu.Unlock()
	}
}

// RemoveWorker forgets a worker: its blocks, its bookings, its feeds; also one that was loaded and never added.
func (r *Router) RemoveWorker(id uint64) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	w := r.workers[id]
	if w == nil {
		r.mu.Unlock()
		if loaded := r.waitingFor(id, false); len(loaded) > 0 {
			r.forget(loaded)
			return nil
		}
		return fmt.Errorf("%w: %d", ErrWorkerNotFound, id)
	}
	gone := r.removeLocked(w)
	r.recandidate(id)
	r.settleAll()
	r.mu.Unlock()
	r.retire(gone)
	r.forget(r.waitingFor(id, false))
	r.log.Info("worker left", "worker_id", id, "ranks", len(gone))
	return nil
}

// Suspend takes a worker out of the candidates, or back in: while it is suspended no request goes to it and Health leaves it out, but its feeds go on
// and what runs on it stays booked. Sessions that are tied to it are tied anew. Errors: ErrWorkerNotFound, ErrClosed.
func (r *Router) Suspend(id uint64, suspended bool) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	w := r.workers[id]
	if w == nil {
		return fmt.Errorf("%w: %d", ErrWorkerNotFound, id)
	}
	if w.suspended == suspended {
		return nil
	}
	w.suspended = suspended
	if suspended && r.sessions != nil {
		for _, k := range w.ranks {
			r.sessions.DropRank(k.id)
		}
	}
	r.recandidate(id)
	r.settleAll()
	return nil
}

// removeLocked takes a worker out; recandidate and retire do the rest. r.mu is held.
func (r *Router) removeLocked(w *workerState) []*rank {
	delete(r.workers, w.spec.ID)
	var gone []*rank
	for _, k := range w.ranks {
		gone = append(gone, r.detach(k))
	}
	return gone
}

// Close stops every feed, ends every wait, gives the memory of all blocks back and refuses all later calls. It is idempotent. The index is
// emptied, not closed: a match that is under way reads it without a lock of the router.
func (r *Router) Close() {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	r.closed = true
	r.abandon()
	r.ledger = load.New(load.Options{}) // nobody asks any more: no booking need be taken out of it
	var gone []*rank
	for _, w := range r.workers {
		gone = append(gone, r.removeLocked(w)...)
	}
	r.ranks, r.targets, r.slots, r.bySlot, r.adapters = nil, nil, nil, nil, 0
	mesh := r.mesh
	r.mu.Unlock()
	if mesh != nil {
		mesh.Close()
	}
	r.retire(gone)
	r.forget(r.waitingFor(0, true))
}

// WorkerInfo is one row of Workers.
type WorkerInfo struct {
	WorkerID            uint64   `json:"worker_id"`
	DPStart             uint32   `json:"dp_start"`
	DPSize              uint32   `json:"dp_size"`
	KVEvents            any      `json:"kv_events"` // base endpoint, endpoints by rank, or null
	Replay              any      `json:"replay"`
	Query               any      `json:"query"`
	Topic               string   `json:"topic"`
	Host                string   `json:"host"`
	BlockSize           int      `json:"block_size"`
	MaxNumBatchedTokens *uint64  `json:"max_num_batched_tokens"` // null: unknown
	TotalKVBlocks       *uint64  `json:"total_kv_blocks"`        // null: unknown
	Taints              []string `json:"taints"`
	Adapters            []string `json:"adapters"`
}

// String shows them in messages.
func (e Endpoints) String() string {
	if e.none() {
		return "none"
	}
	return fmt.Sprintf("%q", e.shown())
}

func (e Endpoints) shown() any {
	switch {
	case e.Base != "":
		return e.Base
	case len(e.ByRank) > 0:
		return e.ByRank
	}
	return nil
}

// Workers lists the registered workers by id.
func (r *Router) Workers() ([]WorkerInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	infos := make([]WorkerInfo, 0, len(r.workers))
	for _, id := range slices.Sorted(maps.Keys(r.workers)) {
		s := &r.workers[id].spec
		infos = append(infos, WorkerInfo{
			WorkerID: id, DPStart: s.DPStart, DPSize: s.DPSize, KVEvents: s.KVEvents.shown(), Replay: s.Replay.shown(), Query: s.Query.shown(),
			Topic: s.Topic, Host: s.Host, BlockSize: r.blockSize, MaxNumBatchedTokens: known(s.MaxNumBatchedTokens),
			TotalKVBlocks: known(s.TotalKVBlocks), Taints: append([]string{}, s.Taints...), Adapters: append([]string{}, s.Adapters...),
		})
	}
	return infos, nil
}

// known gives null for a number that was not given.
func known(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}

// find gives a live rank of a worker.
func (r *Router) find(id worker.Rank) (*rank, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	w := r.workers[id.ID]
	if w == nil {
		return nil, fmt.Errorf("%w: %d", ErrWorkerNotFound, id.ID)
	}
	if k := w.ranks[id.DPRank]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("%w: worker %d has ranks %d to %d, not dp_rank=%d", ErrWorkerNotFound, id.ID,
		w.spec.DPStart, w.spec.DPStart+w.spec.DPSize-1, id.DPRank)
}

// apply applies one event to a view of a rank, whose lock is held and which is alive.
func (r *Router) apply(k *rank, v *view, ev *event.Event, counting index.Counting) (index.Applied, error) {
	done, err := r.applyAny(v, ev, counting)
	r.events.Count(ev.Kind, done, err)
	k.intake.Applied(ev.Kind == event.Stored, done.Stored, done.Removed, feed.Refusal(err))
	if ev.Kind == event.Cleared {
		k.intake.Cleared()
	}
	return done, err
}

// ApplyEvent applies one event to the worker's rank ev.DPRank. Event ids are not checked. Blocks that the byte bound has no
// room for, or below those it took, are left out, and Health says so. Errors: ErrWorkerNotFound; ErrEventRefused (nothing
// changed).
func (r *Router) ApplyEvent(id uint64, ev *event.Event, counting index.Counting) error {
	k, err := r.find(worker.Rank{ID: id, DPRank: ev.DPRank})
	if err != nil {
		return err
	}
	return r.applyHost(k, ev, counting)
}

// applyHost is ApplyEvent for a rank, which may have been removed meanwhile. In a router without events they are counted and change nothing.
func (r *Router) applyHost(k *rank, ev *event.Event, counting index.Counting) error {
	var done index.Applied
	var err error
	if !r.config.UseKVEvents {
		r.ignored.Add(1)
		k.applied.Off()
	} else {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.dead {
			return fmt.Errorf("%w: %v was removed", ErrWorkerNotFound, k.id)
		}
		done, err = r.apply(k, &k.view, ev, counting)
	}
	k.applied.Host()
	k.applied.Applied(ev.Kind, done, err)
	if err == nil || errors.Is(err, index.ErrUnknownParent) && r.index.Evicted(k.cache) > 0 {
		return nil
	}
	return fmt.Errorf("%w: worker %v event_id=%d: %w", ErrEventRefused, k.id, ev.ID, err)
}

// sink receives what the feed of one rank learns. It holds the rank itself, not its id: after a removal its events find it
// dead, also when the same id has joined again; and no event waits for a lock of the router.
type sink struct {
	r        *Router
	rank     *rank
	counting index.Counting
}
