package event

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Mesh is what package replica is, over the event plane: the routers of an endpoint tell each other what they place. They find each other by
// discovery, and one that is registered no more is gone.
type Mesh struct {
	pub  *Publisher
	sub  *Subscription
	sink replica.Teller

	encode func(dst []byte, events []wire.SequenceEvent) ([]byte, error)

	published, unsent, echoes, otherRouter, malformed atomic.Uint64

	mu      sync.Mutex
	routers map[uint64]uint64    // who publishes, by publisher; one router each
	ends    []wire.SequenceEvent // requests that ended last, on an event plane that may lose that
	next    int                  // place in ends
	later   *time.Timer          // says them once more
	closed  bool
}

// What is said again when an event plane is back: an end that nobody hears of is load that nobody has, for as long as a booking lasts elsewhere.
const (
	maxEnds = 1024
	// others come back in their own time; see nats.Options.ReconnectMax
	saidAgain = 3 * time.Second
)

// NewMesh joins the routers of an endpoint. Errors: those of NewPublisher and of the store.
func NewMesh(l plane.Link, scope discovery.Name, sink replica.Sink) (*Mesh, error) {
	pub, err := NewPublisher(l, scope, wire.TopicSequences, 0)
	if err != nil {
		return nil, err
	}
	m := &Mesh{pub: pub, sink: replica.Teller{To: sink}, encode: wire.AppendSequences, routers: make(map[uint64]uint64)}
	if l.Bus != nil { // Dynamo has one event a message there, and a list of them over ZeroMQ
		m.encode = func(dst []byte, events []wire.SequenceEvent) ([]byte, error) {
			return wire.AppendSequenceEvent(dst, &events[0])
		}
	}
	m.sub, err = Subscribe(l, scope, wire.TopicSequences, Options{Take: m.take, Gone: m.lose})
	if err != nil {
		pub.Close()
		return nil, err
	}
	if out, ok := pub.out.(plane.Returning); ok {
		m.ends = make([]wire.SequenceEvent, 0, maxEnds)
		m.later = time.AfterFunc(time.Hour, owned.Guarded(m.repeat))
		m.later.Stop()
		out.OnReturn(func() {
			m.repeat()
			m.mu.Lock()
			defer m.mu.Unlock()
			if !m.closed {
				m.later.Reset(saidAgain)
			}
		})
	}
	return m, nil
}

// repeat says which requests ended last. Who knows passes it over.
func (m *Mesh) repeat() {
	m.mu.Lock()
	ends := slices.Clone(m.ends)
	m.mu.Unlock()
	for i := range ends {
		m.send(&ends[i])
	}
}

// remember keeps an end to be said again.
func (m *Mesh) remember(e *wire.SequenceEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := wire.SequenceEvent{Kind: e.Kind, RequestID: e.RequestID, Worker: e.Worker, LoRAName: e.LoRAName}
	if len(m.ends) < cap(m.ends) {
		m.ends = append(m.ends, end)
		return
	}
	m.ends[m.next] = end
	m.next = (m.next + 1) % len(m.ends)
}

// ID is this router's among the others.
func (m *Mesh) ID() uint64 { return m.pub.ID() }

// Publish tells the others; e is borrowed for the call, and its RouterID does not matter.
func (m *Mesh) Publish(e *wire.SequenceEvent) {
	if e.Kind == wire.SequenceFreed && m.later != nil {
		m.remember(e)
	}
	m.send(e)
}

func (m *Mesh) send(e *wire.SequenceEvent) {
	mine := *e
	mine.RouterID = m.pub.ID()
	payload, err := m.encode(make([]byte, 0, 256+9*len(e.Sequences)), []wire.SequenceEvent{mine})
	if err != nil {
		m.unsent.Add(1)
		return
	}
	if m.pub.Publish(payload) == nil {
		m.published.Add(1)
	}
}

// Stats counts.
func (m *Mesh) Stats() replica.Stats {
	out := m.pub.out.Stats()
	if out.Subscribers < 0 {
		out.Subscribers = m.sub.Connected() // whom this router hears, hears it
	}
	s := replica.Stats{
		Connected: m.sub.Connected(), Listeners: out.Subscribers, Published: m.published.Load(), Unsent: m.unsent.Load(),
		Dropped: out.Dropped, Echoes: m.echoes.Load(), OtherRouter: m.otherRouter.Load(),
		Malformed: m.malformed.Load() + m.sub.Malformed(),
	}
	m.sink.Count(&s)
	return s
}

// Close leaves the others. The sink is not called any more when it returns. It is idempotent.
func (m *Mesh) Close() {
	m.mu.Lock()
	if m.closed = true; m.later != nil {
		m.later.Stop()
	}
	m.mu.Unlock()
	m.sub.Close()
	m.pub.Close()
}

func (m *Mesh) take(e *wire.Envelope) {
	if e.Publisher == m.pub.ID() {
		m.echoes.Add(1)
		return
	}
	var events []wire.SequenceEvent
	err := wire.NewSequenceDecoder().DecodeAll(e.Payload, func(x *wire.SequenceEvent) {
		if !m.identify(e.Publisher, x.RouterID) {
			m.otherRouter.Add(1)
			return
		}
		kept := *x
		kept.Sequences = append(kept.Sequences[:0:0], x.Sequences...)
		events = append(events, kept)
	})
	if err != nil {
		m.malformed.Add(1)
	}
	if len(events) > 0 {
		m.sink.Apply(events)
	}
}

// identify tells whether a publisher may speak for a router: the first one it speaks for, and only that.
func (m *Mesh) identify(publisher, router uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.routers[publisher]
	if !ok {
		if router == 0 || router == m.pub.ID() {
			return false
		}
		m.routers[publisher] = router
		return true
	}
	return known == router
}

func (m *Mesh) lose(publisher uint64) {
	m.mu.Lock()
	router, known := m.routers[publisher]
	delete(m.routers, publisher)
	m.mu.Unlock()
	if known {
		m.sink.Gone(router)
	}
}
