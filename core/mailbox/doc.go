// Package mailbox is a runtime for hosts with an event loop, which must not wait and cannot be called: calls, in and out, are numbers, everything that
// is asked for returns at once, and everything that happens is a notice in one stream.
//
// A notice is a Head and a payload, one MessagePack value or more. Those of one call come in order: of a call to others Begun, Items and Ended (or
// Ended alone); of one from others Request, then Cancelled and Drained as it comes. A call to others sends as many items as it has credit for: the host
// gives it with the call, and More as it takes items, so that a reader that is slow slows its worker, and nobody else. What the host answers is queued
// for the caller's socket; a host that is ahead of it waits for Drained.
//
// Services and clients are numbers too, from the same sequence as calls: none comes twice. What a number meant that has ended is an ErrUnknown.
package mailbox
