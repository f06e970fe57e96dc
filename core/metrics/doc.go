// Package metrics shows a router to Prometheus: Exporter.Write writes a page of its text format. Package metrics/collector
// gives the same rows to a registry of Prometheus' Go library.
//
// What Dynamo has a metric for has Dynamo's name and labels, so that its dashboards work: dynamo_component_router_*
// (requests, prompt lengths, hit rates, registered workers), dynamo_router_overhead_* (milliseconds of each phase of a
// decision), dynamo_frontend_worker_* (load by rank), dynamo_frontend_router_queue_* (waiting requests by policy class) and
// dynamo_kvrouter_kv_cache_* (events). Hashing blocks and hashing sequences are one pass here, shown as block_hashing; buckets
// of times begin lower, because decisions take microseconds, and only a sample of the decisions is measured. The rest is
// called dynamo_go_*: outcomes of decisions, completeness of the view, what feeds met by reason, blocks, memory of the index
// by part.
//
// Rows are bounded. Load and completeness have a row per rank, by worker id and rank, for the first Options.MaxRanks; the
// ranks beyond are added up in one row with worker_id "other" and no dp_rank, so sums over all rows are those over all ranks.
//
// Counters never go back while an Exporter lives: what a rank's feed counted stays counted when the rank is gone, up to the
// last time the Exporter looked.
//
// A page costs one pass over the ranks and takes the router's lock for as long as PotentialLoads and Health do; it touches
// nothing on the way of a decision. The text format is written here, because the library would more than double a binary;
// the tests compare every byte with what the library writes.
package metrics
