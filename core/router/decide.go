package router

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/prefetch"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// scratch holds the buffers of one call, so that a decision allocates nothing once they have grown.
type scratch struct {
	watch      stopwatch
	identity   block.Identity
	hashes     []block.Hash
	sequences  []block.SequenceHash // if Router.sequenced, else none
	names      []block.Hash         // what the ledger calls the blocks
	sharedAs   []block.Hash         // room for names
	private    []block.SequenceHash // what others are told of blocks that are not shared
	overlaps   []index.Overlap
	held       int // overlaps of caches; the others are what slots are presumed to hold
	view       schedule.View
	device     []uint32 // of view
	host       []uint32 // of view
	disk       []uint32 // of view
	active     []uint32 // of view
	taints     []float64
	eligible   []worker.Slot
	candidates []worker.Slot // eligible, or Router.slots
	scores     schedule.Scores
	potentials []schedule.Potential // by slot
	now        int64                // of the decision, on the ledger's clock

	holders    []worker.Slot // caches that hold anything in a lower tier
	depths     []uint32      // of their device matches, by cache
	starts     []tier.Start
	extensions []tier.Extension

	isl         int      // tokens of the prompt
	beyond      []uint32 // of view.Shared
	constraints schedule.Constraints
	home        schedule.Home
}

// see hashes and matches a prompt, and runs body under r.mu with s.view filled in.
func (r *Router) see(p *Prompt, body func(s *scratch) error) error {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	s.now = r.now() // before the tokens are looked at, which are on their way
	r.match(s, p)
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.gather(s)
	r.share(s, p.Shared)
	return body(s)
}

// match finds what is held of a prompt, and leaves r.mu locked.
func (r *Router) match(s *scratch, p *Prompt) {
	s.watch.start()
	var id *block.Identity // that of most prompts
	if p.LoRAName != "" || p.CacheNamespace != "" || len(p.MM) > 0 {
		id = &s.identity
		*id = block.Identity{LoRAName: p.LoRAName, CacheSalt: p.CacheNamespace, MM: p.MM}
	}
	if s.sequences = s.sequences[:0]; r.sequenced.Load() {
		s.hashes, s.sequences = block.Both(s.hashes[:0], s.sequences, p.Tokens, r.blockSize, id)
	} else {
		s.hashes = block.Hashes(s.hashes[:0], p.Tokens, r.blockSize, id)
	}
	if id != nil {
		*id = block.Identity{} // it was borrowed
	}
	s.watch.hashed = s.watch.lap()
	s.isl = len(p.Tokens)
	for {
		epoch := r.epoch.Load()
		r.matchBlocks(s)
		s.watch.matched = s.watch.lap()
		r.mu.Lock()
		if epoch == r.epoch.Load() {
			return
		}
		r.mu.Unlock() // a slot changed hands in between: what was matched may be another rank's
	}
}

// gather lays out by slot what was matched, what active requests share, and what the ranks are busy with at s.now. r.mu is held.
func (r *Router) gather(s *scratch) {
	r.name(s)
	r.ledger.Expect(s.names)
	r.ledger.Expire(s.now)
	slots := r.table.Cap()
	r.ledger.Reserve(slots)
	s.device, s.active = sized(s.device, slots), sized(s.active, slots)
	clear(s.device)
	for _, o := range s.overlaps[:s.held] {
		if slot := r.caches.owners[o.Slot]; slot != nobody {
			s.device[slot] = o.Depth
		}
	}
	for _, o := range s.overlaps[s.held:] {
		s.device[o.Slot] = max(s.device[o.Slot], o.Depth)
	}
	r.ledger.Matched(s.active, s.names)
	s.view = schedule.View{Slots: slots, Loads: r.ledger.Loads(), Device: s.device, Active: s.active}
	r.gatherTiers(s, slots)
}

// name finds what the ledger calls the blocks. r.mu is held.
func (r *Router) name(s *scratch) {
	if s.names = s.hashes; !r.sequenced.Load() {
		return
	}
	if len(s.sequences) != len(s.hashes) { // it is so since the prompt was hashed
		s.sequences = block.Sequences(s.sequences[:0], s.hashes)
	}
	if r.chained {
		s.sharedAs = sized(s.sharedAs, len(s.sequences))
		for i, h := range s.sequences {
			s.sharedAs[i] = block.Hash(h)
		}
		s.names = s.sharedAs
	}
}

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// terms are what the configuration and a request's overrides add up to.
type terms struct {
	weights      schedule.Weights
	trackPrefill bool
	reuse        bool
}

func (r *Router) terms(o *schedule.Overrides) terms {
	t := r.usual
	t.weights = t.weights.Apply(o)
	if o.TrackPrefillTokens != nil {
		t.trackPrefill = *o.TrackPrefillTokens
	}
	if o.AssumeKVReuse != nil {
		t.reuse = *o.AssumeKVReuse
	}
	return t
}

