package rawhttp

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is a connection. Whoever has it, the pool or one exchange, uses it alone, but for end.
//
// Two things spare it work. A deadline is set only if it is earlier than the one that is: that one fires too early then, which Read and Write notice, set
// the right one and go on. And a small request is written by the Read that waits for its answer, when it has begun to wait: reading first what cannot be
// there yet would be a system call for nothing.
type conn struct {
	net.Conn
	reader *bufio.Reader
	used   bool      // it answered before
	since  time.Time // when it was given back

	socket  syscall.RawConn // nil: it is none of TCP
	look    func(fd uintptr)
	unread  bool            // what look found
	peeked  [1]byte         // by look
	raw     syscall.RawConn // socket, or nil: it cannot be read from, as with TLS
	step    func(fd uintptr) bool
	request []byte // to be written by the next Read
	refused error  // of writing a request
	into    []byte // what Read reads into
	n       int    // what it read
	err     error  // and its error

	mu    sync.Mutex // guards the rest
	late  bool       // writing may go on after a deadline fired, as it cannot with TLS
	by    time.Time  // when all must be over
	armed time.Time  // the deadline that is set: not after by; zero: none
	ended bool
}

func newConn(c net.Conn) *conn {
	k := &conn{Conn: c}
	k.look, k.step = k.peek, k.exchange
	secured, _ := c.(*tls.Conn)
	if secured != nil {
		c = secured.NetConn()
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if socket, err := tcp.SyscallConn(); err == nil {
			k.socket = socket
		}
		if k.late = secured == nil; k.late {
			k.raw = k.socket
		}
	}
	k.reader = bufio.NewReaderSize(k, headBytes)
	return k
}

// errStale: while nobody used the connection, the server closed its side, or said something that nobody asked for and that is no answer to what comes.
var errStale = errors.New("closed or spoken on while it was idle")

// peek looks whether something came, if only the end.
func (c *conn) peek(fd uintptr) {
	for {
		_, _, err := syscall.Recvfrom(int(fd), c.peeked[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err == syscall.EINTR {
			continue
		}
		c.unread = err != syscall.EAGAIN
		return
	}
}

// stale tells whether a connection that was kept can no longer be used.
func (c *conn) stale() bool {
	if !c.used || c.socket == nil {
		return false
	}
	return c.socket.Control(c.look) != nil || c.unread
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// within bounds what the connection does next.
func (c *conn) within(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = t
	if c.ended || c.late && !c.armed.IsZero() && !c.armed.After(t) {
		return nil
	}
	c.armed = t
	return c.SetDeadline(t)
}

// again tells whether it goes on after a deadline that fired: it was not the last one.
func (c *conn) again(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || !c.late || time.Until(c.by) <= 0 {
		return false
	}
	c.armed = c.by
	return c.SetDeadline(c.by) == nil
}

// end has all that waits, and all that begins, return at once.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	_ = c.SetDeadline(past)
}

// ask sends a request, which must stay as it is until Read returned. In refused is the error, if there is one, after Read.
func (c *conn) ask(request []byte) {
	if c.raw == nil {
		if c.refused = nil; c.stale() {
			c.refused = errStale
		} else {
			_, c.refused = c.Write(request)
		}
		return
	}
	c.request, c.refused = request, nil
}

// Write writes all of b.
func (c *conn) Write(b []byte) (n int, err error) {
	for {
		m, err := c.Conn.Write(b[n:])
		if n += m; err == nil || !c.again(err) {
			return n, err
		}
	}
}

// Read reads what there is, or waits for some. It first sends what was asked; an error of that counts only if the connection was used before.
func (c *conn) Read(b []byte) (n int, err error) {
	for {
		switch {
		case c.request != nil:
			c.into, c.n, c.err = b, 0, nil
			if err = c.raw.Read(c.step); err == nil {
				n, err = c.n, c.err
			}
			c.into = nil
		case c.refused != nil && c.used:
			return 0, c.refused
		default:
			n, err = c.Conn.Read(b)
		}
		if err == nil || n > 0 || !c.again(err) {
			return n, err
		}
	}
}

// exchange is called with the connection ready to wait, and then each time that something may have come: whatever comes from then on is noticed, and only
// that, so what came before is looked for. It tells whether it is done.
func (c *conn) exchange(fd uintptr) bool {
	if request := c.request; request != nil {
		c.request = nil
		if c.used {
			if c.peek(fd); c.unread {
				c.err = errStale
				return true
			}
		}
		if _, c.refused = c.Write(request); c.refused != nil && c.used {
			c.err = c.refused
			return true
		}
		return false
	}
	for {
		n, err := syscall.Read(int(fd), c.into)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			c.err = os.NewSyscallError("read", err)
		case n == 0:
			c.err = io.EOF
		default:
			c.n = n
		}
		return true
	}
}
