package serve

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// door is a listener that lets only so many connections in at a time. Others are told so, and closed.
type door struct {
	*net.TCPListener
	most int

	mu     sync.Mutex // guards the rest
	inside map[*visitor]struct{}
	shut   bool // nobody comes in any more
}

// Accept gives the next connection that may come in.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if v := d.enter(c); v != nil {
			return v, nil
		}
		body := overloaded("%d connections are open, no more are taken", d.most).body()
		// It fits into an empty send buffer, and whoever does not read it misses nothing else.
		_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.Close()
	}
}

// enter lets a connection in, if there is room.
func (d *door) enter(c *net.TCPConn) *visitor {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut || len(d.inside) >= d.most {
		return nil
	}
	v := &visitor{c, d}
	d.inside[v] = struct{}{}
	return v
}

// clear closes the connections of all who are inside, and lets nobody in any more.
func (d *door) clear() {
	d.mu.Lock()
	d.shut = true
	all := make([]*visitor, 0, len(d.inside))
	for v := range d.inside {
		all = append(all, v)
	}
	d.mu.Unlock()
	for _, v := range all {
		_ = v.TCPConn.Close() // its goroutine notices, and closes v
	}
}

// visitor is a connection that came in.
type visitor struct {
	*net.TCPConn
	door *door
}

// Close closes it, and makes room for another.
func (v *visitor) Close() error {
	v.door.mu.Lock()
	delete(v.door.inside, v)
	v.door.mu.Unlock()
	return v.TCPConn.Close()
}
