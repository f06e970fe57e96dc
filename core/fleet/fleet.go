package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// Options of a Fleet. The zero value of a field means its default.
type Options struct {
	Mode     Mode // how an engine is chosen; KV
	Attempts int  // engines that a request is sent to until one begins to answer; 5
	Limits   engine.Limits
	Health   engine.Health
	Linger   time.Duration // for requests that run on an engine that was removed; 5 min
	Poll     time.Duration // how often a watched file is looked at; 1 s
	Look     time.Duration // how often engines are asked which LoRA adapters they have; 30 s
	Silence  time.Duration // how long events of a healthy engine may be disconnected until the log says so; 5 s
	Router   router.Options
	Log      *slog.Logger
}

// Fleet is a router with its engines. All methods are safe for concurrent use.
type Fleet struct {
	opts    Options
	router  *router.Router
	ctx     context.Context
	cancel  context.CancelFunc
	running owned.Group // members, those that linger, the watch
	turn    atomic.Uint64
	ids     atomic.Uint64
	prefix  string
	routed  sync.Map                            // uint64: *member, of all workers of the router
	adapted atomic.Pointer[map[string]struct{}] // names of LoRA adapters that any engine has; nil: none

	mu      sync.Mutex // guards the rest
	closed  bool
	members map[uint64]*member
	leaving map[uint64]*member // the last one of an id that was removed, until it has left the router
	order   []*member          // of members, by id
	changed chan struct{}
	file    *File // nil: none is watched
}

// member is an engine of the fleet.
type member struct {
	f      *Fleet
	spec   Spec
	engine *engine.Engine
	gone   context.Context
	leave  context.CancelFunc
	after  *member       // whose id it has, and who must have left the router first; nil: nobody
	left   chan struct{} // closed when it has
	up     atomic.Bool   // a candidate
	known  bool          // the router's; of run

	mu    sync.Mutex // guards the rest
	about engine.Description
	dp    uint32
	err   string // why it is no worker, or lacks what it should have

	kvEvents, replay router.Endpoints // that the router was given
}

