// Package fleet routes to a set of HTTP engines (package engine): a Router whose workers are the engines that can serve now.
//
// Each engine is followed by one goroutine. It is described and becomes a worker of the router once it is healthy, with a feed for each of its ranks;
// while it is ejected or draining it is no candidate, and its feeds go on, so that it comes back with all it holds. The set comes from code (Add,
// Remove, Set) or from a file that is watched (Watch).
//
// A request holds a Lease: it names the engine and the rank, and books them until Done. Forward and Complete do all of it, and ask another engine as
// long as nothing of the answer was given away.
package fleet
