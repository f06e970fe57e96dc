// Package router decides which worker should serve a prompt. It is the one place where the index (who holds which
// prefix), the load ledger (who is busy with what) and the scheduler (what that costs) meet.
//
// A request: tokens are hashed and matched without the router's lock; then, in one step under it, the loads are read, the
// candidates scored, one is picked, and if the request has an id its blocks are booked. So a burst of concurrent requests
// spreads, and asking without an id changes nothing.
//
// An event: each rank has a lock of its own, held while one event is applied to the index. Removing a rank marks it dead
// under that lock, so nothing that was queued for it can bring it back.
//
// What events say is in the index (device) and the tiers below it; what is presumed without them, or ahead of them, is beside
// both. Save writes the first two with the positions of the feeds; ranks that Load restores wait in their slots until
// AddWorker claims them.
//
// Locks, outermost first: admin (workers join, leave, are saved and loaded, one at a time), a feed that is frozen by Save, Router.mu, rank.mu. The index has its own below
// all of them. Router.mu is never held while a feed is stopped or an index is emptied.
//
// A request that has to wait (package queue) leaves a Ticket behind. Whoever makes room decides for it, under Router.mu; see
// wait.go.
//
// A Router starts goroutines only for a worker that is given with event endpoints (package feed) and for the routers it shares
// load with (package replica), and has a timer only while requests wait; Close stops them all.
package router
