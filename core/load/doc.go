// Package load books each request's blocks and prompt tokens on the worker rank that was chosen for it, until the request
// is freed or expires, and answers what every rank is busy with.
//
// A booking holds three things of its slot: its prompt's blocks, its output blocks, and the prompt tokens that are still
// to be computed. Blocks are counted once per slot however many requests share them; two requests share a block when
// they share the whole prefix up to it (membership is by prefix, not by set). A block weighs 1 until AddOutputBlocks
// gives a fraction: then everything only that request holds weighs the fraction. ActiveBlocks is the sum of the weights,
// rounded half up. Weights are whole billionths of a block, so sums are exact, and come back to zero.
//
// Prompt tokens count until PrefillComplete. With expected durations (a load model) they decay before that: the oldest
// prefill of a slot is taken to be the one the rank works on, see backlog; RemainingPrefillNanos is the time that is left.
// What is not tracked is not booked: a caller that does not track blocks books none, one that assumes no reuse books them
// as Private, one that does not track prefill books 0 tokens.
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
// Replicas tell each other what they book. A booking has an Origin, the router that placed the request, and counts like
// any other; the first that books an id owns it, so a second one's ErrDuplicateRequest is to be ignored. A booking is its
// owner's: what this router placed nobody else ends, and what another placed is not known to Free, PrefillComplete and
// AddOutputBlocks here; RemoteFree and RemotePrefillComplete act on what the router that tells placed, on the slot it means.
// A replica's bookings end with DropOrigin, when it is known to be gone, or expire after ten times the period of own ones,
// because not all of their progress is told; nobody is owed a late call for them.
//
// A Ledger is not safe for concurrent use: the router's mutex guards it, so that a pick and its booking are one step. It
// reads no clock: now is nanoseconds on any clock of the caller, and the ledger's time is the latest it was given: it does
// not go back. Queries answer as of then. Once warm nothing allocates; Loads is an array by slot that is read in place.
//
// Structure: a radix tree over block hashes whose edges hold runs of hashes, shared by all slots; each edge lists its
// holders as (slot, requests, weight), the only one of an edge in place, and a request keeps only the node where its prompt ends. There is no table per
// block: booking 256 blocks of which 250 are shared costs the walk and one edge of six. The tree compares whole runs and
// trusts no hash, so arbitrary hashes are counted right. Requests are linked by deadline, by slot and, while they prefill,
// in order. The numbers are those of Dynamo 1.6.1's active sequences, but for decay, which is exact where Dynamo's floating
// point may be a token off. Package load/model is the literal truth that fuzzing compares with.
//
// One call ends at most MaxEnds requests that nobody freed, so that a worker that dies with thousands of them, or a moment at which thousands expire,
// holds nobody up: Expire, DropSlot and DropOrigin are called again for the rest, which counts until then.
//
// Limits: MaxSlots slots; 2^32 blocks, 2^53 prompt tokens and 2^62 ns of prefill booked per slot; 2^20 requests of other
// routers; 65,536 remembered ids, of 16 MiB.
package load
