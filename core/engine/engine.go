package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/internal/rawhttp"
)

// State says whether an engine should get requests.
type State string

// States. Only a Healthy engine should get any.
const (
	Starting State = "starting" // no check succeeded yet
	Healthy  State = "healthy"
	Ejected  State = "ejected"
	Draining State = "draining"
)

// Status tells how an engine is.
type Status struct {
	State    State     `json:"state"`
	Reason   string    `json:"reason"` // of Starting and Ejected: what went wrong last
	Since    time.Time `json:"since"`
	Active   int       `json:"active"`   // requests that run
	Requests uint64    `json:"requests"` // that were begun
	Faults   uint64    `json:"faults"`   // of requests, that count against it
	Checks   uint64    `json:"checks"`
	Failed   uint64    `json:"failed_checks"`
	Ejected  uint64    `json:"ejections"`
	Returned uint64    `json:"returns"` // times that it was healthy again after an ejection: it may have been restarted
}

// Engine is one server. All methods are safe for concurrent use.
//
// Invariant: changed is closed, and made anew, whenever what State gives changes.
type Engine struct {
	cfg    Config
	url    *url.URL
	http   *http.Transport
	raw    *rawhttp.Pool   // of Calls
	lines  []byte          // headers of the configuration, for Calls
	ctx    context.Context // of everything that runs
	cancel context.CancelFunc
	nudge  chan struct{} // to look when the next check is due; of one
	done   chan struct{} // the checks ended
	ranks  atomic.Uint32

	mu       sync.Mutex // guards the rest
	status   Status     // State is never Draining here
	draining bool
	changed  chan struct{}
	idle     chan struct{} // closed when nothing runs; nil: nobody waits
	due      time.Time     // of the next check; of an ejected engine the end of its back-off too
	level    int           // of the back-off
	faults   int           // of requests, in a row
	failed   int           // checks, in a row
	served   int           // requests since it was healthy again
	model    string        // that it serves, if it is known
	kind     Kind
	idsByLog bool // token ids are asked for by logprobs
	silent   bool // it was ejected because checks failed
	first    *turn
}

// turn is that of a request of which nothing of an answer came: one of a list, which begins with Engine.first and is guarded as that.
type turn struct {
	before, after *turn
	listed        bool
	give          func() // has the request fail as ErrTimeout soon; it calls nothing of the engine
}

// calm is how many requests in a row make an engine one that never failed.
const calm = 16

// New begins to check an engine, which is Starting; it does no I/O itself. Errors: ErrInvalid.
func New(cfg Config) (*Engine, error) {
	u, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	cfg.fill()
	cfg.Header = cfg.Header.Clone()
	e := &Engine{
		cfg: cfg, url: u, http: cfg.transport(), nudge: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{}),
		status: Status{State: Starting, Reason: "not checked yet", Since: time.Now()}, model: cfg.Model, kind: cfg.Kind,
	}
	e.raw, e.lines = e.newPool(), cfg.own()
	e.ranks.Store(cfg.DPSize)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	new(owned.Group).Go(e.watch) // which closes done
	return e, nil
}

// URL is where it is.
func (e *Engine) URL() string { return e.url.String() }

// Host is the host of its URL, without port.
func (e *Engine) Host() string { return e.url.Hostname() }

// Limits are those in force.
func (e *Engine) Limits() Limits { return e.cfg.Limits }

// DPSize is the number of ranks behind it.
func (e *Engine) DPSize() uint32 { return e.ranks.Load() }

// State says whether it should get requests.
func (e *Engine) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state()
}

func (e *Engine) state() State {
	if e.draining {
		return Draining
	}
	return e.status.State
}

// Status tells how it is.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.status
	s.State = e.state()
	return s
}

// Changed gives a channel that is closed when the state changes.
func (e *Engine) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// Drain says that it should get no more requests; those that run go on.
func (e *Engine) Drain() { e.drain(true) }

// Resume ends draining.
func (e *Engine) Resume() { e.drain(false) }

func (e *Engine) drain(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining == on {
		return
	}
	e.draining = on
	e.tell()
}

// WaitIdle waits until no request runs. Errors: that of ctx.
func (e *Engine) WaitIdle(ctx context.Context) error {
	for {
		e.mu.Lock()
		if e.status.Active == 0 {
			e.mu.Unlock()
			return nil
		}
		if e.idle == nil {
			e.idle = make(chan struct{})
		}
		idle := e.idle
		e.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitHealthy waits until it should get requests. Errors: that of ctx, with the reason, and ErrClosed.
func (e *Engine) WaitHealthy(ctx context.Context) error {
	for {
		changed := e.Changed()
		if e.State() == Healthy {
			return nil
		}
		select {
		case <-changed:
		case <-e.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			st := e.Status()
			return fmt.Errorf("%w: engine %s is %s: %s", ctx.Err(), e.URL(), st.State, st.Reason)
		}
	}
}

// Check has it checked at once, or as soon as its back-off allows.
func (e *Engine) Check() {
	e.mu.Lock()
	if e.status.State != Ejected {
		e.due = time.Time{}
	}
	e.mu.Unlock()
	e.wake()
}

func (e *Engine) wake() {
	select {
	case e.nudge <- struct{}{}:
	default:
	}
}

// Close ends the checks, all requests that run, and the connections. It is idempotent.
func (e *Engine) Close() {
	e.cancel()
	<-e.done
	e.http.CloseIdleConnections()
	e.raw.Close()
}

// tell says that the state is another. e.mu is held.
func (e *Engine) tell() {
	close(e.changed)
	e.changed = make(chan struct{})
	e.cfg.Log.Info("engine", "url", e.cfg.URL, "state", string(e.state()), "reason", e.status.Reason)
}

// become changes the state. e.mu is held.
func (e *Engine) become(s State, reason string) {
	e.status.State, e.status.Reason, e.status.Since = s, clip(reason, 500), time.Now()
	e.tell()
}

// watch checks it again and again.
func (e *Engine) watch() {
	defer close(e.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e.mu.Lock()
		wait := time.Until(e.due)
		e.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-e.ctx.Done():
			return
		case <-e.nudge:
			continue
		case <-timer.C:
		}
		err := e.check()
		if e.ctx.Err() != nil {
			return
		}
		e.checked(err)
	}
}

// check asks whether it can serve.
func (e *Engine) check() (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Health.Timeout)
	defer cancel()
	code, _, err := e.get(ctx, e.cfg.Health.Path, e.cfg.Limits.ErrorBytes)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return fmt.Errorf("GET %s: %w", e.cfg.Health.Path, err)
	}
	if code < 200 || code > 299 {
		return fmt.Errorf("GET %s: %w", e.cfg.Health.Path, &StatusError{Code: code, Message: http.StatusText(code)})
	}
	return nil
}

