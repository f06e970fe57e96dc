package runtime

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/runtime/callhome"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/tcp"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Runtime is one process of a deployment. All methods are safe for concurrent use.
type Runtime struct {
	store  discovery.Store
	opts   Options
	tcp    *tcp.Plane
	server server

	mu        sync.Mutex // guards the rest
	closed    bool
	responses *callhome.Listener // nil until the first call
}

// New joins a deployment. The store is the runtime's from now on, and closed with it.
func New(store discovery.Store, o Options) *Runtime {
	o = o.filled()
	r := &Runtime{store: store, opts: o, tcp: tcp.NewPlane(o.RequestHost, o.RequestPort, o.TCP)}
	r.server.init(r)
	return r
}

// ID is this process's id, and that of its instances.
func (r *Runtime) ID() uint64 { return r.store.ID() }

// Store is where the deployment's records are.
func (r *Runtime) Store() discovery.Store { return r.store }

// Remote is what goes by a server.
type Remote interface {
	// Reach tells whether the server is within reach, and if not, why; nil: it is not known yet.
	Reach() (connected bool, err error)
}

// Reach tells whether all servers that the runtime goes by are within reach, and if not, why.
func (r *Runtime) Reach() (connected bool, err error) {
	connected = true
	for _, part := range []any{r.store, r.opts.Requests, r.opts.Events} {
		if remote, ok := part.(Remote); ok {
			up, why := remote.Reach()
			connected, err = connected && up, cmp.Or(err, why)
		}
	}
	return connected, err
}

// Link is where events are published and found.
func (r *Runtime) Link() plane.Link {
	return plane.Link{Store: r.store, Host: r.opts.EventHost, Bus: r.opts.Events}
}

// Close ends all that was started: services at once (close them before to end them gracefully), calls, and the store. Clients are their owners' to
// close. It is idempotent.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	responses := r.responses
	r.mu.Unlock()
	err := r.store.Close()
	r.server.close()
	r.tcp.Close()
	for _, shared := range r.opts.Shared {
		shared.Close()
	}
	if responses != nil {
		responses.Close()
	}
	return err
}

// Endpoint names an endpoint.
type Endpoint struct {
	discovery.Name
	r *Runtime
}

// Endpoint reads "namespace.component.name". Errors: plane.ErrInvalidArgument.
func (r *Runtime) Endpoint(path string) (*Endpoint, error) {
	n, err := discovery.ParseName(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	return &Endpoint{n, r}, nil
}

// Runtime is whose endpoint it is.
func (e *Endpoint) Runtime() *Runtime { return e.r }

// listener is that for responses.
func (r *Runtime) listener() (*callhome.Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, plane.ErrClosed
	}
	if r.responses == nil {
		address := net.JoinHostPort(r.opts.ResponseHost, strconv.Itoa(r.opts.ResponsePort))
		l, err := callhome.Listen(address, r.opts.ResponseHost, r.opts.CallHome)
		if err != nil {
			return nil, err
		}
		r.responses = l
	}
	return r.responses, nil
}

// Request is what is asked of an instance.
type Request struct {
	ID       string // shown to the handler; not empty, at most plane.MaxIDBytes
	Body     []byte // MessagePack
	Metadata map[string]string
	Plain    bool // the endpoint's items are not annotated
}

// Stream is the response to a call; see callhome.Stream.
type Stream = callhome.Stream

// Call asks an instance, and returns when it has begun to answer. Errors: those of package plane, and that of ctx.
func (r *Runtime) Call(ctx context.Context, to *discovery.Instance, q *Request) (*Stream, error) {
	if q.ID == "" || len(q.ID) > plane.MaxIDBytes {
		return nil, fmt.Errorf("%w: request id of %d bytes, expected 1 to %d", plane.ErrInvalidArgument, len(q.ID), plane.MaxIDBytes)
	}
	l, err := r.listener()
	if err != nil {
		return nil, err
	}
	body := q.Body
	if to.Codec == discovery.CodecJSON {
		if body, err = wire.ToJSON(nil, body); err != nil {
			return nil, fmt.Errorf("%w: request: %w", plane.ErrInvalidArgument, err)
		}
	}
	p, err := l.Expect(to.Codec, q.Plain)
	if err != nil {
		return nil, err
	}
	control := plane.Control{ID: q.ID, Codec: to.Codec, Response: p.Response(), Metadata: q.Metadata}
	m := plane.Message{ID: q.ID, Payload: plane.AppendMessage(nil, control.Encode(), body), Begun: p.Begun()}
	if err := r.send(ctx, to, &m); err != nil {
		p.Cancel()
		return nil, err
	}
	return p.Wait(ctx)
}

// send has a request carried to an instance.
func (r *Runtime) send(ctx context.Context, to *discovery.Instance, m *plane.Message) error {
	switch {
	case to.TCP != "":
		return r.tcp.Send(ctx, to, m)
	case to.NATS != "" && r.opts.Requests != nil:
		return r.opts.Requests.Send(ctx, to, m)
	}
	return fmt.Errorf("%w: instance %d of %s is reached by request plane \"nats\", this process by \"tcp\" only", plane.ErrCannotConnect, to.ID, to.Name)
}

// planes are the request planes.
func (r *Runtime) planes() []plane.Requests {
	if r.opts.Requests == nil {
		return []plane.Requests{r.tcp}
	}
	return []plane.Requests{r.opts.Requests, r.tcp}
}
