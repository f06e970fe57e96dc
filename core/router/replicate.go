package router

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// This file is where routers share load (package replica): each hears which requests the others placed, and counts them.

// Replicas says how a router finds the others that route to the same workers.
type Replicas struct {
	Bind    string   `json:"bind"`    // endpoint to publish on, "tcp://*:5600"; "": this router only listens
	Connect []string `json:"connect"` // the others' endpoints; this router's own may be among them
	ID      uint64   `json:"id"`      // among the replicas; 0: a random one
	Model   string   `json:"model"`   // routers of other models or groups do not concern this one
	Group   string   `json:"group"`   // "" is "default"

	PeerTimeoutSecs float64 `json:"peer_timeout_secs"` // a router that is out of reach for so long is gone; 0: 30
}

// ParseReplicas reads a JSON object with the fields of Replicas. Unknown keys are refused.
func ParseReplicas(data []byte) (c Replicas, err error) {
	return c, strict(data, "replicas", &c, "bind", "connect", "id", "model", "group", "peer_timeout_secs")
}

// Replicated says how a router is known to the others.
type Replicated struct {
	Bind string `json:"bind"` // endpoint that others connect to, its port resolved; "" if there is none
	ID   uint64 `json:"id"`
}

// Mesh carries what routers tell each other: *replica.Mesh, or one over an event plane.
type Mesh interface {
	// Publish tells the others of e, which is borrowed for the call. It is called with the router's lock held: it must not block.
	Publish(e *wire.SequenceEvent)
	Stats() replica.Stats
	// Close ends it; the sink is not called any more when it returns.
	Close()
}

// Share joins the routers that share load by a mesh that join makes, which tells the sink of the others; as Replicate does. Errors: those of join,
// ErrInvalidArgument, ErrClosed.
func (r *Router) Share(join func(replica.Sink) (Mesh, error)) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	closed, joined := r.closed, r.mesh != nil
	r.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case joined:
		return fmt.Errorf("%w: the router shares load already", ErrInvalidArgument)
	}
	r.chain()
	mesh, err := join(replicaSink{r})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mesh = mesh
	return nil
}

// Replicate joins the routers that share load, once and until the router is closed. Delivery is best effort: what was placed
// before a router joins it does not hear. Errors: ErrInvalidArgument (also a second call), ErrCannotConnect (an endpoint
// cannot be bound), ErrClosed.
func (r *Router) Replicate(c Replicas) (Replicated, error) {
	if !finiteNonNegative(c.PeerTimeoutSecs) || c.PeerTimeoutSecs > math.MaxInt32 {
		return Replicated{}, fmt.Errorf("%w: peer_timeout_secs=%v, expected 0 to %d", ErrInvalidArgument, c.PeerTimeoutSecs, math.MaxInt32)
	}
	var mesh *replica.Mesh
	err := r.Share(func(sink replica.Sink) (_ Mesh, err error) {
		mesh, err = replica.New(replica.Config{
			Bind: c.Bind, Connect: c.Connect, ID: c.ID, Model: c.Model, Group: c.Group, BlockSize: uint32(r.blockSize),
			PeerTimeout: time.Duration(c.PeerTimeoutSecs * float64(time.Second)),
		}, sink)
		switch {
		case errors.Is(err, replica.ErrInvalid), errors.Is(err, zmq.ErrEndpoint):
			return nil, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrCannotConnect, err)
		}
		return mesh, nil
	})
	if err != nil {
		return Replicated{}, err
	}
	return Replicated{Bind: mesh.Addr(), ID: mesh.ID()}, nil
}

// chain has the ledger know blocks by their sequence hashes, as other routers do. It is called once, mostly by a router that has no bookings yet; one
// that has many decides nothing meanwhile (load.Ledger.Chain).
func (r *Router) chain() {
	r.sequenced.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.chained {
		r.chained = true
		r.ledger.Chain()
	}
}

