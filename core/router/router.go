package router

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/approx"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/ticks"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/tally"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Options are the parts of a Router a host may replace. The zero value is right for production.
type Options struct {
	Seed  *uint64          // makes ties and samples repeatable; nil seeds at random
	Clock func() time.Time // nil is time.Now, which bookings and queues hear of at most 0.2 ms later (package ticks)

	// RequestExpiry ends bookings that nobody frees, after this long without progress; 0 is 300 s.
	RequestExpiry time.Duration

	// PrefillModel replaces router_prefill_load_model. It is called by whoever books, under the router's lock: it must be quick
	// and must not call the router.
	PrefillModel schedule.PrefillModel

	// Log is told of workers that join and leave, of what happens to the view of each rank, and of faults; nil: nobody is.
	Log *slog.Logger
}

// DefaultRequestExpiry is Dynamo's: a request without progress for so long is taken to be an orphan.
const DefaultRequestExpiry = 300 * time.Second

// Router routes the requests of one model to its workers. All methods may be called from any goroutine.
type Router struct {
	blockSize int
	config    Config
	usual     terms // of requests without overrides
	clock     func() time.Time
	now       func() int64 // monotonic nanoseconds, for the ledger
	log       *slog.Logger
	index     index.Index   // of the device tier
	tiers     *tier.Tiers   // below it
	ignored   atomic.Uint64 // events of foreign caches, or of a router without events
	events    tally.Events  // applied
	epoch     atomic.Uint64 // grows, under mu, when a slot is given back
	answers   *feed.Limiter // of the feeds: how many of them read replays and dumps at a time
	scratch   sync.Pool     // *scratch
	sequenced atomic.Bool   // decisions need sequence hashes; it only ever becomes true

	admin sync.Mutex // held by whoever adds, removes, saves or loads workers; outermost

	presumed *approx.Approx // nil: nothing is presumed

	waiting map[worker.Rank]*waiting // loaded and not added; written under admin and mu, read under either

	mu      sync.Mutex // guards everything below
	closed  bool
	workers map[uint64]*workerState
	ranks   []*rank           // the candidates, sorted by id
	targets []schedule.Target // of ranks, position by position
	slots   []worker.Slot     // of ranks, position by position
	bySlot  []*rank           // the candidates again; nil for other slots
	limits  schedule.Limits
	role    schedule.Role
	prefill schedule.PrefillModel // nil: prefill load does not decay

	adapters int                       // LoRA adapters that the ranks name
	sessions *affinity.Table           // nil: no affinity
	leases   map[string]affinity.Lease // by request id

	profile *queue.Profile
	queue   *queue.Queue[*Ticket] // nil: nothing waits
	roomy   bool                  // a booking ended since the queue was looked at
	// unfinished: those who wait are not all looked at yet, because that took too long; the timer goes on.
	unfinished bool
	emptier    []worker.Rank // that may have more room since then, if anybody waits
	woken      int64         // when all who wait were last looked at
	timer      *time.Timer   // looks after the queue when nobody else does; nil until something waits
	mesh       Mesh          // nil: load is not shared with other routers
	chained    bool          // the ledger knows blocks by their sequence hashes
	heard      []block.Hash  // of another router's request
	table      *worker.Table
	caches     caches
	ledger     *load.Ledger
	rng        *rand.Rand

	decisions *tally.Decisions
	decided   *record // nil: decisions are not recorded
}

// New makes a router without workers. blockSize is the engines' KV block size in tokens, 1 to block.MaxSize.
func New(blockSize int, config Config, options Options) (*Router, error) {
	if err := block.CheckSize(int64(blockSize)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.RouterReplicaSync {
		return nil, fmt.Errorf("%w: router_replica_sync=true of a router by itself, which cannot find others: see Replicate", ErrNotImplemented)
	}
	elapsed := since(options.Clock)
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.RequestExpiry == 0 {
		options.RequestExpiry = DefaultRequestExpiry
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	seed := rand.Uint64()
	if options.Seed != nil {
		seed = *options.Seed
	}
	r := &Router{
		blockSize: blockSize,
		config:    config,
		usual:     terms{weights: config.Weights(), trackPrefill: config.RouterTrackPrefillTokens, reuse: config.RouterAssumeKVReuse},
		clock:     options.Clock,
		now:       elapsed,
		log:       options.Log,
		index:     index.New(index.Options{MaxBytes: config.share(forDevice)}),
		tiers:     tier.New(config.share(forTiers)),
		answers:   feed.NewLimiter(maxAnswers, config.answerBytes()),
		waiting:   make(map[worker.Rank]*waiting),
		workers:   make(map[uint64]*workerState),
		table:     worker.NewTable(),
		decisions: newDecisions(),
		limits:    config.limits(),
		role:      roles[config.WorkerType],
		rng:       rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15)),
	}
	if err := r.equip(options.PrefillModel); err != nil {
		return nil, err
	}
	if config.RecordDecisions > 0 {
		r.decided = newRecord(config.RecordDecisions)
	}
	r.scratch.New = func() any { return new(scratch) }
	r.ledger = load.New(load.Options{ExpiryNanos: options.RequestExpiry.Nanoseconds(), Ended: r.ended})
	if ttl, ok := config.presumes(); ok {
		ofIndex, rest := config.presumedBounds()
		r.sequenced.Store(true)
		r.presumed = approx.New(index.New(index.Options{MaxBytes: ofIndex}), approx.Options{TTLNanos: ttl, MaxBytes: rest})
	}
	return r, nil
}

