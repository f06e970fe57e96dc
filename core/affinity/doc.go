// Package affinity remembers which worker rank serves a session, so that its next request finds its cache again.
//
// A Table knows sessions by id. Bind, called with the pick of a request, ties the session to the rank that was picked and
// gives a Lease on it; Release ends the lease when the request ends. A session without leases is forgotten after the
// time to live; one with a lease never is. Home tells where a session is tied to, for the next pick to prefer
// (schedule.Constraints.Home): the preference gives way where that rank cannot take the request.
//
// When a request of a tied session was picked another rank, the mode decides. Soft: the session moves there. Hard: Bind
// refuses with ErrMoved, and the session is forgotten, so that its next request may be tied anew. These are Dynamo 1.6.1's
// modes. There a session's first requests wait for each other; here pick and Bind are one step under the caller's lock, so
// there is nothing to wait for.
//
// A table holds at most MaxSessions sessions of at most MaxIDBytes. When it is full, the session that has been idle longest
// makes room; if all hold leases, Bind refuses with ErrFull.
//
// No call works for all sessions: those of a rank that is gone, and those whose time comes at one moment, are forgotten at once, and taken out of memory
// a few with each call.
//
// A Table is not safe for concurrent use: its owner guards it. It reads no clock: now is nanoseconds on any clock of the
// caller, and does not go back. Package affinity/model is the literal truth that fuzzing compares with.
package affinity
