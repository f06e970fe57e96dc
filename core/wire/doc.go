// Package wire decodes what engines publish: ZeroMQ frames, and MessagePack batches of KV events in every form that vLLM
// and SGLang releases have used. It encodes vLLM's present form for our own publisher. It decodes and encodes what routers tell
// each other of their requests, in Dynamo's form (SequenceEvent), and what a router asks a worker for events it missed, and
// the answers (AppendRangeQuery, DecodeRangeAnswer).
//
// Nothing is trusted. A payload is first walked once without recursion, each length checked against the bytes left; only
// what passes is decoded, so nesting costs nothing and memory stays within a small multiple of the payload plus
// Limits.MaxEvents events. A batch that fails the walk is one error (ErrPayload). Inside a batch that passes, every event
// stands alone: one that cannot be decoded carries an error (Event.Err) and its neighbours are whole. Unknown fields,
// extra elements and unknown tags are skipped.
//
// Decoding says what the engine said. Whether that concerns a prefix router is the Normalizer's business: it gives
// package event's valid events, or a Verdict that names why an event is left out. Its rule is that a doubtful event may
// cost a match, and never makes a wrong one.
//
// Block names become 64 bits: signed integers are reinterpreted, of byte strings the last 8 bytes count, big-endian, so
// that vLLM's integer and byte forms of one hash agree. Shorter byte strings are refused.
package wire
