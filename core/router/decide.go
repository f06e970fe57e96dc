package router

import (
	"errors"
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// scratch holds the buffers of one call, so that a decision allocates nothing once they have grown.
type scratch struct {
	identity   block.Identity
	hashes     []block.Hash
	sequences  []block.SequenceHash
	overlaps   []index.Overlap
	depth      []uint32 // by slot: leading blocks held
	shared     []uint32 // by slot: leading blocks that active requests hold
	eligible   []int    // positions in Router.ranks
	candidates []schedule.Candidate
	costs      []float64
}

// see hashes and matches a prompt, and runs body under r.mu with s.depth and s.shared filled for every slot.
func (r *Router) see(p *Prompt, body func(s *scratch) error) error {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	r.match(s, p)
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.gather(s)
	return body(s)
}

// match finds what is held of a prompt, and leaves r.mu locked.
func (r *Router) match(s *scratch, p *Prompt) {
	id := &s.identity
	*id = block.Identity{LoRAName: p.LoRAName, CacheSalt: p.CacheNamespace, MM: p.MM}
	s.hashes, s.sequences = block.Both(s.hashes[:0], s.sequences[:0], p.Tokens, r.blockSize, id)
	*id = block.Identity{}
	for {
		epoch := r.epoch.Load()
		s.overlaps = r.index.Match(s.overlaps[:0], index.Query{Hashes: s.hashes, Sequences: s.sequences})
		r.mu.Lock()
		if epoch == r.epoch.Load() {
			return
		}
		r.mu.Unlock() // a slot changed hands in between: what was matched may be another rank's
	}
}

// gather lays out by slot what was matched, and what active requests share. r.mu is held.
func (r *Router) gather(s *scratch) {
	r.ledger.Expire(r.now())
	slots := r.table.Cap()
	s.depth, s.shared = zeroed(s.depth, slots), zeroed(s.shared, slots)
	for _, o := range s.overlaps {
		s.depth[o.Slot] = o.Depth
	}
	r.ledger.Matched(s.shared, s.sequences)
}

func zeroed(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// candidate puts together what is known of one rank for a prompt. r.mu is held.
func (r *Router) candidate(s *scratch, k *rank, w *schedule.Weights, reuse bool) schedule.Candidate {
	slot := k.slot
	busy := r.ledger.Load(slot)
	c := schedule.Candidate{
		Slot:                slot,
		Rank:                k.id,
		DeviceBlocks:        s.depth[slot],
		CachedTokens:        schedule.EffectiveCachedTokens(s.depth[slot], 0, 0, w, r.blockSize),
		ActivePrefillTokens: busy.ActivePrefillTokens,
		ActiveBlocks:        busy.ActiveBlocks,
		ActiveRequests:      int64(busy.ActiveRequests),
	}
	if r.config.RouterTrackActiveBlocks {
		c.NewBlocks = int64(len(s.sequences))
		if reuse {
			c.NewBlocks -= int64(s.shared[slot])
		}
	}
	return c
}

// terms are what the configuration and a request's overrides add up to.
type terms struct {
	weights      schedule.Weights
	trackPrefill bool
	reuse        bool
}

func (r *Router) terms(o *schedule.Overrides) terms {
	t := terms{weights: r.weights.Apply(o), trackPrefill: r.config.RouterTrackPrefillTokens, reuse: r.config.RouterAssumeKVReuse}
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
	return errors.Join(q.Overrides.Validate(), q.Constraints.Validate())
}

// score fills s.candidates and s.costs for the eligible ranks. r.mu is held.
func (r *Router) score(s *scratch, q *Request, t *terms) error {
	var err error
	s.eligible, err = schedule.Eligible(s.eligible[:0], r.targets, &q.Constraints)
	if err != nil {
		return eligibility(err)
	}
	s.candidates = s.candidates[:0]
	for _, at := range s.eligible {
		c := r.candidate(s, r.ranks[at], &t.weights, t.reuse)
		if len(q.Constraints.PreferredTaints) > 0 {
			c.TaintWeight = q.Constraints.TaintWeight(&r.targets[at])
		}
		s.candidates = append(s.candidates, c)
	}
	req := r.costRequest(&q.Prompt, t.trackPrefill)
	req.Pinned = q.Constraints.HasWorker
	s.costs = schedule.Costs(s.costs, s.candidates, &req, &t.weights)
	return nil
}

func (r *Router) costRequest(p *Prompt, trackPrefill bool) schedule.Request {
	return schedule.Request{ISLTokens: len(p.Tokens), BlockSize: r.blockSize, TrackPrefill: trackPrefill, Role: schedule.RoleAggregated}
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
// it nothing changes. Errors: ErrInvalidArgument (also a pinned worker that is not allowed), ErrWorkerNotFound (a pinned worker
// or rank), ErrNoWorkers, ErrDuplicateRequest, ErrClosed.
func (r *Router) BestWorker(q *Request) (Choice, error) {
	if err := q.check(); err != nil {
		return Choice{}, err
	}
	t := r.terms(&q.Overrides)
	var choice Choice
	err := r.see(&q.Prompt, func(s *scratch) error {
		if err := r.score(s, q, &t); err != nil {
			return err
		}
		c := &s.candidates[schedule.Pick(s.costs, t.weights.Temperature, r.rng)]
		if q.Book {
			if err := r.book(s, q, &t, c); err != nil {
				return err
			}
		}
		choice = Choice{WorkerID: c.Rank.ID, DPRank: c.Rank.DPRank, OverlapBlocks: c.DeviceBlocks}
		return nil
	})
	return choice, err
}

func (r *Router) book(s *scratch, q *Request, t *terms, c *schedule.Candidate) error {
	b := load.Booking{ID: q.ID, Slot: c.Slot, Rank: c.Rank}
	if t.trackPrefill {
		b.PrefillTokens = int(schedule.EffectivePrefillTokens(int64(len(q.Tokens)), c.CachedTokens))
	}
	switch {
	case !r.config.RouterTrackActiveBlocks:
	case t.reuse:
		b.Sequences = s.sequences
	default:
		b.Private = len(s.sequences)
	}
	return named(r.ledger.Book(b, r.now()))
}

// named gives the ledger's argument errors the name of this package; its other errors are this package's own.
func named(err error) error {
	if errors.Is(err, load.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return err
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
	return named(call(now))
}

// MarkPrefillComplete ends the prefill load of a booked request, at its first token. Marking twice is fine.
// Errors: ErrRequestNotFound, ErrClosed.
func (r *Router) MarkPrefillComplete(id string) error {
	return r.lifecycle(func(now int64) error { return r.ledger.PrefillComplete(id, now) })
}

// Free ends a booking, its prefill included. A request that expired, or whose worker left, may still be freed once.
// Errors: ErrRequestNotFound, ErrClosed.
func (r *Router) Free(id string) error {
	return r.lifecycle(func(now int64) error { return r.ledger.Free(id, now) })
}

// AddOutputBlock books n further blocks that a request generated, and renews its expiry. With a decay fraction in [0, 1] all
// blocks that only this request holds weigh the fraction from now on. Errors: ErrInvalidArgument, ErrRequestNotFound, ErrClosed.
func (r *Router) AddOutputBlock(id string, n int, decayFraction *float64) error {
	return r.lifecycle(func(now int64) error { return r.ledger.AddOutputBlocks(id, n, decayFraction, now) })
}

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
	err := r.see(p, func(s *scratch) error {
		req := r.costRequest(p, r.config.RouterTrackPrefillTokens)
		for _, k := range r.ranks {
			c := r.candidate(s, k, &r.weights, r.config.RouterAssumeKVReuse)
			dst = append(dst, PotentialLoad{
				WorkerID: k.id.ID, DPRank: k.id.DPRank, PotentialPrefillTokens: c.PotentialPrefillTokens(&req),
				PotentialDecodeBlocks: c.PotentialDecodeBlocks(), ActiveRequests: c.ActiveRequests,
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

// OverlapRow is one rank's row of OverlapScores. Host and disk blocks are cumulative; only the device tier is indexed today.
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

// OverlapScores tells what every rank holds of a prompt. Errors: ErrClosed.
func (r *Router) OverlapScores(p *Prompt) (OverlapScores, error) {
	out := OverlapScores{BlockSize: r.blockSize}
	err := r.see(p, func(s *scratch) error {
		out.NumBlocks = len(s.hashes)
		out.Workers = make([]OverlapRow, 0, len(r.ranks))
		out.SharedCache.Ranges = [][2]uint32{}
		for _, k := range r.ranks {
			n := s.depth[k.slot]
			out.Workers = append(out.Workers, OverlapRow{WorkerID: k.id.ID, DPRank: k.id.DPRank, DeviceBlocks: n, HostPinnedBlocks: n, DiskBlocks: n})
		}
		return nil
	})
	return out, err
}
