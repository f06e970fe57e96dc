package mocker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/publish"
)

const (
	readTimeout   = 30 * time.Second // for a request with its body
	parseParallel = 64               // large bodies read and parsed at once: bounds memory
	closeTimeout  = time.Second      // for peers to take what is being sent to them
)

// Info says what an engine is and where it listens.
type Info struct {
	Model     string `json:"model"`
	HTTP      string `json:"http"`      // URL, without a path
	Events    string `json:"kv_events"` // ZeroMQ endpoint
	Replay    string `json:"replay"`    // ZeroMQ endpoint, empty when there is none
	Topic     string `json:"topic"`
	DPRank    uint32 `json:"dp_rank"`
	BlockSize int    `json:"block_size"`
	Blocks    int    `json:"blocks"`
}

// Stats is a snapshot of an engine.
type Stats struct {
	totals
	Waiting      int     `json:"waiting"`
	Running      int     `json:"running"`
	Blocks       int     `json:"blocks"`
	IdleBlocks   int     `json:"idle_blocks"`   // no running request uses them
	CachedBlocks int     `json:"cached_blocks"` // blocks that can be found, equal ones counted once
	EngineTime   float64 `json:"engine_seconds"`
	Batches      uint64  `json:"event_batches"` // published
	Failed       uint64  `json:"failed_batches"`
}

// A Mocker is a running engine.
type Mocker struct {
	cfg     Config
	info    Info
	start   time.Time
	events  *publish.Publisher // nil if Config.Sink gets the events
	server  *http.Server
	parsing chan struct{}
	ids     atomic.Uint64
	wake    chan struct{}   // holds an item when the next due time may be earlier than run thinks
	ctx     context.Context // done when the engine is closed
	stop    context.CancelFunc
	once    sync.Once
	closed  error
	owned   owned.Group // run, serve, answers

	mu        sync.Mutex
	scheduler *scheduler
	batches   uint64
	failed    uint64
	fault     fault // of the next requests
}

// New starts an engine. ErrConfig: the configuration is wrong; other errors: an address cannot be listened on.
func New(cfg Config) (*Mocker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var events *publish.Publisher
	if cfg.Sink == nil {
		var err error
		events, err = publish.New(publish.Config{
			Endpoint:    cfg.Events,
			Replay:      cfg.Replay,
			Topic:       cfg.Topic,
			Rank:        cfg.DPRank,
			BufferSteps: cfg.BufferSteps,
		})
		if err != nil {
			return nil, err
		}
		cfg.Sink = func(batch ...publish.Event) error {
			_, err := events.Publish(batch...)
			return err
		}
	}
	listener, err := net.Listen("tcp", cfg.HTTP)
	if err != nil {
		err = fmt.Errorf("http: %w", err)
		if events != nil {
			err = errors.Join(err, events.Close())
		}
		return nil, err
	}
	m := &Mocker{
		cfg:       cfg,
		start:     time.Now(),
		events:    events,
		parsing:   make(chan struct{}, parseParallel),
		wake:      make(chan struct{}, 1),
		scheduler: newScheduler(cfg.rates()),
		info: Info{
			Model:     cfg.Model,
			HTTP:      "http://" + listener.Addr().String(),
			Topic:     cfg.Topic,
			DPRank:    cfg.DPRank,
			BlockSize: cfg.BlockSize,
			Blocks:    cfg.Blocks,
		},
	}
	if events != nil {
		m.info.Events, m.info.Replay = events.Addr(), events.ReplayAddr()
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.server = &http.Server{
		Handler:     m.routes(),
		ReadTimeout: readTimeout,
		ErrorLog:    log.New(io.Discard, "", 0), // what a peer does wrong is answered, not printed
	}
	m.owned.Keep(m.ctx.Done(), m.run)
	// Serve returns when Close closes the listener, and not before.
	m.owned.Go(func() { _ = m.server.Serve(listener) })
	return m, nil
}

// Info tells the addresses.
func (m *Mocker) Info() Info { return m.info }

// Close stops the engine: running requests are cut off. It is idempotent.
func (m *Mocker) Close() error {
	m.once.Do(func() {
		m.mu.Lock() // none enters any more
		m.stop()
		m.mu.Unlock()
		// Handlers see it and return; what then still hangs on a peer is cut off.
		patience, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = m.server.Shutdown(patience)
		m.closed = m.server.Close()
		if m.events != nil {
			m.closed = errors.Join(m.closed, m.events.Close())
		}
		m.owned.Wait()
	})
	return m.closed
}

// now is the engine's time in nanoseconds.
func (m *Mocker) now() int64 { return int64(float64(time.Since(m.start)) * m.cfg.Speedup) }

// run wakes the scheduler whenever something is due.
func (m *Mocker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		if next, ok := m.advance(); ok {
			timer.Reset(time.Duration(float64(next-m.now()) / m.cfg.Speedup))
		}
	}
}

// advance does what is due, and tells when there is more.
func (m *Mocker) advance() (next int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scheduler.advance(m.now())
	m.publish()
	return m.scheduler.next()
}

// with runs f on the scheduler at the present time and publishes what it changed.
func (m *Mocker) with(f func(s *scheduler, now int64)) {
	func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		f(m.scheduler, m.now())
		m.publish()
	}()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// publish sends the changes of the cache, in order. The caller holds mu.
func (m *Mocker) publish() {
	changes := m.scheduler.takeChanges()
	if len(changes) == 0 {
		return
	}
	batch := make([]publish.Event, 0, len(changes))
	for i := range changes {
		c := &changes[i]
		switch {
		case c.cleared:
			batch = append(batch, publish.Cleared())
		case len(c.removed) > 0:
			batch = append(batch, publish.Removed(c.removed))
		default:
			var parent *block.EngineHash
			if c.hasParent {
				parent = &c.parent
			}
			stored := publish.Stored(parent, c.stored, c.tokens, m.cfg.BlockSize)
			stored.LoRAName = c.adapter
			batch = append(batch, stored)
		}
	}
	if err := m.cfg.Sink(batch...); err != nil {
		m.failed++
		return
	}
	m.batches++
}

// submit hands a request to the scheduler, unless too many wait.
func (m *Mocker) submit(q *sequence) *apiError {
	var refused *apiError
	m.with(func(s *scheduler, now int64) {
		s.advance(now)
		if len(s.queue) >= m.cfg.MaxWaiting {
			refused = refuse(http.StatusTooManyRequests, "rate_limit_error", "queue_full",
				"%d requests are waiting, no more are taken", m.cfg.MaxWaiting)
			return
		}
		s.submit(q, now)
	})
	return refused
}

func (m *Mocker) cancel(q *sequence) {
	m.with(func(s *scheduler, now int64) { s.cancel(q, now) })
}

func (m *Mocker) clear() (ok bool) {
	m.with(func(s *scheduler, now int64) { ok = s.clear(now) })
	return ok
}

// Stats tells what the engine is doing.
func (m *Mocker) Stats() Stats {
	var st Stats
	m.with(func(s *scheduler, now int64) {
		s.advance(now)
		st = Stats{
			totals:       s.totals,
			Waiting:      len(s.queue),
			Running:      len(s.prefilling) + len(s.decoding),
			Blocks:       len(s.pool.pages),
			IdleBlocks:   s.pool.idle,
			CachedBlocks: len(s.pool.heads),
			EngineTime:   float64(s.now) / 1e9,
			Batches:      m.batches,
			Failed:       m.failed,
		}
	})
	return st
}
