package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// door is a listener that lets only so many connections in at a time. Others are told so, and closed.
type door struct {
	*net.TCPListener
	most  int
	write time.Duration             // a client that takes nothing for so long is gone
	bytes int                       // that are read for one request, whatever of it they are; 0: any number
	by    atomic.Pointer[time.Time] // when requests must have come in; nil: as the server says

	mu     sync.Mutex // guards the rest
	inside map[*visitor]struct{}
	shut   bool          // nobody comes in any more
	empty  chan struct{} // closed when nobody is inside; nil: nobody waits for that
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
	v := &visitor{Conn: c, door: d, ready: true}
	d.inside[v] = struct{}{}
	return v
}

// all gives the connections of those who are inside.
func (d *door) all() []*visitor {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*visitor, 0, len(d.inside))
	for v := range d.inside {
		all = append(all, v)
	}
	return all
}

// hurry has whoever is in the middle of sending a request end it by then.
func (d *door) hurry(by time.Time) {
	d.by.Store(&by)
	for _, v := range d.all() {
		_ = v.Conn.SetReadDeadline(by)
	}
}

// wait waits until nobody is inside.
func (d *door) wait(ctx context.Context) {
	d.mu.Lock()
	empty := make(chan struct{})
	if len(d.inside) == 0 {
		close(empty)
	} else {
		d.empty = empty
	}
	d.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// clear closes the connections of all who are inside, and lets nobody in any more.
func (d *door) clear() {
	d.mu.Lock()
	d.shut = true
	d.mu.Unlock()
	for _, v := range d.all() {
		_ = v.Conn.Close() // its goroutine notices, and closes v
	}
}

// visitor is a connection that came in. It belongs to the goroutine of the connection; the net.Conn within, a *net.TCPConn, may be used by any. Of that
// no more is to be seen than a net.Conn has: by ReadFrom the server would write past Write.
//
// The server that owns the connection sets no deadline for writing: Write does, anew for as long as the client takes something.
type visitor struct {
	net.Conn
	door   *door
	head   head      // of the request that comes in
	ready  bool      // an answer was written since: what is read next may begin a request
	fresh  bool      // what is read next begins a request
	heard  bool      // something was read
	linger bool      // what the client still sends is read after the last answer, so that it can read that
	took   int       // bytes that were read for this request
	failed error     // of the last Read for it
	until  time.Time // the deadline of writing

	ends  time.Time // when reading is to end, as far as the server says; zero: never
	armed time.Time // the deadline of reading that is set: not after ends; zero: none was
}

// SyscallConn is that of the connection.
func (v *visitor) SyscallConn() (syscall.RawConn, error) { return v.Conn.(*net.TCPConn).SyscallConn() }

// SetReadDeadline bounds what is read next; a door that is in a hurry bounds it too. A deadline that is set stays if it is not later than this one, since
// the server says another one twice a request: it fires too early then, and Read goes on. By this it also tells that a request begins.
func (v *visitor) SetReadDeadline(t time.Time) error {
	v.ends, v.took, v.failed = t, 0, nil
	v.fresh, v.ready = v.ready, false
	if !v.armed.IsZero() && (t.IsZero() || !v.armed.After(t)) && v.door.by.Load() == nil {
		return nil
	}
	_, err := v.arm()
	return err
}

// arm sets the deadline of reading, and gives it.
func (v *visitor) arm() (at time.Time, err error) {
	for {
		by := v.door.by.Load()
		at = v.ends
		if by != nil && (at.IsZero() || at.After(*by)) {
			at = *by
		}
		v.armed = at
		if err := v.Conn.SetReadDeadline(at); err != nil || v.door.by.Load() == by {
			return at, err
		}
	}
}

// errLines: the last lines of a head end in LF alone. The server would wait behind it for lines that end in CRLF.
var errLines = errors.New("the lines of the head end in LF, expected CRLF")

// head looks for the end of a request's head in what is read, piece by piece. A head is only looked at that begins with a read: one that was read along
// with the end of the request before is not.
type head struct {
	within bool // it began, and did not end
	begun  bool // it has a line that is not empty
	whole  bool // the latest of these ended in CRLF
	lines  bool // see errLines
	length int  // of the line that came last, as far as it came
	last   byte // of that line
}

// see looks at a piece.
func (h *head) see(b []byte) {
	for h.within && len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		if h.length += len(line); len(line) > 0 {
			h.last = line[len(line)-1]
		}
		if b = rest; !ended {
			return
		}
		crlf := h.length > 0 && h.last == '\r'
		switch empty := h.length == 0 || h.length == 1 && crlf; {
		case !empty:
			h.begun, h.whole = true, crlf
		case h.begun:
			h.within, h.lines = false, !crlf || !h.whole
		}
		h.length = 0
	}
}

