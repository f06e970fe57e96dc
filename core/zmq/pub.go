package zmq

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-zeromq/zmq4"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// maxTopics and maxTopicBytes bound the different subscriptions of one subscriber.
const (
	maxTopics     = 1024
	maxTopicBytes = 64 << 10
)

// Pub is a bound publisher. Every method is safe for concurrent use.
type Pub struct {
	l *listener

	mu     sync.RWMutex // guards subs and closed
	subs   map[*subscription]struct{}
	closed bool

	sent, dropped atomic.Uint64
}

// PubStats counts since the start, except Subscribers.
type PubStats struct {
	Subscribers int    // connections with at least one subscription, now
	Sent        uint64 // messages put into subscribers' queues
	Dropped     uint64 // messages lost to a full queue
	Refused     uint64 // connections beyond MaxConns or MaxHandshakes
	Rejected    uint64 // handshakes that failed
}

// ListenPub binds a publisher: tcp (port 0: any free one, see Addr) or ipc.
func ListenPub(endpoint string, o Options) (*Pub, error) {
	o = o.listening()
	p := &Pub{subs: make(map[*subscription]struct{})}
	l, err := listen(endpoint, pub, o, p.serve)
	if err != nil {
		return nil, err
	}
	p.l = l
	l.start()
	return p, nil
}

// Addr is the bound endpoint.
func (p *Pub) Addr() string { return p.l.addr() }

// Stats counts.
func (p *Pub) Stats() PubStats {
	s := PubStats{Sent: p.sent.Load(), Dropped: p.dropped.Load(), Refused: p.l.refused.Load(), Rejected: p.l.rejected.Load()}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for sub := range p.subs {
		if sub.active() {
			s.Subscribers++
		}
	}
	return s
}

// Publish queues one message for every subscriber with a subscription that frames[0] begins with. It never waits. The
// frames, and the slice itself, must not change afterwards. After Close it gives ErrClosed.
func (p *Pub) Publish(frames ...[]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("%w: a message has at least one frame", ErrProtocol)
	}
	size := weigh(frames)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrClosed
	}
	for sub := range p.subs {
		if !sub.wants(frames[0]) {
			continue
		}
		if sub.box.put(frames, size) {
			p.sent.Add(1)
		} else {
			p.dropped.Add(1)
		}
	}
	return nil
}

// Close ends all connections; messages still queued are lost. It may be called more than once.
func (p *Pub) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.l.close()
}

func (p *Pub) serve(peer *peer) {
	sub := &subscription{topics: make(map[string]int), box: newOutbox(p.l.opts.SendQueue, p.l.opts.SendQueueBytes)}
	peer.onCommand = sub.command
	p.mu.Lock()
	p.subs[sub] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.subs, sub)
		p.mu.Unlock()
	}()
	var writer owned.Group
	writer.Go(func() {
		defer peer.conn.Close()
		sub.send(peer.conn)
	})
	defer writer.Wait()
	defer peer.conn.Close()
	defer sub.box.close()
	sub.follow(peer.conn)
}

// subscription is one subscriber: what it wants and what waits for it.
type subscription struct {
	box *outbox

	mu     sync.RWMutex   // guards the rest
	topics map[string]int // topic prefix -> times subscribed; libzmq counts them too
	bytes  int            // of all topics
}

func (s *subscription) active() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.topics) > 0
}

func (s *subscription) wants(topic []byte) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for t := range s.topics {
		if len(t) <= len(topic) && string(topic[:len(t)]) == t {
			return true
		}
	}
	return false
}

// follow reads subscriptions until the connection breaks or sends too many. ZMTP 3.0 peers send them as messages.
func (s *subscription) follow(c *Conn) {
	for {
		frames, err := c.Recv()
		if err != nil {
			return
		}
		if len(frames) != 1 || len(frames[0]) == 0 {
			continue
		}
		switch topic := frames[0][1:]; frames[0][0] {
		case 1:
			if s.add(topic) != nil {
				return
			}
		case 0:
			s.remove(topic)
		}
	}
}

// command takes the subscriptions of ZMTP 3.1 peers.
func (s *subscription) command(name string, topic []byte) error {
	switch name {
	case zmq4.CmdSubscribe:
		return s.add(topic)
	case zmq4.CmdCancel:
		s.remove(topic)
	}
	return nil
}

func (s *subscription) add(topic []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.topics[string(topic)]; !known {
		if len(s.topics) >= maxTopics || s.bytes+len(topic) > maxTopicBytes {
			return fmt.Errorf("%w: more than %d subscriptions or %d bytes of topics", ErrTooLarge, maxTopics, maxTopicBytes)
		}
		s.bytes += len(topic)
	}
	s.topics[string(topic)]++
	return nil
}

func (s *subscription) remove(topic []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.topics[string(topic)]; n {
	case 0:
	case 1:
		delete(s.topics, string(topic))
		s.bytes -= len(topic)
	default:
		s.topics[string(topic)] = n - 1
	}
}

// send writes what is queued, as many messages in one system call as the write buffer holds.
func (s *subscription) send(c *Conn) {
	var batch [][][]byte
	for {
		clear(batch)
		var ok bool
		if batch, ok = s.box.take(batch); !ok {
			return
		}
		if c.sendAll(batch) != nil {
			c.Close() // the reader ends too
			return
		}
	}
}