// get asks for a small page, and gives its status and at most so many bytes. It takes no part in the accounting of requests.
func (e *Engine) get(ctx context.Context, path string, most int64) (int, []byte, error) {
	q, err := e.request(ctx, &Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return 0, nil, err
	}
	r, err := e.http.RoundTrip(q)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: no answer in time", ErrTimeout)
			return 0, nil, err
		}
		return 0, nil, sending(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	switch {
	case err != nil:
		return r.StatusCode, nil, fmt.Errorf("%w: %w", ErrBroken, err)
	case int64(len(body)) > most:
		return r.StatusCode, nil, fmt.Errorf("%w: GET %s gives more than %d bytes", ErrTooLarge, path, most)
	}
	return r.StatusCode, body, nil
}

// checked takes what a check said.
func (e *Engine) checked(err error) {
	e.raw.Tidy()
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.status.Checks++
	if err == nil {
		e.failed = 0
		e.due = now.Add(e.cfg.Health.Interval)
		if e.status.State == Healthy {
			return
		}
		if e.status.State == Ejected {
			e.status.Returned++
		}
		e.faults, e.served, e.silent = 0, 0, false
		e.become(Healthy, "")
		return
	}
	e.status.Failed++
	e.failed++
	_, severe := faulty(err)
	var told *StatusError
	if errors.As(err, &told) && told.Code == http.StatusServiceUnavailable {
		severe = true // it says itself that it cannot
	}
	switch {
	case e.status.State == Healthy && !severe && e.failed < e.cfg.Health.Failures:
		e.due = now.Add(min(e.cfg.Health.Interval, time.Second))
	case e.status.State == Healthy:
		e.silent = true
		e.eject(err.Error())
	default:
		e.silent = true
		e.status.Reason = clip(err.Error(), 500)
		e.due = now.Add(e.backoff())
	}
}

// backoff gives the next one, and makes the one after that longer. e.mu is held.
func (e *Engine) backoff() time.Duration {
	h := &e.cfg.Health
	d := h.MaxBackoff
	if e.level < 20 {
		d = min(d, h.Backoff<<e.level)
	}
	e.level++
	return d - time.Duration(rand.Int64N(int64(d)/8+1)) // not all at once
}

// eject has it left alone. e.mu is held.
func (e *Engine) eject(reason string) {
	if e.served >= calm || time.Since(e.status.Since) > 2*e.cfg.Health.MaxBackoff {
		e.level = 0
	}
	e.status.Ejected++
	e.due = time.Now().Add(e.backoff())
	e.become(Ejected, reason)
	e.http.CloseIdleConnections() // of a server that may be gone
	e.raw.CloseIdle()
	e.wake()
}

// GiveUp has those requests fail that wait for an engine that does not even answer checks, and got nothing yet: as ErrTimeout, so that they can be sent
// elsewhere. An engine that answers checks, or was ejected for its answers alone, is left in peace.
func (e *Engine) GiveUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.status.State != Ejected || !e.silent {
		return
	}
	for e.first != nil {
		t := e.first
		e.unlist(t)
		t.give()
	}
}

// unlist takes a turn out of the list, if it is there. e.mu is held.
func (e *Engine) unlist(t *turn) {
	if !t.listed {
		return
	}
	if t.before != nil {
		t.before.after = t.after
	} else {
		e.first = t.after
	}
	if t.after != nil {
		t.after.before = t.before
	}
	t.before, t.after, t.listed = nil, nil, false
}

// began says that something of an answer came, or that none will be waited for: then give is not called any more.
func (e *Engine) began(t *turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unlist(t)
}

// begin counts a request that begins. Errors: ErrFull, ErrClosed.
func (e *Engine) begin(t *turn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ctx.Err() != nil:
		return ErrClosed
	case e.status.Active >= e.cfg.Limits.Requests:
		return fmt.Errorf("%w %s: %d run", ErrFull, e.cfg.URL, e.status.Active)
	}
	e.status.Active++
	e.status.Requests++
	if t.after = e.first; t.after != nil {
		t.after.before = t
	}
	e.first, t.before, t.listed = t, nil, true
	return nil
}

// end counts a request that ended. err says how; served, whether it shows that the engine works.
func (e *Engine) end(err error, served bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.status.Active--; e.status.Active == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
	if fault, severe := faulty(err); fault && err != nil {
		e.status.Faults++
		e.faults++
		if e.status.State == Healthy && (severe || e.faults >= e.cfg.Health.Failures) {
			e.eject(err.Error())
		}
	} else if served {
		e.faults = 0
		e.served++
	}
}
