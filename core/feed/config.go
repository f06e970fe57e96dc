package feed

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// ErrUnknownRank is what a Sink answers for a rank that is not, or no longer, registered. The feed counts it.
var ErrUnknownRank = errors.New("worker rank is not registered")

// Sink is the view that the feed keeps. It is called from one goroutine of the feed, never after Close has returned.
type Sink interface {
	// Apply applies one event. An error means that nothing changed; the feed counts it and goes on.
	Apply(rank worker.Rank, ev *event.Event) (index.Applied, error)
	// Reset forgets all blocks of the rank, those applied since a Renew too.
	Reset(rank worker.Rank)
}

// Replacer is a Sink that can build a new view of a rank beside the present one, so that nobody sees the rank emptied while its
// whole state is applied.
type Replacer interface {
	Sink
	// Renew begins a view without blocks, out of sight: what is applied from now on goes there. It may empty the present one
	// instead, and must if it cannot have two.
	Renew(rank worker.Rank)
	// Commit puts what was applied since Renew in the place of the present view. Without a Renew, or after a Reset, it does nothing.
	Commit(rank worker.Rank)
}

// RawSink is a Sink that takes events as the engine sent them, to pass them on. ApplyRaw is called instead of Apply for what
// is valid: salt is the cache salt of a stored event's blocks, wherever the engine said it. The event is valid during the call only.
type RawSink interface {
	Sink
	ApplyRaw(rank worker.Rank, ev *wire.Event, salt string) (index.Applied, error)
}

// Config says what to follow. The zero value of an option means its default.
type Config struct {
	Rank      worker.Rank
	Endpoint  string // of the engine's PUB socket for this rank
	Replay    string // of its replay socket; "" if there is none
	Query     string // of its local indexer's query socket; "" if there is none. Otherwise Replay is not used
	Stream    Stream // followed instead of an engine, if not nil: no endpoint is given then. The feed closes it
	Topic     string // prefix to subscribe to; "" is everything
	BlockSize int    // tokens in a block; events with another size are counted, not applied
	Sink      Sink
	Intake    *diagnose.Intake // told of stores that the sink is not given, and of the identities of the others; nil: nobody is

	// Log is told of changes of the state, of events that are left out, and of faults. Default: nobody is.
	Log *slog.Logger

	// Resume, if not nil, is where another feed of this rank stopped; the sink's view is what it was then. It must pass
	// Position.Check. The view stays if the engine's replay shows the same batches and covers what came since; else it
	// is emptied, as at a reconnect.
	Resume *Position

	// Probe is how long the stream may be silent before the feed asks for the next batch, in the long run: the first time it
	// takes a sixteenth of that. Default 10 s.
	Probe time.Duration
	// ReplayTimeout is how long a replay may give nothing new before it has failed. Default 5 s: an engine looks at its
	// replay socket once per 100 ms, and sends 10 000 batches in 0.4 s.
	ReplayTimeout time.Duration
	// BackoffMin and BackoffMax bound the wait before a replay is asked for again. Defaults 100 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
	// Retries bounds, in one recovery, the replays without end marker after the first, and those in a row that were
	// complete and did not help. Negative means none. Default 5.
	Retries int
	// MaxWaiting and MaxWaitingBytes bound the batches that wait behind a hole. Defaults 16 384 (an engine replays
	// 10 000) and 16 MiB.
	MaxWaiting, MaxWaitingBytes int
	// Jitter gives a number in [0,1). Default: the global random source.
	Jitter func() float64
	// Limit bounds, together with other feeds that have the same one, the requests that are answered at a time. Default: no bound.
	Limit *Limiter
	// ZMQ tunes the connections.
	ZMQ zmq.Options
}

// queries tells whether there is a local indexer to ask.
func (c *Config) queries() bool {
	if c.Stream != nil {
		return c.Stream.Queries()
	}
	return c.Query != ""
}

func (c *Config) settings() settings {
	s := settings{
		replay: c.Replay != "" || c.queries(), query: c.queries(), probe: c.Probe, timeout: c.ReplayTimeout, backoffMin: c.BackoffMin, backoffMax: c.BackoffMax,
		retries: c.Retries, maxCount: c.MaxWaiting, maxBytes: c.MaxWaitingBytes, jitter: c.Jitter,
	}
	def(&s.probe, 10*time.Second)
	def(&s.timeout, 5*time.Second)
	def(&s.backoffMin, 100*time.Millisecond)
	def(&s.backoffMax, 5*time.Second)
	def(&s.retries, 5)
	s.retries = max(s.retries, 0)
	def(&s.maxCount, 16_384)
	def(&s.maxBytes, 16<<20)
	if s.jitter == nil {
		s.jitter = rand.Float64
	}
	return s
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
