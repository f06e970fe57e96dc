package feed

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// publisher is a Stream that loses messages, and one that answers for it.
type publisher struct {
	events chan StreamEvent

	mu     sync.Mutex
	id     uint64
	log    []event.Event
	kept   int // events that can be asked for
	held   map[block.EngineHash]bool
	closed bool
}

func (p *publisher) Events() <-chan StreamEvent { return p.events }
func (p *publisher) Queries() bool              { return true }

func (p *publisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		close(p.events)
	}
	p.closed = true
}

func (p *publisher) Query(_ context.Context, q *event.RangeQuery) (uint64, *event.RangeAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rand.IntN(4) == 0 {
		return 0, nil, errors.New("not now")
	}
	last := uint64(len(p.log)) - 1
	switch {
	case q.HasStart && len(p.log) > 0 && q.Start > last:
		return p.id, &event.RangeAnswer{Kind: event.RangeTooNew, Newest: last}, nil
	case q.HasStart && int(q.Start) >= len(p.log)-p.kept && len(p.log) > 0:
		return p.id, &event.RangeAnswer{Kind: event.RangeEvents, Events: append([]event.Event{}, p.log[q.Start:]...), LastID: last}, nil
	}
	a := &event.RangeAnswer{Kind: event.RangeDump, LastID: max(last+1, 1) - 1}
	for name := range p.held {
		a.Events = append(a.Events, event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: name, Hash: block.Hash(name)}}})
	}
	return p.id, a, nil
}

// happen makes an event, which is lost or not.
func (p *publisher) happen(lost bool) {
	p.mu.Lock()
	ev := event.Event{ID: uint64(len(p.log)), Kind: event.Stored}
	name := block.EngineHash(rand.Uint64N(50) + 1)
	switch n := rand.IntN(50); {
	case n == 0:
		ev.Kind = event.Cleared
		clear(p.held)
	case p.held[name]:
		ev.Kind, ev.Removed = event.Removed, []block.EngineHash{name}
		delete(p.held, name)
	case n == 1:
		ev.Kind = 0 // of a cache that is not the rank's own
	default:
		ev.Blocks = []event.Block{{Engine: name, Hash: block.Hash(name)}}
		p.held[name] = true
	}
	p.log = append(p.log, ev)
	p.mu.Unlock()
	if !lost {
		p.events <- StreamEvent{Kind: zmq.Message, Events: []event.Event{ev}}
	}
}

// restart is another process in its place.
func (p *publisher) restart() {
	p.events <- StreamEvent{Kind: zmq.Disconnected, Err: errors.New("gone")}
	p.mu.Lock()
	p.id, p.log, p.held = rand.Uint64(), nil, map[block.EngineHash]bool{}
	p.mu.Unlock()
	p.events <- StreamEvent{Kind: zmq.Connected}
}

// blockView is a Sink of blocks without parents.
type blockView struct {
	mu   sync.Mutex
	held map[block.EngineHash]bool
}

func (v *blockView) Apply(_ worker.Rank, ev *event.Event) (index.Applied, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range ev.Blocks {
		v.held[b.Engine] = true
	}
	for _, name := range ev.Removed {
		delete(v.held, name)
	}
	if ev.Kind == event.Cleared {
		clear(v.held)
	}
	return index.Applied{}, nil
}

func (v *blockView) Reset(worker.Rank) {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.held)
}

// Whatever is lost of a Stream, and whoever takes over, the view becomes what the publisher holds.
func TestStreamThatLosesMessages(t *testing.T) {
	for range 5 {
		p := &publisher{events: make(chan StreamEvent, 1000), id: 1, kept: 20, held: map[block.EngineHash]bool{}}
		v := &blockView{held: map[block.EngineHash]bool{}}
		p.events <- StreamEvent{Kind: zmq.Connected}
		f := Start(Config{Rank: worker.Rank{ID: 1}, BlockSize: 1, Sink: v, Stream: p, Probe: 50 * time.Millisecond, BackoffMin: time.Millisecond,
			BackoffMax: 5 * time.Millisecond, Retries: 20, Limit: NewLimiter(1, 1<<20)})
		eventually(t, "joined: what is lost from now on is missed", f.is(Exact))
		for i := range 600 {
			p.happen(rand.IntN(5) == 0)
			if i%200 == 199 {
				p.restart()
			}
			if i%100 == 99 {
				p.events <- StreamEvent{Kind: zmq.Message, Err: errors.New("not decodable")}
			}
		}
		for range 50 {
			p.happen(true)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			v.mu.Lock()
			same := maps.Equal(p.held, v.held)
			v.mu.Unlock()
			p.mu.Unlock()
			if same && len(p.events) == 0 && f.Status().State == Exact {
				break
			}
			require.True(t, time.Now().Before(deadline), "%+v", f.Status())
		}
		f.Close()
		c := f.Status().Counters
		require.Zero(t, c[counterNames[countPanics]])
		require.NotZero(t, c[counterNames[countGaps]])
		require.EqualValues(t, 6, c[counterNames[countMalformed]])
		f.Close()
	}
}