// check refuses what would make the decision meaningless.
func (q *Request) check() error {
	overrides, constraints, shared := q.Overrides.Validate(), q.Constraints.Validate(), checkShared(q.Shared)
	if overrides != nil || constraints != nil || shared != nil { // Join costs something without errors too
		return errors.Join(overrides, constraints, shared)
	}
	if err := affinity.CheckID(q.SessionID); err != nil {
		return fmt.Errorf("%w: session_id: %w", ErrInvalidArgument, err)
	}
	if math.IsNaN(q.PriorityJump) || math.IsInf(q.PriorityJump, 0) {
		return fmt.Errorf("%w: priority_jump=%v must be finite", ErrInvalidArgument, q.PriorityJump)
	}
	return nil
}

// eligible fills s.candidates with the ranks that a request may go to, by the loads of s.view. r.mu is held.
func (r *Router) eligible(s *scratch, q *Request) error {
	s.candidates = r.slots
	c := r.wishes(s, q)
	if len(r.slots) > 0 && c.Free() && r.limits.Off() {
		return nil
	}
	if k := r.onlyHome(q, c); k != nil {
		s.eligible = append(s.eligible[:0], k.slot)
		s.candidates = s.eligible
		return nil
	}
	var err error
	s.eligible, err = schedule.Eligible(s.eligible[:0], r.targets, c, s.view.Loads, &r.limits)
	s.candidates = s.eligible
	if err != nil {
		if w := r.workers[c.Worker]; c.HasWorker && w != nil && w.suspended {
			return fmt.Errorf("%w: pinned worker %d is suspended", ErrNoWorkers, c.Worker)
		}
		return eligibility(err)
	}
	return nil
}

// score fills s.scores for the candidates. r.mu is held.
func (r *Router) score(s *scratch, q *Request, t *terms) {
	if len(q.Constraints.PreferredTaints) > 0 {
		s.taints = sized(s.taints, s.view.Slots)
		for i := range r.targets {
			s.taints[r.targets[i].Slot] = q.Constraints.TaintWeight(&r.targets[i])
		}
		s.view.Taints = s.taints
	}
	req := r.shape(s, t)
	req.Pinned = q.Constraints.HasWorker
	s.scores.Compute(&s.view, s.candidates, &req, &t.weights)
}

// shape is what the cost needs to know of a request; s.view is told what its blocks can be shared with.
func (r *Router) shape(s *scratch, t *terms) schedule.Request {
	req := schedule.Request{ISLTokens: s.isl, BlockSize: r.blockSize, TrackPrefill: t.trackPrefill, Role: r.role}
	if r.config.RouterTrackActiveBlocks {
		req.Blocks = len(s.hashes)
	}
	if req.Blocks == 0 || !t.reuse {
		s.view.Active = nil
	}
	return req
}

// eligibility gives the scheduler's errors the names of this package.
func eligibility(err error) error {
	switch {
	case errors.Is(err, schedule.ErrNotAllowed):
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	case errors.Is(err, schedule.ErrUnknownWorker), errors.Is(err, schedule.ErrUnknownRank):
		return fmt.Errorf("%w: %w", ErrWorkerNotFound, err)
	case errors.Is(err, schedule.ErrMissingTaint):
		return fmt.Errorf("%w: %w", ErrNoWorkers, err)
	}
	return err
}

// BestWorker chooses a worker rank for a request and, if q.Book is set, books the request there in the same step. Without
// it nothing changes. It never waits: a request that has to (package queue) is ErrTimeout; see Wait and Submit.
//
// Errors, of which the first that holds is returned: ErrInvalidArgument; ErrClosed; of eligibility ErrInvalidArgument (a pinned
// worker that is not allowed), ErrWorkerNotFound (a pinned worker or rank), ErrNoWorkers, ErrOverloaded; ErrTimeout;
// ErrDuplicateRequest; ErrSessionMoved.
func (r *Router) BestWorker(q *Request) (Choice, error) {
	choice, _, err := r.request(q, nil)
	return choice, err
}

