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

// Serve implements plane.Requests. It waits for the server.
func (c *Conn) Serve(at *discovery.Instance, s plane.Service) (stop func(), err error) {
	subject := subjectOf(at)
	nc, _, err := c.wait(c.ctx, c.opts.ServerWait, nil)
	if err != nil {
		return nil, err
	}
	sub, err := c.listen(nc, subject, s)
	if err != nil {
		return nil, err
	}
	stop = sync.OnceFunc(func() {
		c.mu.Lock()
		delete(c.served, subject)
		c.mu.Unlock()
		if sub.Drain() != nil { // what is on its way is refused
			_ = sub.Unsubscribe()
		}
	})
	// Whoever finds the instance can reach it: the server knows of the subscription before.
	if err := nc.FlushTimeout(c.opts.AckTimeout); err != nil {
		stop()
		return nil, fmt.Errorf("%w: NATS server %s: %w", plane.ErrNoServer, c.where(), err)
	}
	at.NATS = subject
	return stop, nil
}

func (c *Conn) listen(nc *client.Conn, subject string, s plane.Service) (*client.Subscription, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, plane.ErrClosed
	case c.served[subject] != nil:
		return nil, fmt.Errorf("%w: %s is served already", plane.ErrInvalidArgument, subject)
	}
	sub, err := nc.QueueSubscribe(subject, queue, func(m *client.Msg) { owned.Do(func() { handle(nc, s, m) }) })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", plane.ErrCannotConnect, err)
	}
	_ = sub.SetPendingLimits(c.opts.MaxPendingMessages, c.opts.MaxPendingBytes)
	c.served[subject] = sub
	return sub, nil
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
