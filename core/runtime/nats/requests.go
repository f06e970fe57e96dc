package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/nats-io/nats.go"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// queue is the group that an instance's subscription is in, as Dynamo's are.
const queue = "q"

// subjectOf is what requests for an instance are sent to.
func subjectOf(i *discovery.Instance) string {
	token := func(s string, lower bool) string {
		if lower {
			s = strings.ToLower(s)
		}
		return discovery.Escape(s, func(c byte) bool { return c == '_' || c == '-' })
	}
	return token(i.Namespace+"_"+i.Component, true) + "." + token(i.Endpoint, false) + "-" + discovery.Hex(i.ID)
}

// literal tells whether a subject can be published to.
func literal(subject string) bool {
	if subject == "" || len(subject) > 1024 || strings.ContainsAny(subject, " \t\r\n*>\x00") {
		return false
	}
	return !strings.HasPrefix(subject, ".") && !strings.HasSuffix(subject, ".") && !strings.Contains(subject, "..")
}

// acks hands out the replies to requests.
type acks struct {
	prefix string // of the subjects that they come to

	mu      sync.Mutex // guards the rest
	next    uint64
	waiting map[string]chan *client.Msg
}

func (a *acks) init() {
	a.prefix, a.waiting = "_INBOX."+rand.Text()+".", make(map[string]chan *client.Msg)
}

func (a *acks) expect() (subject string, answer chan *client.Msg) {
	answer = make(chan *client.Msg, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	subject = a.prefix + strconv.FormatUint(a.next, 36)
	a.waiting[subject] = answer
	return subject, answer
}

func (a *acks) forget(subject string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, subject)
}

func (a *acks) take(m *client.Msg) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer := a.waiting[m.Subject]; answer != nil {
		delete(a.waiting, m.Subject)
		answer <- m
	}
}

var (
	errLost    = errors.New("the NATS server was lost")
	errMissing = errors.New("nobody listens")
)

// Send implements plane.Requests.
func (c *Conn) Send(ctx context.Context, to *discovery.Instance, m *plane.Message) error {
	if !literal(to.NATS) {
		return fmt.Errorf("%w: subject %.256q of instance %d", plane.ErrInvalidArgument, to.NATS, to.ID)
	}
	for {
		nc, s, err := c.wait(ctx, c.opts.RequestWait, m.Begun)
		if s == nil {
			return err
		}
		err = c.attempt(ctx, nc, s, to, m)
		pause := 50 * time.Millisecond
		switch {
		case errors.Is(err, errLost):
			pause = time.Second // the worker may have it, and begin
		case errors.Is(err, errMissing) && time.Since(s.since) < c.opts.Settle:
		case errors.Is(err, errMissing):
			return fmt.Errorf("%w: instance %d of %s: nobody listens to %s", plane.ErrUnavailable, to.ID, to.Name, to.NATS)
		default:
			return err
		}
		select {
		case <-m.Begun:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// attempt sends once, in a session.
func (c *Conn) attempt(ctx context.Context, nc *client.Conn, s *session, to *discovery.Instance, m *plane.Message) error {
	reply, answer := c.acks.expect()
	defer c.acks.forget(reply)
	msg := &client.Msg{Subject: to.NATS, Reply: reply, Data: m.Payload, Header: client.Header{
		"request-id": []string{header(m.ID)}, "x-frontend-send-ts-ns": []string{strconv.FormatInt(time.Now().UnixNano(), 10)},
	}}
	if err := nc.PublishMsg(msg); errors.Is(err, client.ErrMaxPayload) {
		return fmt.Errorf("%w: request of %d bytes, the NATS server takes %d", plane.ErrTooLarge, len(m.Payload), nc.MaxPayload())
	} else if err != nil {
		return errLost
	}
	timer := time.NewTimer(c.opts.AckTimeout)
	defer timer.Stop()
	select {
	case got := <-answer:
		if len(got.Data) == 0 && got.Header.Get("Status") == "503" {
			return errMissing
		}
		return plane.Refused(string(got.Data[:min(len(got.Data), maxRefusal)]))
	case <-m.Begun:
		return nil
	case <-s.down:
		return errLost
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return plane.ErrClosed
	case <-timer.C:
		return fmt.Errorf("%w: instance %d of %s did not acknowledge within %v", plane.ErrTimeout, to.ID, to.Name, c.opts.AckTimeout)
	}
}

// maxRefusal bounds the text of a refusal.
const maxRefusal = 64 << 10

// header is a text that can be a header's value.
func header(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}

// served is a service.
type served struct {
	subject string
	service plane.Service
	ready   chan struct{} // closed when the server knows of the subscription

	sub       *client.Subscription // nil: not yet; guarded by Conn.mu
	confirmed bool                 // likewise
}

// Serve implements plane.Requests. It waits until the server knows of it, so that whoever finds the instance can reach it.
func (c *Conn) Serve(at *discovery.Instance, s plane.Service) (stop func(), err error) {
	v := &served{subject: subjectOf(at), service: s, ready: make(chan struct{})}
	if err := c.add(v); err != nil {
		return nil, err
	}
	stop = sync.OnceFunc(func() { c.remove(v) })
	timer := time.NewTimer(c.opts.ServerWait)
	defer timer.Stop()
	select {
	case <-v.ready:
	case <-c.ctx.Done():
		err = plane.ErrClosed
	case <-timer.C:
		if !c.opts.Background {
			err = c.unreached(c.opts.ServerWait)
		}
	}
	if err != nil {
		stop()
		return nil, err
	}
	at.NATS = v.subject
	return stop, nil
}

func (c *Conn) add(v *served) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return plane.ErrClosed
	case c.served[v.subject] != nil:
		return fmt.Errorf("%w: %s is served already", plane.ErrInvalidArgument, v.subject)
	}
	c.served[v.subject] = v
	c.poke()
	return nil
}

func (c *Conn) remove(v *served) {
	c.mu.Lock()
	delete(c.served, v.subject)
	sub := v.sub
	c.mu.Unlock()
	if sub != nil && sub.Drain() != nil { // what is on its way is refused
		_ = sub.Unsubscribe()
	}
}

// listen subscribes for a service, unless it is gone; c.mu is held.
func (c *Conn) listen(nc *client.Conn, v *served) error {
	if v.sub != nil || c.served[v.subject] != v {
		return nil
	}
	sub, err := nc.QueueSubscribe(v.subject, queue, func(m *client.Msg) { owned.Do(func() { handle(nc, v.service, m) }) })
	if err == nil {
		_ = sub.SetPendingLimits(c.opts.MaxPendingMessages, c.opts.MaxPendingBytes)
		v.sub = sub
	}
	return err
}

func handle(nc *client.Conn, s plane.Service, m *client.Msg) {
	why := owned.Try(func() error { return s.Take(m.Data) })
	if m.Reply != "" {
		_ = nc.Publish(m.Reply, []byte(plane.Refusal(why))) // a caller that hears nothing asks another
	}
	if why != nil {
		s.Refuse(m.Data, why) // Dynamo's callers do not read the reply
	}
}
