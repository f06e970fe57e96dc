// Package replay remembers the latest events of one rank, over an index of all it holds, and answers what happened since an
// event. It is the worker's half of recovery: a router that missed events asks for them by number, and gets either these or, when they
// are no longer kept, a dump.
//
// What an answer is, and when, is that of Dynamo 1.6.1's LocalKvIndexer (see Log.Range), except:
//
//   - An event that the index refuses, or whose id is not above the last one's, is refused and not remembered. There it is
//     remembered, and the error logged.
//   - A dump is exactly the state after the event it names. There it may be newer.
//   - Every Cleared shortens an answer; there only those without a residency domain do, which in-process publishers do not make.
//
// A range query costs a binary search and a copy of the list, which is the caller's; the blocks themselves are shared and never change. A dump is
// made once for all who wait for it, and used again, with the events since, until these are more than half of what is kept, or a
// clear or a gap in the ids makes it useless.
//
// Blocks hidden behind a removed one are not in a dump: no store can express them. Who restores from it holds fewer blocks
// from then on, never more. The package owns no goroutine and knows no socket. Its memory is the index's, and the blocks of the events kept.
package replay
