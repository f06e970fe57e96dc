package tcp

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Plane is the request plane of a process: a Pool, and a Listener from the first service on.
type Plane struct {
	host string
	port int
	opts Options
	pool *Pool

	mu       sync.Mutex // guards the rest
	closed   bool
	listener *Listener // nil until the first service
	services map[string]plane.Service
}

var _ plane.Requests = (*Plane)(nil)

// NewPlane does nothing yet. Services are to be listened for at host, and under that address registered; port 0 is any free one.
func NewPlane(host string, port int, o Options) *Plane {
	return &Plane{host: host, port: port, opts: o, pool: NewPool(o), services: make(map[string]plane.Service)}
}

// Send implements plane.Requests.
func (p *Plane) Send(ctx context.Context, to *discovery.Instance, m *plane.Message) error {
	return p.pool.Send(ctx, to.TCP, m.ID, m.Payload)
}

// Serve implements plane.Requests.
func (p *Plane) Serve(at *discovery.Instance, s plane.Service) (stop func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := instancePath(at)
	switch {
	case p.closed:
		return nil, plane.ErrClosed
	case p.services[path] != nil:
		return nil, fmt.Errorf("%w: %s is served already", plane.ErrInvalidArgument, path)
	}
	if p.listener == nil {
		if p.listener, err = Listen(net.JoinHostPort(p.host, strconv.Itoa(p.port)), p.opts, p.take); err != nil {
			return nil, err
		}
	}
	p.services[path] = s
	at.TCP = net.JoinHostPort(p.host, strconv.Itoa(p.listener.Addr().Port)) + "/" + path
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.services[path] == s {
			delete(p.services, path)
		}
	}, nil
}

// instancePath is what requests for an instance are addressed to.
func instancePath(i *discovery.Instance) string {
	field := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "%", "%25"), "/", "%2F") }
	return discovery.Hex(i.ID) + "/" + field(i.Namespace) + "/" + field(i.Component) + "/" + field(i.Endpoint)
}

func (p *Plane) take(q Request) error {
	p.mu.Lock()
	s := p.services[q.Path]
	p.mu.Unlock()
	if s == nil {
		return fmt.Errorf("unknown endpoint %.256s", q.Path)
	}
	return s.Take(q.Payload)
}

// Close implements plane.Requests.
func (p *Plane) Close() {
	p.mu.Lock()
	p.closed = true
	listener := p.listener
	p.mu.Unlock()
	if listener != nil {
		listener.Close()
	}
	p.pool.Close()
}
