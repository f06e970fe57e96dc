package replica

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Topic is what the messages are published under.
const Topic = "dynamo.slot-tracker.v1"

// Bounds and defaults.
const (
	DefaultPeerTimeout = 30 * time.Second
	MaxPeers           = 256
	batchMax           = 256     // events that the Sink gets at once, Dynamo's number
	batchBytes         = 1 << 20 // of messages in them: more wait, so that a hostile peer does not make a batch of gigabytes
)

// ErrInvalid: the configuration cannot be used. The message says why; nothing was opened.
var ErrInvalid = errors.New("invalid replica configuration")

// Config of a Mesh.
type Config struct {
	Bind    string   // tcp or ipc endpoint to publish on; "": this router only listens
	Connect []string // the peers' endpoints, at most MaxPeers; the router's own may be among them

	// ID names this router among its peers; 0: a random one. Two routers with one id do not hear each other. What one
	// placed that starts again under its old id ends as soon as the peers are connected with it.
	ID uint64

	// What the requests are for: those of other models, groups or block sizes do not concern this router.
	Model     string
	Group     string // "" is "default"
	BlockSize uint32

	PeerTimeout time.Duration // out of reach for so long is gone; 0: DefaultPeerTimeout
	ZMQ         zmq.Options
}

// Sink is told what other routers did. It is called from several goroutines, one per peer, and must not call Close.
type Sink interface {
	// Apply gets events of one router, in order. They are the Sink's for the call only. Each is valid by itself, but may
	// name workers and requests that are not known here.
	Apply(events []wire.SequenceEvent)
	// Gone says that a router is gone, and what it placed has ended.
	Gone(router uint64)
}

// Stats count since the start, except the first two.
type Stats struct {
	Connected   int    `json:"peers_connected"` // endpoints within reach, now
	Listeners   int    `json:"peers_listening"` // who hears this router, now
	Published   uint64 `json:"events_published"`
	Unsent      uint64 `json:"events_unsent"`       // beyond the bounds of a message
	Dropped     uint64 `json:"events_dropped"`      // for peers that were too slow
	Applied     uint64 `json:"events_applied"`      // that the Sink took
	Echoes      uint64 `json:"events_own"`          // of this router itself
	OtherScope  uint64 `json:"events_other_scope"`  // of other models, groups or block sizes
	OtherRouter uint64 `json:"events_other_router"` // of a second router on one connection
	Malformed   uint64 `json:"events_malformed"`
	Gone        uint64 `json:"routers_gone"`
	Panics      uint64 `json:"panics"` // of the Sink: the events of that call are lost
}

// Mesh is a router's connection with its peers. All methods are safe for concurrent use.
type Mesh struct {
	id      uint64
	scope   wire.SequenceScope
	timeout time.Duration
	sink    Teller
	pub     *zmq.Pub // nil: only listens
	peers   []*peer
	stop    chan struct{}
	once    sync.Once
	running owned.Group

	mu    sync.Mutex
	known map[uint64]int // by router: the peers that are, or were last, it

	connected                                                     atomic.Int64
	published, unsent, echoes, otherScope, otherRouter, malformed atomic.Uint64
}

