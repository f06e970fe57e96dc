package zmq

import (
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// requestQueue is how many requests of one peer wait behind the one being answered; more wait in the socket.
const requestQueue = 16

// Handler answers one request. reply sends one message to the peer that asked, waiting while it is slow, and fails once
// the peer is gone; it may be called any number of times until the handler returns. Frames are those the peer sees:
// a DEALER's or REQ's empty delimiter is the first of both. The request is the handler's to keep.
type Handler func(request [][]byte, reply func(frames ...[]byte) error)

// RouterSocket is a bound socket that answers DEALER and REQ peers, each on goroutines of its own.
type RouterSocket struct {
	l       *listener
	handler Handler
	panics  atomic.Uint64
}

// RouterStats counts since the start.
type RouterStats struct {
	Refused  uint64 // connections beyond MaxConns or MaxHandshakes
	Rejected uint64 // handshakes that failed
	Panics   uint64 // handlers that panicked; the peer was disconnected
}

// ListenRouter binds a router socket: tcp (port 0: any free one, see Addr) or ipc. The handler is called concurrently
// for different peers, in order for one.
func ListenRouter(endpoint string, o Options, handler Handler) (*RouterSocket, error) {
	def(&o.WriteTimeout, 30*time.Second)
	o = o.listening()
	s := &RouterSocket{handler: handler}
	l, err := listen(endpoint, router, o, s.serve)
	if err != nil {
		return nil, err
	}
	s.l = l
	l.start()
	return s, nil
}

// Addr is the bound endpoint.
func (s *RouterSocket) Addr() string { return s.l.addr() }

// Stats counts.
func (s *RouterSocket) Stats() RouterStats {
	return RouterStats{Refused: s.l.refused.Load(), Rejected: s.l.rejected.Load(), Panics: s.panics.Load()}
}

// Close ends all connections and waits for their handlers, whose replies fail. It may be called more than once.
func (s *RouterSocket) Close() error { return s.l.close() }

// serve reads on this goroutine, so that a PING is answered while a long reply goes out, and answers on another.
func (s *RouterSocket) serve(p *peer) {
	requests := make(chan [][]byte, requestQueue)
	gone := make(chan struct{})
	var answering owned.Group
	answering.Go(func() {
		defer close(gone)
		defer p.conn.Close()
		for request := range requests {
			if !s.answer(p.conn, request) {
				return
			}
		}
	})
	defer answering.Wait()
	defer close(requests)
	defer p.conn.Close()
	for {
		request, err := p.conn.Recv()
		if err != nil {
			return
		}
		select {
		case requests <- request:
		case <-gone:
			return
		}
	}
}

func (s *RouterSocket) answer(c *Conn, request [][]byte) (ok bool) {
	if ok = owned.Do(func() { s.handler(request, c.Send) }); !ok {
		s.panics.Add(1)
	}
	return ok
}
