// Package mocker is an inference engine without a GPU: what a router sees of one, with honest timing.
//
// It has a paged KV cache of a given size with prefix caching and least-recently-used eviction, a prefill rate, an
// inter-token time and a limit of running requests; it is an OpenAI server with what vLLM's and SGLang's have besides (completions and
// chats, streamed or whole, token ids in and out, /tokenize, /server_info, /metrics, the data-parallel rank), and publishes its cache's events like
// vLLM does: on a PUB socket, with a replay socket beside it. Where the two differ it answers like vLLM 0.33.0. POST /fault makes requests fail.
//
// A request waits, first come first served, until a place among the running is free and the pool can hold it to its
// end; then its prompt meets the cache, and the rest of the prompt is computed in steps of at most
// max_num_batched_tokens, shared with other prompts. The first token is due at the end of the last of these steps, and
// the next ones at the inter-token time. A block is stored when the step that computes it ends; a block nobody uses stays cached
// until its memory is needed. A client that disconnects gives back everything at once.
//
// The scheduler and the pool know no clock and no socket, and are tested against a literal model. Time may pass faster
// than the host's (Speedup). A late timer does not make the engine late: everything happens at the time it was due.
//
// Limits: a toy tokenizer (tokenizer.go), no sampling (a prompt always gets the same answer), one answer to one
// prompt. Decoding neither slows down nor is slowed down by prefill. Memory for a request's whole output is set aside
// when it is admitted, so nothing is ever preempted.
package mocker