// New joins the mesh. Peers that are not there yet are dialled until they are. Errors: ErrInvalid, zmq.ErrEndpoint, and what
// binding gives.
func New(c Config, sink Sink) (*Mesh, error) {
	switch {
	case c.BlockSize == 0:
		return nil, fmt.Errorf("%w: block size 0", ErrInvalid)
	case len(c.Connect) > MaxPeers:
		return nil, fmt.Errorf("%w: %d peers, at most %d", ErrInvalid, len(c.Connect), MaxPeers)
	case c.PeerTimeout < 0:
		return nil, fmt.Errorf("%w: peer timeout %v", ErrInvalid, c.PeerTimeout)
	case c.Bind == "" && len(c.Connect) == 0:
		return nil, fmt.Errorf("%w: neither an endpoint to bind nor one to connect to", ErrInvalid)
	}
	for _, endpoint := range c.Connect {
		e, err := zmq.ParseEndpoint(endpoint)
		if err == nil && e.Wildcard() {
			err = fmt.Errorf("%w %q: a wildcard names no host to connect to", zmq.ErrEndpoint, endpoint)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: peer: %w", ErrInvalid, err)
		}
	}
	m := &Mesh{
		id: c.ID, scope: wire.SequenceScope{Model: c.Model, Group: c.Group, BlockSize: c.BlockSize},
		timeout: c.PeerTimeout, sink: Teller{To: sink}, stop: make(chan struct{}), known: map[uint64]int{},
	}
	if m.scope.Group == "" {
		m.scope.Group = "default"
	}
	if m.timeout == 0 {
		m.timeout = DefaultPeerTimeout
	}
	for m.id == 0 {
		m.id = rand.Uint64()
	}
	if c.Bind != "" {
		options := c.ZMQ
		options.Incarnation = strconv.FormatUint(rand.Uint64(), 16)
		pub, err := zmq.ListenPub(c.Bind, options)
		if err != nil {
			return nil, err
		}
		m.pub = pub
	}
	options := c.ZMQ
	if options.MaxMessage == 0 {
		options.MaxMessage = wire.MaxSequenceBytes + 1024 // the topic and the framing
	}
	for _, endpoint := range slices.Compact(slices.Sorted(slices.Values(c.Connect))) {
		sub := zmq.Subscribe(endpoint, []string{Topic}, options)
		p := newPeer(m, sub, sub.Events())
		m.peers = append(m.peers, p)
		m.running.Go(p.run)
	}
	return m, nil
}

// ID is this router's name among its peers.
func (m *Mesh) ID() uint64 { return m.id }

// Addr is the endpoint that peers connect to, "" if there is none.
func (m *Mesh) Addr() string {
	if m.pub == nil {
		return ""
	}
	return m.pub.Addr()
}

// Publish tells the peers. Events of one request must be published in their order: the router does it under the lock under
// which it books. e is borrowed for the call; its RouterID does not matter. What cannot be sent is counted.
func (m *Mesh) Publish(e *wire.SequenceEvent) {
	if m.pub == nil {
		return
	}
	mine := *e
	mine.RouterID = m.id
	payload, err := wire.AppendSequence(make([]byte, 0, 256+9*len(e.Sequences)), &m.scope, &mine)
	if err != nil {
		m.unsent.Add(1)
		return
	}
	if m.pub.Publish([]byte(Topic), payload) == nil {
		m.published.Add(1)
	}
}

// Stats counts.
func (m *Mesh) Stats() Stats {
	s := Stats{
		Connected: int(m.connected.Load()), Published: m.published.Load(), Unsent: m.unsent.Load(),
		Echoes: m.echoes.Load(), OtherScope: m.otherScope.Load(), OtherRouter: m.otherRouter.Load(),
		Malformed: m.malformed.Load(),
	}
	m.sink.Count(&s)
	if m.pub != nil {
		pub := m.pub.Stats()
		s.Dropped, s.Listeners = pub.Dropped, pub.Subscribers
	}
	return s
}

// Close leaves the mesh. What is still queued for peers is lost; the Sink is not called any more when it returns. It may be
// called more than once.
func (m *Mesh) Close() {
	m.once.Do(func() {
		close(m.stop)
		for _, p := range m.peers {
			p.sub.Close()
		}
		if m.pub != nil {
			m.pub.Close()
		}
	})
	m.running.Wait()
}

// meet notes that a peer is a router.
func (m *Mesh) meet(router uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[router]++
}

// lose notes that a peer is not that router any more; the last such peer makes the router gone.
func (m *Mesh) lose(router uint64) {
	m.mu.Lock()
	m.known[router]--
	last := m.known[router] == 0
	if last {
		delete(m.known, router)
	}
	m.mu.Unlock()
	if last {
		m.sink.Gone(router)
	}
}