// tellPlaced tells the others of a booking, so that they count what this router does: blocks that it shares with nobody go
// under hashes that nobody else has, as in Dynamo. r.mu is held.
func (r *Router) tellPlaced(s *scratch, q *Request, b *load.Booking) {
	if r.mesh == nil {
		return
	}
	sequences := s.sequences[:len(b.Blocks)]
	if b.Private > 0 {
		s.private = slices.Grow(s.private[:0], b.Private)
		for range b.Private {
			s.private = append(s.private, block.SequenceHash(rand.Uint64()))
		}
		sequences = s.private
	}
	r.mesh.Publish(&wire.SequenceEvent{
		Kind: wire.SequenceAdded, RequestID: b.ID, Worker: b.Rank, LoRAName: q.LoRAName,
		HasSequences: r.config.RouterTrackActiveBlocks, Sequences: sequences, PrefillTokens: uint64(b.PrefillTokens), UntrackedTokens: !r.config.RouterTrackPrefillTokens,
		HasDuration: b.PrefillModeled, PrefillDuration: time.Duration(b.PrefillNanos),
	})
}

// tell tells the others what became of a request that this router placed: of others' requests their routers tell. r.mu is held.
func (r *Router) tell(kind wire.SequenceKind, id string, rank worker.Rank) {
	if r.mesh != nil {
		r.mesh.Publish(&wire.SequenceEvent{Kind: kind, RequestID: id, Worker: rank})
	}
}

// replicaSink hears what other routers did.
type replicaSink struct{ r *Router }

// Apply implements replica.Sink.
func (s replicaSink) Apply(events []wire.SequenceEvent) {
	s.hear(func() {
		for i := range events {
			s.r.hear(&events[i])
		}
	})
}

// Gone implements replica.Sink.
func (s replicaSink) Gone(router uint64) {
	r := s.r
	var d load.Departure
	s.hear(func() { d = r.ledger.Departed(load.Origin(router), r.now()) })
	for more := true; more; { // others have turns at the lock meanwhile
		more = false // unless it is closed
		s.hear(func() { _, more = r.ledger.DropOrigin(&d, r.now()) })
	}
}

func (s replicaSink) hear(body func()) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.ledger.Expire(r.now()) // nobody else may call here, and the others wait for the word
	body()
	r.settle()
}

// hear applies one event of another router. Whatever is not known here does not concern this router: a worker it does not
// have, a request whose placement was lost, an id that is booked already. r.mu is held.
func (r *Router) hear(e *wire.SequenceEvent) {
	w := r.workers[e.Worker.ID]
	if w == nil || w.ranks[e.Worker.DPRank] == nil || e.RouterID == 0 {
		return
	}
	slot, now := w.ranks[e.Worker.DPRank].slot, r.now()
	switch e.Kind {
	case wire.SequenceAdded:
		b := load.Booking{ID: e.RequestID, Slot: slot, Rank: e.Worker, Origin: load.Origin(e.RouterID)}
		if r.config.RouterTrackActiveBlocks {
			r.heard = r.heard[:0] // what is shared is for the router to say that placed it
			for _, h := range e.Sequences {
				r.heard = append(r.heard, block.Hash(h))
			}
			b.Blocks = r.heard
		}
		if r.config.RouterTrackPrefillTokens && !e.UntrackedTokens {
			b.PrefillTokens = int(min(e.PrefillTokens, math.MaxInt32))
			b.PrefillModeled, b.PrefillNanos = e.HasDuration && b.PrefillTokens > 0, e.PrefillDuration.Nanoseconds()
		}
		_ = r.ledger.Book(&b, now)
	case wire.SequencePrefilled:
		r.freed(e.Worker)
		r.ledger.RemotePrefillComplete(e.RequestID, slot, load.Origin(e.RouterID), now)
	case wire.SequenceFreed:
		r.ledger.RemoteFree(e.RequestID, slot, load.Origin(e.RouterID), now)
	}
}
