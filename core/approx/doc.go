// Package approx presumes which blocks worker ranks hold, from the requests that were routed to them: routing without
// events, or ahead of them.
//
// A rank follows one of two policies:
//
//   - TTL, for a rank without a capacity: Route presumes every block of the prompt held for Options.TTLNanos more, the end
//     rounded up to 100 ms.
//   - LRU, for a rank with one (SetCapacity): Acquire holds the prompt's blocks until Release, Materialise adds what the
//     request generated, and while a rank has more blocks than its capacity, those that no request holds go: the least
//     recently released first, and of those the deepest first. Blocks in use never go, so a rank may be over its
//     capacity. Route uses and releases at once.
//
// The semantics are those of Dynamo 1.6.1's approximate indexers, but for one point: blocks that a request materialises
// while the rank holds equal ones count against the capacity until its release only (there the copies stay until they
// are evicted). Package approx/model is the literal truth that fuzzing compares with.
//
// The blocks are in an index of their own under their sequence hashes as engine hashes, so matches, dumps and the memory
// bound are the index's. Beside an index of real events, a rank's depth is the greater of the two: a block that only one
// of them knows, behind a block that only the other knows, is not counted, for a hole that the engine reported is a
// better witness than a presumption.
//
// Time is a parameter, nanoseconds on any one clock that does not go back. No goroutine: expiry is lazy, and whoever looks
// first ends what is due: a match some blocks only, a route twice as many as it brings, so that nothing piles up. A match that
// finds more due than it ends cuts its result down to what lives, by a walk per matched rank. So it is exact, however much
// is due at once, and never waits for more than one other caller's share at a time.
//
// Structure: per rank a radix tree over sequence hashes whose edges are runs of up to 32 blocks that came and were used
// together, and a list of runs by last use. A prompt's use moves its runs to the end of the list, the last run first: so the
// list is in order of deadlines (or releases), within a deadline by depth, its head is always a leaf, and what a use costs
// is the comparison of the prompt with its runs. The runs of all ranks of a policy are in such a list too, for expiry and the
// bound. A run is 304 bytes, in pages without pointers, and 11 to 16 in tables that grow in parts: nothing is copied at
// once, and the collector looks at none of it.
//
// Memory is bounded by two numbers: the index's own bound, and Options.MaxBytes for the rest. At the latter the runs whose time
// ends first go, then those released first, then what the oldest requests hold: those then hold nothing, so less is counted
// than is there, not more. What there is no room for is left out.
//
// Limits: the memory of runs is used again when they end, but given back only when none is left. Drop and SetCapacity
// end the rank's blocks one by one if they are few beside all runs, else they cost what the index's Drop does; and they look
// at every lease. One mutex serialises everything but matches when nothing is due.
package approx
