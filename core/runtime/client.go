package runtime

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Client follows the instances of an endpoint, and calls them. All methods are safe for concurrent use.
type Client struct {
	r       *Runtime
	name    discovery.Name
	view    *discovery.View
	stop    chan struct{}
	once    sync.Once
	running owned.Group

	refreshing sync.Mutex // held by Refresh

	mu        sync.Mutex // guards the rest
	instances map[uint64]*instance
	paths     map[string]uint64   // of their records
	news      map[uint64]struct{} // ids that Take has not given yet; nil: nobody takes any
	changed   chan struct{}       // closed, and made anew, at each change
	turn      uint64
}

// instance is one that is registered.
type instance struct {
	discovery.Instance
	gone      context.Context
	leave     context.CancelCauseFunc
	inhibited time.Time // no calls before that, if there is another
}

// Client follows the instances of the endpoint, those there are now included. Errors: those of the store.
func (e *Endpoint) Client() (*Client, error) {
	view, err := e.r.store.Watch(discovery.Instances, e.Prefix())
	if err != nil {
		return nil, err
	}
	c := &Client{
		r: e.r, name: e.Name, view: view, stop: make(chan struct{}), instances: make(map[uint64]*instance),
		paths: make(map[string]uint64), changed: make(chan struct{}), turn: rand.Uint64(),
	}
	c.Refresh()
	c.running.Keep(c.stop, func() {
		for {
			select {
			case <-c.stop:
				return
			case <-view.Changed():
				c.Refresh()
			}
		}
	})
	return c, nil
}

// Close stops following. Calls that wait for an instance fail; streams go on. It is idempotent.
func (c *Client) Close() {
	c.once.Do(func() {
		close(c.stop)
		c.running.Wait()
		c.view.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, i := range c.instances {
			i.leave(plane.ErrClosed)
		}
		clear(c.instances)
		clear(c.paths)
	})
}

// Refresh takes what discovery shows now; otherwise that follows by itself.
func (c *Client) Refresh() {
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	c.view.Take(c.take)
}

// take takes a record that changed; nil: it is gone. c.refreshing is held.
func (c *Client) take(path string, record []byte) {
	var now *instance
	why := "gone"
	if found, err := discovery.DecodeInstance(path, record); err == nil && found.Name == c.name {
		now = &instance{Instance: found}
		now.gone, now.leave = context.WithCancelCause(context.Background())
		why = "registered anew"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id, known := c.paths[path]
	if known && now != nil && c.instances[id].Instance == now.Instance {
		return
	}
	if known {
		c.instances[id].leave(fmt.Errorf("%w: instance %d is %s", plane.ErrUnavailable, id, why))
		delete(c.instances, id)
		delete(c.paths, path)
	}
	if now != nil {
		id = now.ID // a path says which
		c.instances[id], c.paths[path] = now, id
	}
	if !known && now == nil {
		return
	}
	if c.news != nil {
		c.news[id] = struct{}{}
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Take gives the id of each instance that came, changed or left since it was taken the last time, and whether it is there. It is for one goroutine at a
// time. What each panics about is given again.
func (c *Client) Take(each func(id uint64, there bool)) {
	c.mu.Lock()
	if c.news == nil {
		c.news = make(map[uint64]struct{})
		for id := range c.instances {
			c.news[id] = struct{}{}
		}
	}
	changes := make(map[uint64]*instance, len(c.news))
	for id := range c.news {
		changes[id] = c.instances[id]
	}
	c.mu.Unlock()
	for id, i := range changes {
		each(id, i != nil)
		c.mu.Lock()
		if c.instances[id] == i {
			delete(c.news, id)
		}
		c.mu.Unlock()
	}
}

// IDs are those of all instances, in order.
func (c *Client) IDs() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.instances))
}

// Instances are all there are, by id.
func (c *Client) Instances() []discovery.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]discovery.Instance, 0, len(c.instances))
	for _, i := range c.instances {
		all = append(all, i.Instance)
	}
	slices.SortFunc(all, func(a, b discovery.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Changed gives a channel that is closed when the instances change.
func (c *Client) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// WaitForInstances waits until there is one, and gives the ids of all. Errors: that of ctx, plane.ErrClosed.
func (c *Client) WaitForInstances(ctx context.Context) ([]uint64, error) {
	for {
		changed := c.Changed()
		if ids := c.IDs(); len(ids) > 0 {
			return ids, nil
		}
		select {
		case <-changed:
		case <-c.stop:
			return nil, plane.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Direct calls one instance. Errors: plane.ErrInstanceNotFound, and those of Runtime.Call; plane.ErrUnavailable also if the instance leaves before it
// has begun.
func (c *Client) Direct(ctx context.Context, id uint64, q *Request) (*Stream, error) {
	c.mu.Lock()
	i := c.instances[id]
	c.mu.Unlock()
	if i == nil {
		return nil, fmt.Errorf("%w: %d does not serve %s", plane.ErrInstanceNotFound, id, c.name)
	}
	return c.call(ctx, i, q)
}

// Random calls an instance at random. Errors: plane.ErrNoInstances, and those of Runtime.Call.
func (c *Client) Random(ctx context.Context, q *Request) (*Stream, error) {
	return c.pick(ctx, q, func(n int) int { return rand.IntN(n) })
}

// RoundRobin calls the instances in turn. Errors: plane.ErrNoInstances, and those of Runtime.Call.
func (c *Client) RoundRobin(ctx context.Context, q *Request) (*Stream, error) {
	return c.pick(ctx, q, func(n int) int {
		c.turn++
		return int(c.turn % uint64(n))
	})
}

// pick calls one of those that are not inhibited; choose is called under c.mu.
func (c *Client) pick(ctx context.Context, q *Request, choose func(n int) int) (*Stream, error) {
	c.mu.Lock()
	all := slices.SortedFunc(maps.Values(c.instances), func(a, b *instance) int { return cmp.Compare(a.ID, b.ID) })
	now := time.Now()
	free := slices.DeleteFunc(slices.Clone(all), func(i *instance) bool { return now.Before(i.inhibited) })
	if len(free) == 0 {
		free = all
	}
	if len(free) == 0 {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w of %s", plane.ErrNoInstances, c.name)
	}
	i := free[choose(len(free))]
	c.mu.Unlock()
	return c.call(ctx, i, q)
}

func (c *Client) call(ctx context.Context, i *instance, q *Request) (*Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := owned.After(i.gone, func() { cancel(context.Cause(i.gone)) })
	defer stop()
	s, err := c.r.Call(ctx, &i.Instance, q)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.Report(i.ID, err)
	}
	return s, err
}

// Report tells of an error of a call to an instance, also one of its stream: if it says that the instance cannot be relied on, it is left alone for
// a while (Options.Inhibit) by whoever may choose another.
func (c *Client) Report(id uint64, err error) {
	if !plane.Quarantines(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		i.inhibited = time.Now().Add(c.r.opts.Inhibit)
	}
}

// Inhibited gives the instances that are left alone now.
func (c *Client) Inhibited() map[uint64]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all map[uint64]time.Time
	now := time.Now()
	for id, i := range c.instances {
		if now.Before(i.inhibited) {
			if all == nil {
				all = make(map[uint64]time.Time)
			}
			all[id] = i.inhibited
		}
	}
	return all
}
