package main

// A row is a line of the table: one piece of work, done by us and by a peer.
type row struct {
	part, name, unit, work string

	situation string // what the processes prepare: see ours.go, and peers/src/main.rs for theirs
	measure   string // what is asked of ours, "measurement" or "measurement/row of it"
	theirs    string // what is asked of a peer if it is called otherwise there
	peers     []peer // the better one counts; none: there is nothing to compare with
}

// perSecond is the unit of rows of which more is better.
const perSecond = "requests/s"

// A peer is a structure of peers/.
type peer struct{ structure, name string }

var (
	crtc  = peer{"crtc", "dynamo-kv-router 1.6.1, concurrent tree"}
	radix = peer{"radix", "dynamo-kv-router 1.6.1, radix tree"}
	chain = peer{"chain", "kv-index 2.0.0"}
	local = peer{"local", "dynamo-kv-router 1.6.1, a worker's indexer"}
	whole = peer{"crtc", "dynamo-kv-router 1.6.1"} // the router around its concurrent tree

	wheel  = peer{"wheel", "ai-dynamo-runtime 1.6.1, hashes and matches alone"}
	dynamo = peer{"dynamo", "ai-dynamo-runtime 1.6.1"}
	nginx  = peer{"nginx", "nginx, as a plain proxy"}
	direct = peer{"direct", "the engine, without a proxy"}

	shared = []peer{crtc, chain} // what several threads can use at once, as a router does
	alone  = []peer{radix}       // what has one thread; a row of its own, where it is better than the concurrent tree or may be
)

// The situations that Python programs measure.
const (
	python       = "python"        // an index and a router without a runtime
	pythonRouter = "python_router" // KvRouter, which has workers of a runtime
	pythonStream = "python_stream" // a mock engine
	pythonServed = "python_served" // KvRouter, which sends requests to workers of another process
	pythonImport = "python_import" // nothing: each sample is a new process
	pythonSize   = "python_size"   // wheels, and what they install
)

// scripts are their programs: ours, and Dynamo's.
var scripts = map[string]struct{ ours, theirs []string }{
	python:       {[]string{"bench/python_best_worker.py", "--serve"}, []string{"bench/python_wheel.py"}},
	pythonRouter: {[]string{"bench/python_router.py"}, []string{"bench/python_router_wheel.py"}},
	pythonStream: {ours: []string{"bench/python_stream.py"}},
	pythonServed: {[]string{"bench/python_generate.py", "ours"}, []string{"bench/python_generate.py", "wheel"}},
	pythonImport: {[]string{"bench/python_import.py", "ours"}, []string{"bench/python_import.py", "wheel"}},
	pythonSize:   {[]string{"bench/python_size.py", "dynamo-go", "build/bench/wheels"}, []string{"bench/python_size.py", "ai-dynamo-runtime", "build/bench/wheels"}},
}

// compared situations begin with a comparison of the answers to all queries.
var compared = map[string]bool{"share64": true, "share1": true, "share512": true}

// atMost bounds the rounds of what takes long or does not vary.
var atMost = map[string]int{"writes_5M": 3, "memory_unique": 3, "memory_share512": 1, "decide": 3, pythonServed: 3, "runtime": 3, pythonSize: 1}

