package serve

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// door is a listener that lets only so many connections in at a time. Others are told so, and closed.
type door struct {
	*net.TCPListener
	most   int64
	inside atomic.Int64
}

// Accept gives the next connection that may come in.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if d.inside.Add(1) <= d.most {
			return &visitor{TCPConn: c, door: d}, nil
		}
		d.inside.Add(-1)
		body := overloaded("%d connections are open, no more are taken", d.most).body()
		// It fits into an empty send buffer, and whoever does not read it misses nothing else.
		_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.Close()
	}
}

// visitor is a connection that came in.
type visitor struct {
	*net.TCPConn
	door *door
	once sync.Once
}

// Close closes it, and makes room for another.
func (v *visitor) Close() error {
	v.once.Do(func() { v.door.inside.Add(-1) })
	return v.TCPConn.Close()
}