// since gives nanoseconds from now on.
func since(clock func() time.Time) func() int64 {
	if clock == nil {
		return ticks.New().Now
	}
	start := clock()
	return func() int64 { return clock().Sub(start).Nanoseconds() }
}

// BlockSize is the block size the router was made with.
func (r *Router) BlockSize() int { return r.blockSize }

// DumpEvents gives what every rank holds as a JSON list of RouterEvents in Dynamo's format: stores only, each rank's blocks
// under its engine's own hashes, parents first, event ids counting from 0. Blocks hidden behind a removed one are left out.
func (r *Router) DumpEvents() ([]byte, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	ranks := append([]*rank(nil), r.ranks...)
	r.mu.Unlock()

	out, next := []byte{'['}, uint64(0)
	for _, k := range ranks {
		k.mu.Lock()
		var events []event.Event
		if !k.dead {
			events = r.dump(k, next)
		}
		k.mu.Unlock()
		for i := range events {
			if len(out) > 1 {
				out = append(out, ',')
			}
			events[i].DPRank = k.id.DPRank
			out = event.AppendRouterEvent(out, &event.RouterEvent{WorkerID: k.id.ID, Event: events[i]})
		}
		next += uint64(len(events))
	}
	return append(out, ']'), nil
}

// LoadEvents applies a dump: a JSON list of RouterEvents. Each block gets one reference, however often it is stored. A dump does not say where in
// a rank's events it was taken, so nothing proves it to be current: a rank with an event endpoint takes it only before its feed knows something
// itself, and gives it up for that; later it is counted as unproven_events. Save and Load carry the positions.
// Nothing is applied unless every event names a registered rank. An event the index refuses ends the load with
// ErrEventRefused; those before it stay.
func (r *Router) LoadEvents(data []byte) error {
	events, err := event.ParseRouterEvents(data)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	ranks := make([]*rank, len(events))
	for i := range events {
		if ranks[i], err = r.find(worker.Rank{ID: events[i].WorkerID, DPRank: events[i].Event.DPRank}); err != nil {
			return err
		}
	}
	for from := 0; from < len(events); {
		to := from + 1
		for to < len(events) && ranks[to] == ranks[from] {
			to++
		}
		if err := r.lend(ranks[from], events[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// lend applies events of a dump to a rank: if a feed follows it, while that has nothing better.
func (r *Router) lend(k *rank, events []event.RouterEvent) (err error) {
	fill := func() {
		for i := range events {
			if events[i].Err != nil {
				r.ignored.Add(1)
				k.applied.Foreign()
			} else if err = r.applyHost(k, &events[i].Event, index.Set); err != nil {
				return
			}
		}
	}
	if k.feed == nil {
		fill()
	} else if !k.feed.Lend(fill) {
		for range events {
			k.applied.Unproven()
		}
	}
	return err
}

// RankHealth tells how complete the view of one rank is.
type RankHealth struct {
	WorkerID uint64            `json:"worker_id"`
	DPRank   uint32            `json:"dp_rank"`
	State    feed.State        `json:"state"` // exact, recovering, partial, disconnected; or Presumed
	Reason   string            `json:"reason"`
	Since    float64           `json:"since"`    // Unix seconds
	LastSeq  *uint64           `json:"last_seq"` // null before the first batch, or without a feed
	Counters map[string]uint64 `json:"counters"`

	Findings []diagnose.Finding `json:"findings"` // why prompts do not find what the rank holds; empty for a healthy rank
}

// Health tells for every rank how complete its view is. A rank without event endpoints is as exact as what the host applies;
// of a router without events, every rank is Presumed.
func (r *Router) Health() ([]RankHealth, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	rows := make([]RankHealth, 0, len(r.ranks))
	ranks := make([]*rank, 0, len(r.ranks))
	for _, k := range r.ranks {
		rows = append(rows, RankHealth{WorkerID: k.id.ID, DPRank: k.id.DPRank, State: feed.Exact,
			Reason: "no event endpoint: events are applied by the host", Since: seconds(k.added), Counters: k.applied.Snapshot(), Findings: []diagnose.Finding{}})
		ranks = append(ranks, k)
	}
	r.mu.Unlock()
	for i, k := range ranks {
		if !r.config.UseKVEvents {
			rows[i].State, rows[i].Reason = Presumed, "without events: the blocks of prompts that were routed here"
			if n := r.evictedPresumed(k.slot); n > 0 {
				rows[i].Reason += fmt.Sprintf("; max_bytes: %d blocks were evicted", n)
				rows[i].Counters["evicted_blocks"] = n
			}
			continue
		}
		if k.feed != nil {
			s := k.feed.Status()
			rows[i].State, rows[i].Reason, rows[i].Since = s.State, s.Reason, seconds(s.Since)
			for name, n := range s.Counters {
				rows[i].Counters[name] += n
			}
			if s.HasSeq {
				rows[i].LastSeq = &s.LastSeq
			}
		}
		k.mu.Lock()
		missing := cmp.Or(k.partial, r.evicted(k.cache))
		if n := r.evictedBlocks(k.cache); n > 0 {
			rows[i].Counters["evicted_blocks"] = n
		}
		k.mu.Unlock()
		if missing != "" && rows[i].State == feed.Exact {
			rows[i].State, rows[i].Reason = feed.Partial, missing
		}
		rows[i].Findings = append(rows[i].Findings, r.diagnose(k, &rows[i])...)
	}
	return rows, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Stats counts what the router holds.
type Stats struct {
	Blocks         int            `json:"blocks"` // distinct blocks
	Pairs          int            `json:"pairs"`  // (block, rank) pairs
	Paths          int            `json:"paths"`
	Bytes          int            `json:"bytes"` // of the index: the sum of Memory
	Memory         Memory         `json:"memory"`
	MaxBytes       int64          `json:"max_bytes"`      // the bound on Bytes; 0: none
	EvictedBlocks  uint64         `json:"evicted_blocks"` // that the bound took from the ranks, since each was last emptied
	Workers        int            `json:"workers"`
	Ranks          int            `json:"ranks"`
	WaitingRanks   int            `json:"waiting_ranks"` // loaded from a snapshot, and not added
	ActiveRequests int            `json:"active_requests"`
	Replicas       *replica.Stats `json:"replicas"` // null: load is not shared with other routers

	IgnoredEvents  uint64 `json:"ignored_events"`  // events of foreign caches, or of a router without events
	PresumedBlocks int    `json:"presumed_blocks"` // (block, rank) pairs that are presumed; with no events, all pairs are

	// (block, rank) pairs of the lower tiers.
	HostPinnedBlocks int `json:"host_pinned_blocks"`
	DiskBlocks       int `json:"disk_blocks"`
	ExternalBlocks   int `json:"external_blocks"`
}

// Memory is where the bytes of the index are.
type Memory struct {
	Blocks int `json:"blocks"` // the blocks' hashes and names
	Paths  int `json:"paths"`  // what is known of a run of blocks as a whole
	Names  int `json:"names"`  // tables that find a block by its engine hash
	Heads  int `json:"heads"`  // tables that find a block by its sequence hash
	Sets   int `json:"sets"`   // sets of ranks
	Rest   int `json:"rest"`   // everything else, free space included

	Presumed int `json:"presumed"` // what is presumed, in all
	Tiers    int `json:"tiers"`    // the lower tiers, in all
}

// Stats counts what the router holds.
func (r *Router) Stats() (Stats, error) {
	ix, presumed := r.index.Stats(), approx.Stats{}
	if r.presumed != nil {
		presumed = r.presumed.Stats(r.now())
	}
	if !r.config.UseKVEvents {
		ix.Blocks, ix.Pairs, ix.Paths = presumed.Index.Blocks, presumed.Index.Pairs, presumed.Index.Paths
	}
	m := Memory{ix.Memory.Blocks, ix.Memory.Paths, ix.Memory.Names, ix.Memory.Heads, ix.Memory.Sets, ix.Memory.Rest, presumed.Bytes + presumed.Index.Bytes, int(r.tiers.Bytes())}
	r.catchUp()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return Stats{}, ErrClosed
	}
	active, evicted := 0, uint64(0)
	for _, k := range r.ranks {
		active += int(r.ledger.Load(k.slot).ActiveRequests)
		evicted += r.evictedBlocks(k.cache) + r.evictedPresumed(k.slot)
	}
	var replicas *replica.Stats
	if r.mesh != nil {
		st := r.mesh.Stats()
		replicas = &st
	}
	return Stats{
		Replicas: replicas,
		Blocks:   ix.Blocks, Pairs: ix.Pairs, Paths: ix.Paths, Bytes: ix.Bytes + m.Presumed + m.Tiers, Memory: m,
		MaxBytes: r.config.MaxBytes, EvictedBlocks: evicted, Workers: len(r.workers), Ranks: len(r.ranks), WaitingRanks: len(r.waiting),
		ActiveRequests: active, IgnoredEvents: r.ignored.Load(), PresumedBlocks: presumed.Index.Pairs,
		HostPinnedBlocks: r.tiers.Stats(event.HostPinned).Pairs, DiskBlocks: r.tiers.Stats(event.Disk).Pairs, ExternalBlocks: r.tiers.Stats(event.External).Pairs,
	}, nil
}
