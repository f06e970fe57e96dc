package replica

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// peer follows one endpoint. Only its goroutine uses it.
type peer struct {
	mesh    *Mesh
	sub     *zmq.Subscriber
	events  <-chan zmq.Event // the subscriber's
	decoder *wire.SequenceDecoder

	up          bool   // the endpoint is within reach
	router      uint64 // who publishes there, as far as was heard; 0: nobody yet
	incarnation string // of who published on the last connection; "": not told
	open        bool   // nobody was heard on this connection yet: it may be another router now
	lost        *time.Timer
	batch       []wire.SequenceEvent // its first len elements are to be applied; the others keep their memory
}

func newPeer(m *Mesh, sub *zmq.Subscriber, events <-chan zmq.Event) *peer {
	lost := time.NewTimer(0)
	lost.Stop()
	return &peer{mesh: m, sub: sub, events: events, decoder: wire.NewSequenceDecoder(), lost: lost}
}

// run ends when the mesh is closed.
func (p *peer) run() {
	defer p.lost.Stop()
	defer p.connection(false)
	for {
		select {
		case <-p.mesh.stop:
			return
		case e, ok := <-p.events:
			if !ok {
				return
			}
			if !owned.Do(func() { p.take(e) }) {
				p.batch = nil
			}
		case <-p.lost.C:
			p.forget()
		}
	}
}

// take handles an event, and the messages that wait behind it, so that the Sink gets them at once.
func (p *peer) take(e zmq.Event) {
	bytes := 0
	for more := true; more; {
		if e.Kind != zmq.Message {
			p.flush()
			if e.Kind == zmq.Connected {
				p.meet(e.Incarnation)
			}
			p.connection(e.Kind == zmq.Connected)
			return
		}
		bytes += p.message(e.Frames)
		if len(p.batch) >= batchMax || bytes >= batchBytes {
			break
		}
		select {
		case e, more = <-p.events:
		default:
			more = false
		}
	}
	p.flush()
}

func (p *peer) connection(up bool) {
	switch {
	case up && !p.up:
		p.mesh.connected.Add(1)
		p.lost.Stop()
		p.open = true
	case !up && p.up:
		p.mesh.connected.Add(-1)
		if p.router != 0 {
			p.lost.Reset(p.mesh.timeout)
		}
	}
	p.up = up
}

// meet hears who is at the endpoint of a new connection. Another incarnation is a router that was started anew, whatever its
// id: nobody will tell the end of what the one before placed.
func (p *peer) meet(incarnation string) {
	if incarnation != p.incarnation {
		p.forget()
		p.incarnation = incarnation
	}
}

// forget ends the router that was heard here.
func (p *peer) forget() {
	if p.router != 0 {
		p.mesh.lose(p.router)
		p.router = 0
	}
}

// message decodes a message into the batch, or counts why it is ignored, and tells its size.
func (p *peer) message(frames [][]byte) (size int) {
	m := p.mesh
	for _, f := range frames {
		size += len(f)
	}
	if len(frames) != 2 || string(frames[0]) != Topic {
		m.malformed.Add(1)
		return size
	}
	var scope wire.SequenceScope
	n := len(p.batch)
	if n == cap(p.batch) {
		p.batch = append(p.batch, wire.SequenceEvent{})[:n]
	}
	e := &p.batch[:n+1][n]
	switch err := p.decoder.Decode(frames[1], &scope, e); {
	case err != nil:
		m.malformed.Add(1)
	case scope != m.scope:
		m.otherScope.Add(1)
	case e.RouterID == m.id:
		m.echoes.Add(1)
	case !p.identify(e.RouterID):
		m.otherRouter.Add(1)
	default:
		p.batch = p.batch[:n+1]
	}
	return size
}

// identify tells whether an event can be of the router at this endpoint.
func (p *peer) identify(router uint64) bool {
	if router == 0 || router != p.router && !p.open {
		return false
	}
	p.open = false
	if router != p.router {
		p.forget() // it was started anew, under another name
		p.router = router
		p.mesh.meet(router)
	}
	return true
}

// flush gives the batch to the Sink.
func (p *peer) flush() {
	if len(p.batch) == 0 {
		return
	}
	p.mesh.sink.Apply(p.batch)
	kept := 0
	for i := range p.batch {
		kept += cap(p.batch[i].Sequences)
	}
	p.batch = p.batch[:0]
	if kept > keepBlocks {
		p.batch = nil
	}
}

// keepBlocks bounds the memory kept for the sequences of later batches: 1 MiB.
const keepBlocks = 1 << 17