// request decides at once or, if the request has to wait, calls push for a ticket; without push that is ErrTimeout.
func (r *Router) request(q *Request, push func(*scratch, terms, queue.Request) (*Ticket, error)) (choice Choice, waits *Ticket, err error) {
	prefetch.Head(q.Tokens)
	if err := q.check(); err != nil {
		return Choice{}, nil, err
	}
	t := &r.usual
	if q.Overrides != (schedule.Overrides{}) {
		own := r.terms(&q.Overrides)
		t = &own
	}
	err = r.see(&q.Prompt, func(s *scratch) (err error) {
		if err = r.eligible(s, q); err == nil && r.queue != nil {
			if place, wait := r.mustWait(s, q, t); wait {
				if push == nil || q.Timeout != nil && *q.Timeout <= 0 {
					err = fmt.Errorf("%w: the request has to wait, as %d others do", ErrTimeout, r.queue.Len())
					r.count(s, q, 0, err)
					return err
				}
				waits, err = push(s, *t, place)
				return err
			}
		}
		if err == nil {
			choice, err = r.decide(s, q, t)
		}
		if err != nil {
			r.count(s, q, 0, err)
		}
		return err
	})
	return choice, waits, err
}

// decide picks one of the candidates, records what the request asks to be recorded, and counts it. r.mu is held.
func (r *Router) decide(s *scratch, q *Request, t *terms) (Choice, error) {
	r.score(s, q, t)
	k := r.bySlot[s.candidates[s.scores.Pick(t.weights.Temperature, r.rng)]]
	if q.Book {
		if err := r.book(s, q, t, k); err != nil {
			return Choice{}, err
		}
	}
	if q.UpdateIndexer && r.presumed != nil {
		r.presume(s, q, k)
	}
	cached := r.cached(s, k.slot, &t.weights)
	r.sample(s, q, k, cached > 0)
	r.count(s, q, cached, nil)
	if r.decided != nil {
		r.record(s, q, k)
	}
	return Choice{WorkerID: k.id.ID, DPRank: k.id.DPRank, OverlapBlocks: s.device[k.slot]}, nil
}

func (r *Router) book(s *scratch, q *Request, t *terms, k *rank) error {
	b := load.Booking{ID: q.ID, Slot: k.slot, Rank: k.id}
	if t.trackPrefill {
		b.PrefillTokens = int(schedule.EffectivePrefillTokens(int64(s.isl), r.cached(s, k.slot, &t.weights)))
	}
	if r.prefill != nil && b.PrefillTokens > 0 {
		d := r.prefill.Duration(b.PrefillTokens, s.isl-b.PrefillTokens)
		b.PrefillModeled, b.PrefillNanos = d > 0, max(d.Nanoseconds(), 0)
	}
	switch {
	case !r.config.RouterTrackActiveBlocks:
	case t.reuse:
		b.Blocks, b.Walked = s.names, true
	default:
		b.Private = len(s.hashes)
	}
	if err := r.ledger.Book(&b, s.now); err != nil {
		return named(err)
	}
	err := r.bind(q, k)
	if err == nil {
		r.tellPlaced(s, q, &b)
	}
	return err
}

