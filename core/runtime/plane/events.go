package plane

import (
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Link is where events are published and found.
type Link struct {
	Store discovery.Store
	Host  string // that ZeroMQ publishers are reached at
	// Bus is the event plane that is published on, and followed besides ZeroMQ; nil: ZeroMQ alone.
	Bus Events
}

// Events is an event plane besides ZeroMQ. All methods are safe for concurrent use.
type Events interface {
	// Open gives a publisher's way out, and says in its channel how it is reached. Errors: ErrNoServer, ErrClosed, and those of binding.
	Open(c *discovery.Channel) (Outlet, error)
	// Follow follows a publisher whose channel says that it is reached by this plane.
	Follow(c *discovery.Channel) Inlet
}

// Outlet is a publisher's way out. All methods are safe for concurrent use.
type Outlet interface {
	// Send sends a message, without waiting. It may be lost. Errors: ErrTooLarge, ErrClosed.
	Send(e *wire.Envelope) error
	// Stats counts what can be known of.
	Stats() OutletStats
	// Close ends it. It is idempotent.
	Close()
}

// Returning is an Outlet that tells when it reaches others again, after messages may have been lost that it took.
type Returning interface {
	// OnReturn has a function called then, which must not wait. It is called once, before anything is sent.
	OnReturn(func())
}

// OutletStats count.
type OutletStats struct {
	Subscribers int    // now; -1: not known
	Dropped     uint64 // messages that were lost on this side
}

// Inlet is what comes from one publisher.
type Inlet interface {
	// Events gives what happens, in order; it is closed after Close.
	Events() <-chan Event
	// Close ends it. It is idempotent.
	Close()
}

// EventKind says what an Event is.
type EventKind uint8

// The kinds. After Connected come Arrived, then one Disconnected; a failed attempt is a Disconnected alone. What was on its way when a connection
// ended, or before the next one is known to be complete, may arrive in between.
const (
	Connected EventKind = iota + 1
	Arrived
	Disconnected
)

// Event is one thing that happens.
type Event struct {
	Kind     EventKind
	Envelope wire.Envelope // Arrived: the reader's to keep
	Size     int           // Arrived: bytes
	Err      error         // Disconnected: why; Arrived: it is no message of the publisher's
}
