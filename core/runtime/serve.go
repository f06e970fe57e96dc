package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/callhome"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Handler answers one call: it sends items, and returns nil when the response is complete, or an error that the caller is told
// (plane.FailureOf). It runs on a goroutine of its own, and should return soon after Call.Stopped ends. A panic of it is an error.
type Handler func(c *Call) error

// Call is one request, as its handler sees it.
type Call struct {
	ID       string
	Body     []byte // MessagePack
	Metadata map[string]string
	sender   *callhome.Sender
	begun    bool
}

// Send sends an item, MessagePack; see callhome.Sender.Send.
func (c *Call) Send(item []byte) error {
	if err := c.begin(); err != nil {
		return err
	}
	return c.sender.Send(item)
}

// begin tells the caller that the response begins, once.
func (c *Call) begin() error {
	if c.begun {
		return nil
	}
	c.begun = true
	return c.sender.Begin(nil)
}

// Stopped ends when the caller wants no more.
func (c *Call) Stopped() context.Context { return c.sender.Stopped() }

// Killed ends when the caller wants the work to end at once, or the service does.
func (c *Call) Killed() context.Context { return c.sender.Killed() }

// ServeOptions say how an endpoint is served.
type ServeOptions struct {
	ID         uint64 // of the instance; 0: the runtime's
	Plain      bool   // items are not annotated
	Unlisted   bool   // it is not registered; Register does it
	Late       bool   // a response begins with its first item: a failure before that is none of it, and the caller may ask another instance
	DeviceType string
}

// Service is an endpoint that is served.
type Service struct {
	r        *Runtime
	instance discovery.Instance
	handler  Handler
	plain    bool
	late     bool
	stop     func()          // of the request plane
	ctx      context.Context // ends with its calls
	cancel   context.CancelFunc

	mu     sync.Mutex // guards the rest
	listed bool
	closed bool // takes no more calls
	calls  owned.Group
}

// Serve makes this process an instance of the endpoint. Errors: plane.ErrInvalidArgument (it serves it already), plane.ErrCannotConnect (nothing
// can be listened on), plane.ErrClosed, and those of the store.
func (e *Endpoint) Serve(h Handler, o ServeOptions) (*Service, error) {
	r := e.r
	if o.ID == 0 {
		o.ID = r.ID()
	}
	s := &Service{r: r, handler: h, plain: o.Plain, late: o.Late}
	s.instance = discovery.Instance{Name: e.Name, ID: o.ID, Codec: r.opts.Codec, DeviceType: o.DeviceType}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := r.server.add(s); err != nil {
		s.cancel()
		return nil, err
	}
	if !o.Unlisted {
		if err := s.Register(); err != nil {
			s.Close(false)
			return nil, err
		}
	}
	return s, nil
}

// Instance is what the service is registered as.
func (s *Service) Instance() discovery.Instance { return s.instance }

// Register lets clients find it. It may be called again after Unregister.
func (s *Service) Register() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed {
		return nil
	}
	err := s.r.store.Create(discovery.InstanceKey(s.instance.Name, s.instance.ID), s.instance.Encode())
	s.listed = err == nil
	return err
}

// Unregister lets clients find it no more, while it goes on serving.
func (s *Service) Unregister() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listed {
		return nil
	}
	s.listed = false
	return s.r.store.Delete(discovery.InstanceKey(s.instance.Name, s.instance.ID))
}

// Withdraw begins what Close ends: the service is registered no more and refuses calls, and the instance may be served anew. It is idempotent.
func (s *Service) Withdraw() {
	_ = s.Unregister() // the store may be closed
	s.r.server.remove(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Close ends the service: it is registered no more, refuses calls, and those that run are killed, or waited for if graceful. It is idempotent.
func (s *Service) Close(graceful bool) {
	s.Withdraw()
	if !graceful {
		s.cancel()
	}
	s.calls.Wait()
	s.cancel()
}

// server has the services of a runtime.
type server struct {
	r *Runtime

	mu       sync.Mutex // guards the rest
	closed   bool
	running  int
	refusing int
	services map[*Service]struct{}
}

func (v *server) init(r *Runtime) { v.r, v.services = r, make(map[*Service]struct{}) }

// add has the request plane know a service from now on.
func (v *server) add(s *Service) (err error) {
	if s.stop, err = v.r.planes()[0].Serve(&s.instance, s); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		s.stop()
		return plane.ErrClosed
	}
	v.services[s] = struct{}{}
	return nil
}

func (v *server) remove(s *Service) {
	s.stop()
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.services, s)
}

