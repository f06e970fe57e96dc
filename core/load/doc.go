// Package load books each request's blocks and prompt tokens on the worker rank that was chosen for it, until the request
// is freed or expires, and answers what every rank is busy with.
//
// A booking holds three things of its slot: its prompt's blocks, its output blocks, and the prompt tokens that are still
// to be computed. Blocks are counted once per slot however many requests share them; two requests share a block when
// they share the whole prefix up to it (membership is by prefix, not by set). A block weighs 1 until AddOutputBlocks
// gives a fraction: then everything only that request holds weighs the fraction. ActiveBlocks is the sum of the weights,
// rounded half up. Weights are whole billionths of a block, so sums are exact, and come back to zero.
//
// Life of a request id:
//
//	unknown -Book-> booked -Free-> unknown
//	booked -Expire, DropSlot-> remembered -one Free or PrefillComplete, one expiry period, or Book-> unknown
//
// Booking an id that is booked is ErrDuplicateRequest; anything but Book for an unknown id is ErrRequestNotFound; marking
// prefill complete twice is fine. A remembered id holds nothing. Only bookings without progress expire: PrefillComplete
// and AddOutputBlocks renew.
//
// A Ledger is not safe for concurrent use: the router's mutex guards it, so that a pick and its booking are one step. It
// reads no clock: now is nanoseconds on any clock of the caller. Queries (Load, Matched) allocate nothing.
//
// Structure: a radix tree over sequence hashes whose edges hold runs of hashes, shared by all slots; each edge lists its
// holders as (slot, requests, weight), and a request keeps only the node where its prompt ends. There is no table per
// block: booking 256 blocks of which 250 are shared costs the walk and one edge of six. The tree compares whole runs and
// trusts no hash, so arbitrary hashes are counted right. The numbers are those of Dynamo 1.6.1's active sequences.
// Package load/model is the literal truth that fuzzing compares with.
//
// Limits: MaxSlots slots, 2^32 blocks and 2^53 prompt tokens booked per slot, at most 65,536 remembered ids.
package load