// New makes a fleet without engines. blockSize is that of the engines, in tokens. Errors: those of router.New.
func New(blockSize int, config router.Config, o Options) (*Fleet, error) {
	o.Mode = cmp.Or(o.Mode, KV)
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Linger = cmp.Or(o.Linger, 5*time.Minute)
	o.Poll = cmp.Or(o.Poll, time.Second)
	o.Look = cmp.Or(o.Look, 30*time.Second)
	o.Silence = max(cmp.Or(o.Silence, 5*time.Second), 2)
	if err := o.Mode.check(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r, err := router.New(blockSize, config, o.Router)
	if err != nil {
		return nil, err
	}
	f := &Fleet{opts: o, router: r, members: make(map[uint64]*member), leaving: make(map[uint64]*member), changed: make(chan struct{}), prefix: randomPrefix()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.running.Keep(f.ctx.Done(), f.overlook)
	return f, nil
}

// Router is what decides. Its workers are the fleet's.
func (f *Fleet) Router() *router.Router { return f.router }

// Close ends all requests, closes the engines and the router. It is idempotent.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	file := f.file
	f.mu.Unlock()
	f.cancel()
	if file != nil {
		file.Close()
	}
	f.running.Wait()
	f.router.Close()
}

// Add adds an engine, and gives its id. It becomes a candidate when it is healthy. Errors: ErrInvalid, ErrDuplicate, ErrClosed.
func (f *Fleet) Add(s Spec) (uint64, error) {
	if err := s.Normal(); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.ID, f.add(s)
}

func (f *Fleet) add(s Spec) error {
	switch {
	case f.closed:
		return ErrClosed
	case f.members[s.ID] != nil:
		return fmt.Errorf("%w: %d is %s", ErrDuplicate, s.ID, f.members[s.ID].spec.URL)
	case len(f.members) >= MaxEngines:
		return fmt.Errorf("%w: more than %d engines", ErrInvalid, MaxEngines)
	}
	h := f.opts.Health
	h.Path = cmp.Or(s.HealthPath, h.Path)
	e, err := engine.New(engine.Config{URL: s.URL, Kind: s.Kind, Model: s.Model, Header: s.Header, DPSize: s.DPSize, Limits: f.opts.Limits, Health: h, Log: f.opts.Log})
	if err != nil {
		return err
	}
	m := &member{f: f, spec: s, engine: e, dp: max(s.DPSize, 1), after: f.leaving[s.ID], left: make(chan struct{})}
	if s.Draining {
		e.Drain()
	}
	m.gone, m.leave = context.WithCancel(f.ctx)
	f.members[s.ID] = m
	f.reorder()
	f.running.Go(m.run)
	return nil
}

// reorder follows a change of members. f.mu is held.
func (f *Fleet) reorder() {
	f.order = slices.SortedFunc(maps.Values(f.members), func(a, b *member) int { return cmp.Compare(a.spec.ID, b.spec.ID) })
	f.gather()
	f.tell()
}

func (f *Fleet) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Remove takes an engine out. Requests that run on it go on, for Options.Linger. Errors: ErrNotFound.
func (f *Fleet) Remove(id uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[id]
	if m == nil {
		return fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	f.remove(m)
	return nil
}

func (f *Fleet) remove(m *member) {
	delete(f.members, m.spec.ID)
	f.leaving[m.spec.ID] = m
	m.leave()
	f.reorder()
}

// Set makes the engines those described: others are removed, those whose description changed are removed and added. Errors: ErrInvalid, ErrDuplicate,
// ErrClosed; nothing changed then.
func (f *Fleet) Set(specs []Spec) error {
	want := make(map[uint64]Spec, len(specs))
	for _, s := range specs {
		if err := s.Normal(); err != nil {
			return err
		}
		if old, twice := want[s.ID]; twice {
			return fmt.Errorf("%w: %d is %s and %s", ErrDuplicate, s.ID, old.URL, s.URL)
		}
		want[s.ID] = s
	}
	if len(want) > MaxEngines {
		return fmt.Errorf("%w: %d engines, expected at most %d", ErrInvalid, len(want), MaxEngines)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	for id, m := range f.members {
		s, stays := want[id]
		drain := s.Draining
		s.Draining = m.spec.Draining
		if !stays || !reflect.DeepEqual(s, m.spec) {
			f.remove(m)
		} else if m.spec.Draining = drain; drain != s.Draining {
			m.drain(drain)
		}
	}
	for id, s := range want {
		if f.members[id] == nil {
			if err := f.add(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// Drain says that an engine should get no more requests; those that run go on, and its feeds. Errors: ErrNotFound.
func (f *Fleet) Drain(id uint64) error { return f.with(id, (*engine.Engine).Drain) }

// Resume ends draining. Errors: ErrNotFound.
func (f *Fleet) Resume(id uint64) error { return f.with(id, (*engine.Engine).Resume) }

func (m *member) drain(on bool) {
	if on {
		m.engine.Drain()
	} else {
		m.engine.Resume()
	}
}

// WaitIdle waits until no request runs on an engine. Errors: ErrNotFound, and that of ctx.
func (f *Fleet) WaitIdle(ctx context.Context, id uint64) (err error) {
	if missing := f.with(id, func(e *engine.Engine) { err = e.WaitIdle(ctx) }); missing != nil {
		return missing
	}
	return err
}

func (f *Fleet) with(id uint64, do func(*engine.Engine)) error {
	m := f.member(id)
	if m == nil {
		return fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	do(m.engine)
	return nil
}

func (f *Fleet) member(id uint64) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[id]
}

// Engine gives an engine by id, nil if there is none.
func (f *Fleet) Engine(id uint64) *engine.Engine {
	if m := f.member(id); m != nil {
		return m.engine
	}
	return nil
}

// Info is what is known of an engine.
type Info struct {
	WorkerID  uint64 `json:"worker_id"`
	URL       string `json:"url"`
	Candidate bool   `json:"candidate"`
	Error     string `json:"error"` // why it is no worker of the router, or what it lacks; "": nothing
	DPStart   uint32 `json:"dp_start"`
	DPSize    uint32 `json:"dp_size"`
	engine.Status
	Ranks []Rank             `json:"ranks,omitempty"` // of Fleet.Ranks, for who tells of all at once; Engines leaves it out
	About engine.Description `json:"-"`
}

// Engines lists all, by id.
func (f *Fleet) Engines() []Info {
	f.mu.Lock()
	order := f.order
	f.mu.Unlock()
	all := make([]Info, 0, len(order))
	for _, m := range order {
		m.mu.Lock()
		all = append(all, Info{
			WorkerID: m.spec.ID, URL: m.spec.URL, Candidate: m.up.Load(), Error: m.err, DPStart: m.spec.DPStart, DPSize: m.dp, Status: m.engine.Status(), About: m.about,
		})
		m.mu.Unlock()
	}
	return all
}

// candidates gives those that may get requests now.
func (f *Fleet) candidates() []*member {
	f.mu.Lock()
	order := f.order
	f.mu.Unlock()
	some := make([]*member, 0, len(order))
	for _, m := range order {
		if m.up.Load() && m.engine.State() == engine.Healthy {
			some = append(some, m)
		}
	}
	return some
}

// Changed gives a channel that is closed when engines come, go, or become or stop being candidates.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// WaitReady waits until so many engines are candidates. Errors: that of ctx, ErrClosed.
func (f *Fleet) WaitReady(ctx context.Context, n int) error {
	for {
		changed := f.Changed()
		if len(f.candidates()) >= n {
			return nil
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			var why error
			for _, i := range f.Engines() {
				if !i.Candidate {
					why = errors.Join(why, fmt.Errorf("engine %s is %s: %s", i.URL, i.State, cmp.Or(i.Error, i.Reason)))
				}
			}
			return errors.Join(ctx.Err(), why)
		}
	}
}

// run follows the engine until it leaves, and then until it is idle.
func (m *member) run() {
	defer m.engine.Close()
	if m.after != nil {
		<-m.after.left
	}
	m.follow()
	m.engine.Drain()
	ctx, cancel := context.WithTimeout(m.f.ctx, m.f.opts.Linger)
	defer cancel()
	_ = m.engine.WaitIdle(ctx) // who is not done by then is cut off
}

// follow keeps the router in step with the engine until it leaves.
func (m *member) follow() {
	defer func() {
		if fault := recover(); fault != nil {
			m.f.opts.Log.Error("engine", "url", m.spec.URL, "panic", fmt.Sprint(fault))
			m.say(fmt.Sprintf("panic: %v", fault))
		}
		m.forget()
		m.f.mu.Lock()
		defer m.f.mu.Unlock()
		if m.f.leaving[m.spec.ID] == m {
			delete(m.f.leaving, m.spec.ID)
		}
		close(m.left)
		m.f.tell()
	}()
	const again = time.Second
	var retry <-chan time.Time
	var seen uint64 // returns
	looked := time.Now()
	for m.gone.Err() == nil {
		changed := m.engine.Changed()
		st := m.engine.Status()
		retry = nil
		if st.State == engine.Healthy {
			other := false
			if m.known && time.Since(looked) >= m.f.opts.Look {
				other, looked = m.readapted(), time.Now()
			}
			if m.join(st.Returned != seen || other) {
				seen = st.Returned
				retry = time.After(m.f.opts.Look)
			} else {
				retry = time.After(again)
			}
		}
		m.stand(st.State == engine.Healthy)
		m.f.moveOn()
		if st.Active > 0 && st.State != engine.Healthy {
			retry = time.After(again) // what was sent before the engine was known to be ill
		}
		select {
		case <-changed:
		case <-retry:
		case <-m.gone.Done():
		}
	}
}

func (m *member) say(err string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// join makes the engine a worker of the router; again if it may be another one than before. false: it did not tell what it is, or cannot be one.
func (m *member) join(again bool) bool {
	if m.known && !again {
		return true
	}
	ctx, cancel := context.WithTimeout(m.gone, 10*time.Second)
	defer cancel()
	about, err := m.engine.Describe(ctx)
	var told *engine.StatusError
	if err != nil && !errors.As(err, &told) { // a server without /v1/models has nothing to say
		m.say(err.Error())
		return false
	}
	w, lacks := m.spec.worker(&about, m.engine.Host(), m.f.router.BlockSize())
	m.engine.SetDPSize(w.DPSize)
	m.f.routed.Store(m.spec.ID, m)
	err = m.f.router.AddWorker(w)
	if errors.Is(err, router.ErrDuplicateWorker) && m.known { // it publishes elsewhere now
		m.forget()
		m.f.routed.Store(m.spec.ID, m)
		err = m.f.router.AddWorker(w)
	}
	m.known = m.known || err == nil
	defer m.f.adapt()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.about, m.err, m.dp = about, lacks, w.DPSize
	m.kvEvents, m.replay = w.KVEvents, w.Replay
	if err != nil {
		m.err = err.Error()
	}
	if m.err != "" {
		m.f.opts.Log.Warn("engine", "url", m.spec.URL, "lacks", m.err)
	}
	return err == nil
}

// moveOn has requests go elsewhere that wait for engines that answer no checks any more, if there is an elsewhere.
func (f *Fleet) moveOn() {
	if len(f.candidates()) == 0 {
		return
	}
	f.mu.Lock()
	order := f.order
	f.mu.Unlock()
	for _, m := range order {
		m.engine.GiveUp()
	}
}

// readapted tells whether the engine has other LoRA adapters than it had.
func (m *member) readapted() bool {
	ctx, cancel := context.WithTimeout(m.gone, 10*time.Second)
	defer cancel()
	now, err := m.engine.Adapters(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	return err == nil && !slices.Equal(now, m.about.Adapters)
}

// adapters gives the names of the LoRA adapters that it has.
func (m *member) adapters() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(m.spec.Adapters, m.about.Adapters)
}

// Serves tells whether any engine has a model of that name, or an adapter, as far as engines told.
func (f *Fleet) Serves(name string) bool {
	f.mu.Lock()
	order := f.order
	f.mu.Unlock()
	return slices.ContainsFunc(order, func(m *member) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.spec.Model == name || slices.Contains(m.spec.Adapters, name) || slices.Contains(m.about.Models, name)
	})
}

// HasAdapter tells whether any engine has a LoRA adapter: a request that names it as its model is one for that (router.Request.LoRAName).
func (f *Fleet) HasAdapter(name string) bool {
	all := f.adapted.Load()
	if all == nil || name == "" {
		return false
	}
	_, has := (*all)[name]
	return has
}

// adapt gathers the LoRA adapters of all engines anew.
func (f *Fleet) adapt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gather()
}

// gather is adapt. f.mu is held.
func (f *Fleet) gather() {
	all := make(map[string]struct{})
	for _, m := range f.order {
		for _, name := range m.adapters() {
			all[name] = struct{}{}
		}
	}
	f.adapted.Store(&all)
}

// stand makes it a candidate or none.
func (m *member) stand(up bool) {
	if m.known {
		err := m.f.router.Suspend(m.spec.ID, !up)
		m.up.Store(up && err == nil)
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.tell()
}

// forget takes it out of the router.
func (m *member) forget() {
	m.up.Store(false)
	if m.known {
		_ = m.f.router.RemoveWorker(m.spec.ID) // or the router is closed
		m.f.routed.Delete(m.spec.ID)
		m.known = false
	}
}