func (v *server) close() {
	v.mu.Lock()
	v.closed = true
	services := slices.Collect(maps.Keys(v.services))
	v.mu.Unlock()
	for _, s := range services {
		s.Close(false)
	}
}

// begin counts a request that is to run.
func (v *server) begin() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running >= v.r.opts.MaxRequests {
		return fmt.Errorf("%w: %d requests run", plane.ErrOverloaded, v.running)
	}
	v.running++
	return nil
}

func (v *server) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running--
}

// Take takes a request, or refuses it. It is for the request plane.
func (s *Service) Take(payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the endpoint is shutting down")
	}
	if err := s.r.server.begin(); err != nil {
		return err
	}
	s.calls.Go(func() {
		defer s.r.server.end()
		s.answer(payload)
	})
	return nil
}

// maxRefusing bounds the callers that are told of a refusal at a time; others have to find out by themselves.
const maxRefusing = 64

// Refuse tells a caller that its request is refused, by the response that it waits for. It is for the request plane.
func (s *Service) Refuse(payload []byte, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.r.server
	v.mu.Lock()
	defer v.mu.Unlock()
	if s.closed || v.refusing >= maxRefusing {
		return
	}
	v.refusing++
	s.calls.Go(func() {
		defer func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.refusing--
		}()
		header, _, err := plane.SplitMessage(payload)
		if err != nil {
			return
		}
		control, err := plane.DecodeControl(header)
		if err != nil {
			return
		}
		if sender, err := callhome.Dial(s.ctx, &control, s.plain, s.r.opts.CallHome); err == nil {
			_ = sender.Begin(plane.FailureOf(why))
		}
	})
}

// answer runs the handler. A request that cannot be read has nobody to be told.
func (s *Service) answer(payload []byte) {
	header, body, err := plane.SplitMessage(payload)
	if err != nil {
		return
	}
	control, err := plane.DecodeControl(header)
	if err != nil {
		return
	}
	sender, err := callhome.Dial(s.ctx, &control, s.plain, s.r.opts.CallHome)
	if err != nil {
		return
	}
	if control.Codec == discovery.CodecJSON {
		body, err = wire.FromJSON(nil, body)
	} else {
		err = wire.Valid(body)
	}
	if err != nil {
		_ = sender.Begin(plane.FailureOf(fmt.Errorf("%w: request: %w", plane.ErrInvalidArgument, err)))
		return
	}
	defer sender.Abort() // after End it has no effect
	c := &Call{ID: control.ID, Body: body, Metadata: control.Metadata, sender: sender}
	if !s.late && c.begin() != nil {
		return
	}
	err = s.handle(c)
	if err != nil && !c.begun {
		_ = sender.Begin(plane.FailureOf(err)) // or nobody waits for it
		return
	}
	if c.begin() != nil {
		return
	}
	if err != nil {
		_ = sender.Fail(plane.FailureOf(err)) // End says what became of it
	}
	_ = sender.End()
}

func (s *Service) handle(c *Call) (err error) {
	return owned.Try(func() error { return s.handler(c) })
}

// RegisterModel stores a model card of a service, a JSON object in Dynamo's form. A router takes only instances with a card; one that names an adapter
// (lora.name) stands beside it, and has requests for the adapter come here. It lives as long as the process does, unless it is deleted. Errors:
// plane.ErrInvalidArgument, those of the store.
func (s *Service) RegisterModel(card json.RawMessage) error {
	m, err := discovery.NewModel(s.instance.Name, s.instance.ID, card)
	if err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	return s.r.store.Create(discovery.ModelKey(m.Name, m.ID, m.Suffix), m.Encode())
}

// UnregisterModel deletes the service's own model card.
func (s *Service) UnregisterModel() error {
	return s.r.store.Delete(discovery.ModelKey(s.instance.Name, s.instance.ID, ""))
}

// UnregisterAdapter deletes the card of an adapter.
func (s *Service) UnregisterAdapter(name string) error {
	return s.r.store.Delete(discovery.ModelKey(s.instance.Name, s.instance.ID, discovery.Slug(name)))
}
