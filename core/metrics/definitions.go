package metrics

// Kind is the type of a metric.
type Kind uint8

// Kinds.
const (
	Gauge Kind = iota
	Counter
	Histogram
)

// String gives the kind's name in the text format.
func (k Kind) String() string { return [...]string{"gauge", "counter", "histogram"}[k] }

// Definition is what is known of a metric before it is read.
type Definition struct {
	Name   string
	Help   string
	Kind   Kind
	Labels []string // those that tell its rows apart
}

// The metrics there are, in the order of their names.
const (
	inputTokens = iota
	hitRate
	requestsStarted
	requests
	workerRegistered
	queueBackpressure
	queueCached
	queueISL
	queueRequests
	decodeBlocks
	prefillTokens
	blockChanges
	decisions
	eventsIgnored
	faults
	feedCounts
	findings
	hitBlocks
	hitRequests
	indexBlocks
	indexBytes
	indexEvicted
	indexPairs
	indexPaths
	indexPresumed
	queuedRequests
	ranks
	up
	waitingRanks
	activeRequests
	viewExact
	workers
	eventWarnings
	eventsApplied
	overheadHashing
	overheadMatching
	overheadScheduling
	overheadTotal
	count
)

var (
	perClass = []string{"policy_class", "worker_type"}
	perRank  = []string{"dp_rank", "worker_id", "worker_type"}
)

var definitions = [count]Definition{
	inputTokens:      {"dynamo_component_router_input_sequence_tokens", "Prompt length in tokens, of requests that a rank was chosen for.", Histogram, nil},
	hitRate:          {"dynamo_component_router_kv_hit_rate", "Part of the prompt that the chosen rank need not compute, 0 to 1.", Histogram, nil},
	requestsStarted:  {"dynamo_component_router_requests_started_total", "Requests that were booked on the rank chosen for them.", Counter, nil},
	requests:         {"dynamo_component_router_requests_total", "Requests that a rank was chosen for.", Counter, nil},
	workerRegistered: {"dynamo_component_router_worker_registered", "1 for a registered rank.", Gauge, []string{"dp_rank", "router_worker_id", "worker_type"}},

	queueBackpressure: {"dynamo_frontend_router_queue_backpressure_total", "Requests that the queue refused.", Counter, []string{"policy_class", "reason", "worker_type"}},
	queueCached:       {"dynamo_frontend_router_queue_pending_cached_tokens", "Cached tokens of the requests that wait for a rank.", Gauge, perClass},
	queueISL:          {"dynamo_frontend_router_queue_pending_isl_tokens", "Prompt tokens of the requests that wait for a rank.", Gauge, perClass},
	queueRequests:     {"dynamo_frontend_router_queue_pending_requests", "Requests that wait for a rank.", Gauge, perClass},
	decodeBlocks:      {"dynamo_frontend_worker_active_decode_blocks", "Blocks that the active requests of a rank hold.", Gauge, perRank},
	prefillTokens:     {"dynamo_frontend_worker_active_prefill_tokens", "Prompt tokens that a rank still has to compute.", Gauge, perRank},

	blockChanges:   {"dynamo_go_blocks_total", "Blocks in events, by what the index made of them.", Counter, []string{"change"}},
	decisions:      {"dynamo_go_decisions_total", "Decisions by how they ended.", Counter, []string{"outcome"}},
	eventsIgnored:  {"dynamo_go_events_ignored_total", "Events of tiers or caches that are not indexed.", Counter, nil},
	faults:         {"dynamo_go_faults_total", "Panics of the library that were recovered, in the whole process: each is a fault to report.", Counter, nil},
	feedCounts:     {"dynamo_go_feed_total", "What the feeds of all ranks met, by counter: batches, events, blocks, gaps, replays and so on.", Counter, []string{"counter"}},
	findings:       {"dynamo_go_findings", "Ranks whose cached blocks the router's prompts do not find, by cause.", Gauge, []string{"cause"}},
	hitBlocks:      {"dynamo_go_hit_blocks_total", "Blocks of the prompts of which engines reported hits: all, those that the chosen rank was known to hold, those that its engine found.", Counter, []string{"what"}},
	hitRequests:    {"dynamo_go_hit_reports_total", "Requests of which engines reported hits; only where decisions are recorded.", Counter, nil},
	indexBlocks:    {"dynamo_go_index_blocks", "Distinct blocks in the index.", Gauge, nil},
	indexBytes:     {"dynamo_go_index_bytes", "Memory of the index, by what it is for.", Gauge, []string{"part"}},
	indexEvicted:   {"dynamo_go_index_evicted_blocks", "Blocks that the memory bound took from the ranks, since each was last emptied.", Gauge, nil},
	indexPairs:     {"dynamo_go_index_pairs", "Pairs of a block and a rank that holds it.", Gauge, nil},
	indexPaths:     {"dynamo_go_index_paths", "Runs of blocks that the index keeps together.", Gauge, nil},
	indexPresumed:  {"dynamo_go_index_presumed_blocks", "Pairs of a block and a rank that is presumed to hold it, because requests were sent there.", Gauge, nil},
	queuedRequests: {"dynamo_go_queue_requests_total", "Requests that waited, or were refused because they would have had to.", Counter, perClass},
	ranks:          {"dynamo_go_ranks", "Registered ranks, by how complete the view of their cache is.", Gauge, []string{"state"}},
	up:             {"dynamo_go_up", "1 while the router is open, 0 after it was closed.", Gauge, nil},
	waitingRanks:   {"dynamo_go_waiting_ranks", "Ranks of a snapshot that no worker was registered for yet.", Gauge, nil},
	activeRequests: {"dynamo_go_worker_active_requests", "Requests booked on a rank.", Gauge, perRank},
	viewExact:      {"dynamo_go_worker_view_exact", "1 if the view of the rank's cache is exact, else 0.", Gauge, perRank},
	workers:        {"dynamo_go_workers", "Registered workers.", Gauge, nil},

	eventWarnings: {"dynamo_kvrouter_kv_cache_event_warnings", "KV cache events that were applied and are suspicious.", Counter, []string{"warning_kind"}},
	eventsApplied: {"dynamo_kvrouter_kv_cache_events_applied", "KV cache events by what became of them.", Counter, []string{"event_type", "status"}},

	overheadHashing:    {"dynamo_router_overhead_block_hashing_ms", "Milliseconds to hash a prompt's blocks and sequences, of a sample of the decisions.", Histogram, nil},
	overheadMatching:   {"dynamo_router_overhead_indexer_find_matches_ms", "Milliseconds to find what every rank holds of a prompt, of a sample of the decisions.", Histogram, nil},
	overheadScheduling: {"dynamo_router_overhead_scheduling_ms", "Milliseconds to score the ranks, pick one and book it, of a sample of the decisions.", Histogram, nil},
	overheadTotal:      {"dynamo_router_overhead_total_ms", "Milliseconds of a decision, waiting for locks included, of a sample of the decisions.", Histogram, nil},
}

// Definitions lists the metrics there are, by name.
func Definitions() []Definition { return definitions[:] }