// named gives the ledger's argument errors the name of this package; its other errors are this package's own.
func named(err error) error {
	if errors.Is(err, load.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return err
}

// catchUp ends the bookings that have expired, of which a decision ends a part: who shows loads shows none of them. Others have turns at the lock
// meanwhile.
func (r *Router) catchUp() {
	for n := load.MaxEnds; n == load.MaxEnds; {
		now := r.now()
		r.mu.Lock()
		n = r.ledger.Expire(now)
		r.mu.Unlock()
	}
}

// lifecycle runs one ledger call under the lock.
func (r *Router) lifecycle(call func(now int64) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	now := r.now()
	r.ledger.Expire(now)
	defer r.settle()
	if err := call(now); err != nil {
		return named(err)
	}
	return nil
}

// MarkPrefillComplete ends the prefill load of a booked request, at its first token. Marking twice is fine.
// Errors: ErrRequestNotFound, ErrClosed.
func (r *Router) MarkPrefillComplete(id string) error {
	return r.lifecycle(func(now int64) error {
		if r.mesh == nil && r.nobodyWaits() {
			return r.ledger.PrefillComplete(id, now)
		}
		at, booked := r.ledger.Placed(id)
		r.freed(at.Rank)
		err := r.ledger.PrefillComplete(id, now)
		if booked && err == nil {
			r.tell(wire.SequencePrefilled, id, at.Rank)
		}
		return err
	})
}

// Renew says that a booked request is alive, though it makes no progress that is told otherwise: it expires later. Errors: ErrRequestNotFound,
// ErrClosed.
func (r *Router) Renew(id string) error {
	return r.lifecycle(func(now int64) error { return r.ledger.Renew(id, now) })
}

// Free ends a booking, its prefill included. A request that expired, or whose worker left, may still be freed once. What
// another router placed (Replicate) is found only there.
// Errors: ErrRequestNotFound, ErrClosed.
func (r *Router) Free(id string) error {
	return r.lifecycle(func(now int64) error { return r.ledger.Free(id, now) })
}

// AddOutputBlock books n further blocks that a request generated, and renews its expiry. With a decay fraction in [0, 1] all
// blocks that only this request holds weigh the fraction from now on. Errors: ErrInvalidArgument, ErrRequestNotFound, ErrClosed.
func (r *Router) AddOutputBlock(id string, n int, decayFraction *float64) error {
	return r.lifecycle(func(now int64) error { return r.ledger.AddOutputBlocks(id, n, decayFraction, now) })
}

// TracksOutput tells whether who carries requests should book what they generate (AddOutputBlock).
func (r *Router) TracksOutput() bool { return r.config.RouterTrackOutputBlocks }

// PotentialLoad is what a rank would be busy with if it took the prompt.
type PotentialLoad struct {
	WorkerID               uint64 `json:"worker_id"`
	DPRank                 uint32 `json:"dp_rank"`
	PotentialPrefillTokens int64  `json:"potential_prefill_tokens"` // active ones and the prompt's uncached ones
	PotentialDecodeBlocks  int64  `json:"potential_decode_blocks"`  // active ones and the prompt's full blocks, shared ones once
	ActiveRequests         int64  `json:"active_requests"`
}

// PotentialLoads appends a row per rank, by worker id and rank. An empty prompt gives the present load. Errors: ErrClosed.
func (r *Router) PotentialLoads(dst []PotentialLoad, p *Prompt) ([]PotentialLoad, error) {
	t := &r.usual
	r.catchUp()
	err := r.see(p, func(s *scratch) error {
		req := r.shape(s, t)
		s.potentials = s.view.Potentials(s.potentials, &req, &t.weights)
		dst = slices.Grow(dst, len(r.targets))
		for i := range r.targets {
			k, slot := &r.targets[i].Rank, r.targets[i].Slot
			p := s.potentials[slot]
			dst = append(dst, PotentialLoad{
				WorkerID: k.ID, DPRank: k.DPRank, PotentialPrefillTokens: p.PrefillTokens, PotentialDecodeBlocks: p.DecodeBlocks,
				ActiveRequests: int64(s.view.Loads[slot].ActiveRequests),
			})
		}
		return nil
	})
	return dst, err
}

// OverlapScores tells what every rank holds of a prompt, in Dynamo's format.
type OverlapScores struct {
	BlockSize   int          `json:"block_size"`
	NumBlocks   int          `json:"num_blocks"` // full blocks of the prompt
	Workers     []OverlapRow `json:"workers"`    // every rank, zero rows included
	SharedCache struct {
		Enabled        bool        `json:"enabled"`
		TotalHitBlocks int         `json:"total_hit_blocks"`
		Ranges         [][2]uint32 `json:"ranges"`
		Error          *string     `json:"error"`
	} `json:"shared_cache"`
}

// OverlapRow is one rank's row of OverlapScores. HostPinnedBlocks and DiskBlocks are cumulative, the extensions are not;
// external blocks count as disk.
type OverlapRow struct {
	WorkerID                  uint64  `json:"worker_id"`
	DPRank                    uint32  `json:"dp_rank"`
	DeviceBlocks              uint32  `json:"device_blocks"`
	HostPinnedBlocks          uint32  `json:"host_pinned_blocks"`
	DiskBlocks                uint32  `json:"disk_blocks"`
	HostPinnedExtensionBlocks uint32  `json:"host_pinned_extension_blocks"`
	DiskExtensionBlocks       uint32  `json:"disk_extension_blocks"`
	SharedBeyondDeviceBlocks  *uint32 `json:"shared_beyond_device_blocks"`
}

// OverlapScores tells what every rank holds of a prompt. Errors: ErrInvalidArgument (of p.Shared), ErrClosed.
func (r *Router) OverlapScores(p *Prompt) (OverlapScores, error) {
	if err := checkShared(p.Shared); err != nil {
		return OverlapScores{}, err
	}
	out := OverlapScores{BlockSize: r.blockSize}
	err := r.see(p, func(s *scratch) error {
		out.NumBlocks = len(s.hashes)
		out.Workers = make([]OverlapRow, 0, len(r.ranks))
		out.SharedCache.Ranges = [][2]uint32{}
		r.showShared(&out, s, p)
		for _, k := range r.ranks {
			row := OverlapRow{WorkerID: k.id.ID, DPRank: k.id.DPRank, DeviceBlocks: s.device[k.slot], SharedBeyondDeviceBlocks: s.sharedBeyond(k.slot)}
			if s.view.Host != nil {
				row.HostPinnedExtensionBlocks, row.DiskExtensionBlocks = s.host[k.slot], s.disk[k.slot]
			}
			row.HostPinnedBlocks = row.DeviceBlocks + row.HostPinnedExtensionBlocks
			row.DiskBlocks = row.HostPinnedBlocks + row.DiskExtensionBlocks
			out.Workers = append(out.Workers, row)
		}
		return nil
	})
	return out, err
}
