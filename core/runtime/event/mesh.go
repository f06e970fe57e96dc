package event

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Mesh is what package replica is, over the event plane: the routers of an endpoint tell each other what they place. They find each other by
// discovery, and one that is registered no more is gone.
type Mesh struct {
	pub  *Publisher
	sub  *Subscription
	sink replica.Teller

	encode func(dst []byte, events []wire.SequenceEvent) ([]byte, error)

	published, unsent, echoes, otherRouter, malformed atomic.Uint64

	later *time.Timer // says ends once more; nil: the event plane does not lose them

	mu      sync.Mutex
	routers map[uint64]uint64        // who publishes, by publisher; one router each
	ends    map[string]*list.Element // of order, by request
	order   *list.List               // of *ended, at most maxEnds: who ended last is at the back
	closed  bool
}

// ended is a request that ended on an event plane that may lose that.
type ended struct {
	id    string
	ranks []worker.Rank // where, at most maxRanks: an id may be used again
	runs  bool          // it is used again: nothing is said of its earlier ends, which others could take for the end of what runs
}

// What is said again when an event plane is back: an end that nobody hears of is load that nobody has, for as long as a booking lasts elsewhere.
const (
	maxEnds  = 1024
	maxRanks = 4
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
		m.ends, m.order = make(map[string]*list.Element), list.New()
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
	ends := make([]*list.Element, 0, m.order.Len())
	for at := m.order.Front(); at != nil; at = at.Next() {
		ends = append(ends, at)
	}
	m.mu.Unlock()
	for _, at := range ends {
		m.repeatOne(at)
	}
}

// repeatOne says one end, before what is placed under its id meanwhile is told, or not at all.
func (m *Mesh) repeatOne(at *list.Element) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := at.Value.(*ended)
	if e.runs || m.ends[e.id] != at {
		return
	}
	for _, rank := range e.ranks {
		m.send(&wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: e.id, Worker: rank})
	}
}

// remember notes what is to be said again, before it is said: ends, and that an id is used again.
func (m *Mesh) remember(e *wire.SequenceEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.ends[e.RequestID]
	switch {
	case e.Kind == wire.SequenceAdded && at != nil:
		at.Value.(*ended).runs = true
	case e.Kind == wire.SequenceFreed && len(e.RequestID) <= wire.MaxSequenceIDSize: // others are never sent
		if at == nil {
			id := strings.Clone(e.RequestID) // it may be a part of something long
			at = m.order.PushBack(&ended{id: id})
			m.ends[id] = at
		}
		m.order.MoveToBack(at)
		at.Value.(*ended).end(e.Worker)
		if oldest := m.order.Front(); m.order.Len() > maxEnds {
			delete(m.ends, oldest.Value.(*ended).id)
			m.order.Remove(oldest)
		}
	}
}

// end notes that the request ended on a rank, last of all.
func (e *ended) end(rank worker.Rank) {
	e.runs = false
	if i := slices.Index(e.ranks, rank); i >= 0 {
		e.ranks = slices.Delete(e.ranks, i, i+1)
	} else if len(e.ranks) == maxRanks {
		e.ranks = slices.Delete(e.ranks, 0, 1)
	}
	e.ranks = append(e.ranks, rank)
}

// ID is this router's among the others.
func (m *Mesh) ID() uint64 { return m.pub.ID() }

// Publish tells the others; e is borrowed for the call, and its RouterID does not matter. Events of one request must be published in their order.
func (m *Mesh) Publish(e *wire.SequenceEvent) {
	if m.later != nil {
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
