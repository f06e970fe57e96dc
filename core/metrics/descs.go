package metrics

import "github.com/prometheus/client_golang/prometheus"

// descs are the metrics there are.
type descs struct {
	all    []*prometheus.Desc
	common prometheus.Labels

	up *prometheus.Desc

	requests, booked, prompts, hitRates, outcomes *prometheus.Desc
	hashing, matching, scheduling, total          *prometheus.Desc

	eventsApplied, eventWarnings, eventsIgnored, blockChanges, feedCounts *prometheus.Desc

	indexBlocks, indexPairs, indexPaths, indexBytes, indexEvicted, indexPresumed *prometheus.Desc

	workers, waiting, states                                       *prometheus.Desc
	pending, pendingISL, pendingCached, queued, queueRefused       *prometheus.Desc
	registered, decodeBlocks, prefillTokens, activeRequests, exact *prometheus.Desc
}

func newDescs(common prometheus.Labels) descs {
	d := descs{common: common}
	d.up = d.add("dynamo_go_up", "1 while the router is open, 0 after it was closed.")

	d.requests = d.add("dynamo_component_router_requests_total", "Requests that a rank was chosen for.")
	d.booked = d.add("dynamo_component_router_requests_started_total", "Requests that were booked on the rank chosen for them.")
	d.prompts = d.add("dynamo_component_router_input_sequence_tokens", "Prompt length in tokens, of requests that a rank was chosen for.")
	d.hitRates = d.add("dynamo_component_router_kv_hit_rate", "Part of the prompt that the chosen rank need not compute, 0 to 1.")
	d.outcomes = d.add("dynamo_go_decisions_total", "Decisions by how they ended.", "outcome")
	d.hashing = d.add("dynamo_router_overhead_block_hashing_ms", "Milliseconds to hash a prompt's blocks and sequences.")
	d.matching = d.add("dynamo_router_overhead_indexer_find_matches_ms", "Milliseconds to find what every rank holds of a prompt.")
	d.scheduling = d.add("dynamo_router_overhead_scheduling_ms", "Milliseconds to score the ranks, pick one and book it.")
	d.total = d.add("dynamo_router_overhead_total_ms", "Milliseconds of a decision, waiting for locks included.")

	d.eventsApplied = d.add("dynamo_kvrouter_kv_cache_events_applied", "KV cache events by what became of them.", "event_type", "status")
	d.eventWarnings = d.add("dynamo_kvrouter_kv_cache_event_warnings", "KV cache events that were applied and are suspicious.", "warning_kind")
	d.eventsIgnored = d.add("dynamo_go_events_ignored_total", "Events of tiers or caches that are not indexed.")
	d.blockChanges = d.add("dynamo_go_blocks_total", "Blocks in events, by what the index made of them.", "change")
	d.feedCounts = d.add("dynamo_go_feed_total", "What the feeds of all ranks met, by counter: batches, events, blocks, gaps, replays and so on.", "counter")

	d.indexBlocks = d.add("dynamo_go_index_blocks", "Distinct blocks in the index.")
	d.indexPairs = d.add("dynamo_go_index_pairs", "Pairs of a block and a rank that holds it.")
	d.indexPaths = d.add("dynamo_go_index_paths", "Runs of blocks that the index keeps together.")
	d.indexBytes = d.add("dynamo_go_index_bytes", "Memory of the index, by what it is for.", "part")
	d.indexEvicted = d.add("dynamo_go_index_evicted_blocks", "Blocks that the memory bound took from the ranks, since each was last emptied.")
	d.indexPresumed = d.add("dynamo_go_index_presumed_blocks", "Pairs of a block and a rank that is presumed to hold it, because requests were sent there.")

	class := []string{"worker_type", "policy_class"}
	d.pending = d.add("dynamo_frontend_router_queue_pending_requests", "Requests that wait for a rank.", class...)
	d.pendingISL = d.add("dynamo_frontend_router_queue_pending_isl_tokens", "Prompt tokens of the requests that wait for a rank.", class...)
	d.pendingCached = d.add("dynamo_frontend_router_queue_pending_cached_tokens", "Cached tokens of the requests that wait for a rank.", class...)
	d.queued = d.add("dynamo_go_queue_requests_total", "Requests that waited or were refused because they would have to.", class...)
	d.queueRefused = d.add("dynamo_frontend_router_queue_backpressure_total", "Requests that the queue refused.", append(class, "reason")...)

	d.workers = d.add("dynamo_go_workers", "Registered workers.")
	d.waiting = d.add("dynamo_go_waiting_ranks", "Ranks of a snapshot that no worker was registered for yet.")
	d.states = d.add("dynamo_go_ranks", "Registered ranks, by how complete the view of their cache is.", "state")

	d.registered = d.add("dynamo_component_router_worker_registered", "1 for a registered rank.", "router_worker_id", "dp_rank", "worker_type")
	rank := []string{"worker_id", "dp_rank", "worker_type"}
	d.decodeBlocks = d.add("dynamo_frontend_worker_active_decode_blocks", "Blocks that the active requests of a rank hold.", rank...)
	d.prefillTokens = d.add("dynamo_frontend_worker_active_prefill_tokens", "Prompt tokens that a rank still has to compute.", rank...)
	d.activeRequests = d.add("dynamo_go_worker_active_requests", "Requests booked on a rank.", rank...)
	d.exact = d.add("dynamo_go_worker_view_exact", "1 if the view of the rank's cache is exact, else 0.", rank...)
	return d
}

func (d *descs) add(name, help string, labels ...string) *prometheus.Desc {
	desc := prometheus.NewDesc(name, help, labels, d.common)
	d.all = append(d.all, desc)
	return desc
}