// errLong: a request has more bytes than any that is taken. The server bounds its head and what is in its body, but not what frames that: a chunk may
// have extensions of any length.
var errLong = errors.New("the request is too long")

func (v *visitor) Read(b []byte) (int, error) {
	n, err := v.read(b)
	v.took += n
	v.failed = err
	return n, err
}

func (v *visitor) read(b []byte) (int, error) {
	if v.head.lines {
		return 0, errLines
	}
	if v.door.bytes > 0 && v.took > v.door.bytes {
		return 0, errLong
	}
	n, err := v.Conn.Read(b)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) { // if too early
		at, failed := v.arm()
		if failed != nil || !at.IsZero() && time.Until(at) <= 0 {
			return 0, err
		}
		n, err = v.Conn.Read(b)
	}
	v.heard = v.heard || n > 0
	if v.fresh && n > 0 {
		v.fresh, v.head = false, head{within: true}
	}
	v.head.see(b[:n])
	return n, err
}

// looks is how often in the time that a client may take nothing it is looked at whether it did.
const looks = 8

// Write writes all of b, for as long as the client takes something. What it takes shows late: room in the socket's buffer only when a good part of that is
// free, so what the peer's host did not confirm is looked at.
func (v *visitor) Write(b []byte) (n int, err error) {
	v.ready = true
	step := v.door.write / looks
	now := time.Now()
	since, left := now, -1 // when something was taken last; what was left then, -1: not looked at yet
	for {
		if v.until.Sub(now) < step/2 {
			v.until = now.Add(step)
			if err := v.Conn.SetWriteDeadline(v.until); err != nil {
				return n, err
			}
		}
		m, err := v.Conn.Write(b[n:])
		if n += m; err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		now = time.Now()
		waits := unsent(v)
		if m > 0 || left >= 0 && waits < left {
			since = now
		}
		if left = waits; now.Sub(since) >= v.door.write {
			return n, err
		}
	}
}

// Close closes it, and makes room for another.
func (v *visitor) Close() error {
	if v.linger {
		v.rest()
	}
	err := v.Conn.Close()
	d := v.door
	d.mu.Lock()
	defer d.mu.Unlock()
	_, was := d.inside[v]
	if delete(d.inside, v); was && len(d.inside) == 0 && d.empty != nil {
		close(d.empty)
		d.empty = nil
	}
	return err
}

// rest reads what a client sends that was refused before it had sent all: closed with bytes unread, a connection is reset, and the answer lost. It is no
// request, so what bounds those does not bound it, not even the hurry of a door.
func (v *visitor) rest() {
	const silence, length, most = time.Second, 10 * time.Second, 64 << 20
	if v.Conn.(*net.TCPConn).CloseWrite() != nil {
		return
	}
	b := make([]byte, 32<<10)
	end := time.Now().Add(length)
	for total := 0; total < most; {
		by := time.Now().Add(silence)
		if by.After(end) {
			by = end
		}
		if v.Conn.SetReadDeadline(by) != nil {
			return
		}
		n, err := v.Conn.Read(b)
		hurried := errors.Is(err, os.ErrDeadlineExceeded) && time.Until(by) > 0
		if total += n; err != nil && !hurried {
			return
		}
	}
}