var rows = []row{
	{part: "index", name: "match_256_share64", unit: "ns", work: "256 block hashes, all held by 64 workers",
		situation: "share64", measure: "match_256", peers: shared},
	{part: "index", name: "match_1024_share64", unit: "ns", work: "1,024 block hashes, all held by 64 workers",
		situation: "share64", measure: "match_1024", peers: shared},
	{part: "index", name: "match_8192_share64", unit: "ns", work: "8,192 block hashes, all held by 64 workers",
		situation: "share64", measure: "match_8192", peers: shared},
	{part: "index", name: "match_256_share64_into", unit: "ns", work: "the first row, into the caller's list",
		situation: "share64", measure: "match_256", theirs: "match_256_into", peers: []peer{chain}},
	{part: "index", name: "match_forked_8192_share64", unit: "ns", work: "8,192 block hashes with a branch every 16",
		situation: "share64", measure: "match_forked_8192", peers: shared},
	{part: "index", name: "match_share1", unit: "ns", work: "256 block hashes, all held by one worker",
		situation: "share1", measure: "match_256", peers: shared},
	{part: "index", name: "match_share512", unit: "ns", work: "256 block hashes, all held by 512 workers",
		situation: "share512", measure: "match_256", peers: shared},
	{part: "index", name: "match_sessions", unit: "ns", work: "block hashes of whole conversations (about 330)",
		situation: "share64", measure: "match_sessions", peers: shared},
	{part: "index", name: "match_sessions_into", unit: "ns", work: "the same, into the caller's list",
		situation: "share64", measure: "match_sessions", theirs: "match_sessions_into", peers: []peer{chain}},
	{part: "index", name: "match_seq_8192_share64", unit: "ns", work: "8,192 blocks; ours is given sequence hashes too",
		situation: "share64", measure: "match_seq_8192", theirs: "match_8192", peers: shared},
	{part: "index", name: "match_miss", unit: "ns", work: "256 block hashes that nobody holds",
		situation: "share64", measure: "match_miss", peers: shared},
	{part: "index", name: "scores_from_tokens_256", unit: "ns", work: "token ids of 256 blocks to every worker's depth",
		situation: "share64", measure: "scores_from_tokens_256", peers: shared},
	{part: "index", name: "scores_from_tokens_8192", unit: "ns", work: "token ids of 8,192 blocks to every worker's depth",
		situation: "share64", measure: "scores_from_tokens_8192", peers: shared},
	{part: "index", name: "match_under_writer_p99", unit: "ns", work: "p99 of conversations beside 50,000 events/s",
		situation: "share64", measure: "match_under_writer", peers: shared},
	{part: "index", name: "match_under_writer_locked_p99", unit: "ns", work: "the same, from OS threads",
		situation: "share64", measure: "match_under_writer_locked", theirs: "match_under_writer", peers: shared},
	{part: "index", name: "store_1M", unit: "ns/block", work: "storing 1 M blocks in a new index",
		situation: "writes_1M", measure: "store", peers: []peer{crtc}},
	{part: "index", name: "store_1M_radix", unit: "ns/block", work: "the same",
		situation: "writes_1M", measure: "store", peers: alone},
	{part: "index", name: "store_1M_kvindex", unit: "ns/block", work: "the same",
		situation: "writes_1M", measure: "store", peers: []peer{chain}},
	{part: "index", name: "store_known", unit: "ns/block", work: "storing blocks that another worker holds",
		situation: "writes_1M", measure: "known", peers: shared},
	{part: "index", name: "store_known_radix", unit: "ns/block", work: "the same",
		situation: "writes_1M", measure: "known", peers: alone},
	{part: "index", name: "remove_1M", unit: "ns/block", work: "removing every other conversation",
		situation: "writes_1M", measure: "remove", peers: shared},
	{part: "index", name: "remove_1M_radix", unit: "ns/block", work: "the same",
		situation: "writes_1M", measure: "remove", peers: alone},
	{part: "index", name: "clear_1M", unit: "ns", work: "emptying one of the 64 workers",
		situation: "writes_1M", measure: "clear", peers: shared},
	{part: "index", name: "clear_1M_radix", unit: "ns", work: "the same",
		situation: "writes_1M", measure: "clear", peers: alone},
	{part: "index", name: "dump_1M", unit: "ns", work: "a copy of everything as events",
		situation: "writes_1M", measure: "dump", peers: []peer{crtc}},
	{part: "index", name: "dump_1M_radix", unit: "ns", work: "the same",
		situation: "writes_1M", measure: "dump", peers: alone},
	{part: "index", name: "store_5M", unit: "ns/block", work: "storing 5 M blocks in a new index",
		situation: "writes_5M", measure: "store", peers: []peer{crtc}},
	{part: "index", name: "store_5M_radix", unit: "ns/block", work: "the same",
		situation: "writes_5M", measure: "store", peers: alone},
	{part: "index", name: "store_5M_kvindex", unit: "ns/block", work: "the same",
		situation: "writes_5M", measure: "store", peers: []peer{chain}},
	{part: "index", name: "store_5M_longest", unit: "ns", work: "the longest event of those",
		situation: "writes_5M", measure: "longest", peers: []peer{chain}},
	{part: "index", name: "store_5M_longest_radix", unit: "ns", work: "the same",
		situation: "writes_5M", measure: "longest", peers: alone},
	{part: "index", name: "gc_mark_5M", unit: "ns", work: "a garbage collection with 5 M blocks alive",
		situation: "gc_5M", measure: "mark"},
	{part: "index", name: "chain_1M_store", unit: "ns/block", work: "storing one chain of 1 M blocks",
		situation: "chain_1M", measure: "chain/store", peers: shared},
	{part: "index", name: "chain_1M_store_radix", unit: "ns/block", work: "the same",
		situation: "chain_1M", measure: "chain/store", peers: alone},
	{part: "index", name: "chain_1M_match", unit: "ns", work: "matching all of it",
		situation: "chain_1M", measure: "chain/match", peers: shared},
	{part: "index", name: "memory_unique", unit: "B", work: "memory a (block, worker) pair, 1.5 holders a block",
		situation: "memory_unique", measure: "memory", peers: shared},
	{part: "index", name: "memory_unique_radix", unit: "B", work: "the same",
		situation: "memory_unique", measure: "memory", peers: alone},
	{part: "index", name: "memory_share512", unit: "B", work: "memory a (block, worker) pair, 512 holders a block",
		situation: "memory_share512", measure: "memory", peers: []peer{crtc}},
	{part: "index", name: "memory_share512_radix", unit: "B", work: "the same",
		situation: "memory_share512", measure: "memory", peers: alone},
	{part: "index", name: "memory_share512_kvindex", unit: "B", work: "the same",
		situation: "memory_share512", measure: "memory", peers: []peer{chain}},
	{part: "index", name: "hash_4096", unit: "ns", work: "block and sequence hashes of 4,096 tokens",
		situation: "hash", measure: "hash", peers: []peer{whole}},
	{part: "decision", name: "decide_8", unit: "ns", work: "a request of 2,048 tokens, 8 workers",
		situation: "decide", measure: "decide_8", peers: []peer{whole}},
	{part: "decision", name: "decide_64", unit: "ns", work: "a request of 2,048 tokens, 64 workers",
		situation: "decide", measure: "decide_64", peers: []peer{whole}},
	{part: "decision", name: "decide_512", unit: "ns", work: "a request of 2,048 tokens, 512 workers",
		situation: "decide", measure: "decide_512", peers: []peer{whole}},
	{part: "decision", name: "decide_4096", unit: "ns", work: "a request of 2,048 tokens, 4,096 workers",
		situation: "decide", measure: "decide_4096", peers: []peer{whole}},
	{part: "decision", name: "select_64", unit: "ns", work: "scores and choice alone, 64 workers",
		situation: "select", measure: "select_64", peers: []peer{whole}},
	{part: "decision", name: "select_4096", unit: "ns", work: "scores and choice alone, 4,096 workers",
		situation: "select", measure: "select_4096", peers: []peer{whole}},
	{part: "decision", name: "active_add_free", unit: "ns", work: "booking and freeing 128 blocks, 64 workers",
		situation: "active", measure: "active_add_free_64", peers: []peer{whole}},
	{part: "decision", name: "potential_loads_512", unit: "ns", work: "the load of each of 512 workers with a request more",
		situation: "active", measure: "potential_loads_512", peers: []peer{whole}},
	{part: "replay", name: "replay_record", unit: "ns", work: "recording and indexing an event of 15.8 blocks",
		situation: "replay", measure: "record", peers: []peer{local}},
	{part: "replay", name: "replay_gap100", unit: "ns", work: "the latest 100 of 10,000 events",
		situation: "replay", measure: "gap", peers: []peer{local}},
	{part: "replay", name: "replay_dump_100k", unit: "ns", work: "everything a rank holds, 100,000 blocks",
		situation: "replay", measure: "dump/fresh", theirs: "dump", peers: []peer{local}},
	{part: "replay", name: "replay_dump_again", unit: "ns", work: "the same for who asks next",
		situation: "replay", measure: "dump/again", theirs: "dump", peers: []peer{local}},
	{part: "python", name: "python_list_hot", unit: "ns", work: "best_worker of a list of 4,096 tokens, one prompt",
		situation: python, measure: "list_hot", theirs: "hot", peers: []peer{wheel}},
	{part: "python", name: "python_list_cold", unit: "ns", work: "the same, 200 prompts in turn",
		situation: python, measure: "list_cold", theirs: "cold", peers: []peer{wheel}},
	{part: "python", name: "python_buffer_hot", unit: "ns", work: "best_worker of a uint32 buffer, one prompt",
		situation: python, measure: "buffer_hot", theirs: "hot", peers: []peer{wheel}},
	{part: "python", name: "python_buffer_cold", unit: "ns", work: "the same, 200 prompts in turn",
		situation: python, measure: "buffer_cold", theirs: "cold", peers: []peer{wheel}},
	{part: "python", name: "python_book", unit: "ns", work: "a list chosen for, booked, marked and freed",
		situation: python, measure: "book"},
	{part: "python", name: "py_block_hash_8k", unit: "ns", work: "block hashes of a list of 8,192 tokens",
		situation: python, measure: "block_hash_8k", peers: []peer{dynamo}},
	{part: "python", name: "py_radix_match", unit: "ns", work: "RadixTree.find_matches of 256 blocks, scores read",
		situation: python, measure: "radix_match", peers: []peer{dynamo}},
	{part: "python", name: "py_best_worker_list_1k", unit: "ns", work: "KvRouter.best_worker awaited, a list of 1,024 tokens",
		situation: pythonRouter, measure: "list_1k", peers: []peer{dynamo}},
	{part: "python", name: "py_best_worker_list_8k", unit: "ns", work: "the same, 8,192 tokens",
		situation: pythonRouter, measure: "list_8k", peers: []peer{dynamo}},
	{part: "python", name: "py_best_worker_buffer_4k", unit: "ns", work: "the same, a uint32 buffer of 4,096 tokens",
		situation: pythonRouter, measure: "buffer_4k", peers: []peer{dynamo}},
	{part: "python", name: "py_book_cycle", unit: "ns", work: "a list of 1,024 tokens chosen for, booked, marked and freed",
		situation: pythonRouter, measure: "book_cycle", peers: []peer{dynamo}},
	{part: "python", name: "py_potential_loads", unit: "ns", work: "KvRouter.get_potential_loads, 64 workers, 1,024 tokens",
		situation: pythonRouter, measure: "loads", peers: []peer{dynamo}},
	{part: "python", name: "py_stream_items", unit: "ns", work: "an item of a stream in async for",
		situation: pythonStream, measure: "items"},
	{part: "python", name: "py_import", unit: "ns", work: "import and a first decision; theirs: import alone",
		situation: pythonImport, measure: "import", peers: []peer{dynamo}},
	{part: "python", name: "wheel_size", unit: "B", work: "the wheel",
		situation: pythonSize, measure: "wheel", peers: []peer{dynamo}},
	{part: "python", name: "installed_size", unit: "B", work: "what it installs, without what it depends on",
		situation: pythonSize, measure: "installed", peers: []peer{dynamo}},
	{part: "runtime", name: "generate_tokens_per_cpu", unit: "ns/token", work: "CPU time of a token, 2,000 streams at once, from Python",
		situation: pythonServed, measure: "streams", peers: []peer{dynamo}},
	{part: "runtime", name: "generate_overhead", unit: "ns", work: "what KvRouter.generate takes longer than Client.direct, from Python",
		situation: pythonServed, measure: "overhead", peers: []peer{dynamo}},
	{part: "runtime", name: "generate_tokens_per_cpu_go", unit: "ns/token", work: "the first of these in Go",
		situation: "runtime", measure: "streams"},
	{part: "runtime", name: "generate_overhead_go", unit: "ns", work: "the second in Go",
		situation: "runtime", measure: "overhead"},
	{part: "serve", name: "serve_request", unit: "ns", work: "CPU time of the proxy for a request of 1,000 token ids",
		situation: "serve", measure: "whole/cpu", peers: []peer{nginx}},
	{part: "serve", name: "serve_stream", unit: "ns", work: "the same for a stream of 32 events, 128 at a time",
		situation: "serve", measure: "stream/cpu", peers: []peer{nginx}},
	{part: "serve", name: "serve_rate", unit: perSecond, work: "requests of 16 clients, load generator and engine on the same cores",
		situation: "serve", measure: "whole/rate", peers: []peer{nginx}},
	{part: "serve", name: "serve_p50", unit: "ns", work: "what a client waits for its answer, 16 clients: the median",
		situation: "serve", measure: "whole/p50", peers: []peer{nginx}},
	{part: "serve", name: "serve_p99", unit: "ns", work: "the same, of 100 requests the one before the slowest",
		situation: "serve", measure: "whole/p99", peers: []peer{nginx}},
	{part: "serve", name: "serve_direct_rate", unit: perSecond, work: "requests of 16 clients; the peer is who asks the engine itself",
		situation: "serve", measure: "whole/rate", peers: []peer{direct}},
	{part: "serve", name: "serve_direct_p50", unit: "ns", work: "what a client waits for its answer, likewise: the median",
		situation: "serve", measure: "whole/p50", peers: []peer{direct}},
	{part: "serve", name: "serve_direct_p99", unit: "ns", work: "the same, of 100 requests the one before the slowest",
		situation: "serve", measure: "whole/p99", peers: []peer{direct}},
	{part: "c", name: "c_call_overhead", unit: "ns", work: "a call from C, less the same call in Go",
		situation: "c", measure: "call"},
	{part: "c", name: "c_best_worker_overhead", unit: "ns", work: "best_worker from C, less the same in Go",
		situation: "c", measure: "best_worker"},
	{part: "c", name: "c_best_worker_overhead_apart", unit: "ns", work: "the same, with other code between the calls in Go",
		situation: "c", measure: "best_worker_apart"},
	{part: "c", name: "stream_items_c", unit: "ns", work: "an item of a stream, by the clock",
		situation: "c", measure: "stream"},
}
