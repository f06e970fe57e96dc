package queue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/queue/model"
)

// fuzzProfiles have one class for each policy, and three with all there is.
func fuzzProfiles(t testing.TB) []*queue.Profile {
	zero := 0.0
	cfg, err := queue.ParseConfig([]byte(`
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 20, bucket: long}]
policy_classes:
  - {name: a, policy_family: chat, cache_bucket: short, quantum: 7, prefill_busy_threshold: 0, request_queue_limit_per_worker: 3}
  - {name: b, policy_family: chat, cache_bucket: long, queue_policy: wspt, quantum: 2, prefill_busy_threshold: 1, raw_isl_token_queue_limit_per_worker: 90}
  - {name: c, quantum: 1, prefill_busy_threshold_frac: 0, cached_token_queue_limit_per_worker: 40}
`))
	require.NoError(t, err)
	return []*queue.Profile{
		queue.Single(&zero, queue.FCFS), queue.Single(&zero, queue.LCFS), queue.Single(&zero, queue.WSPT), cfg.Profile(""),
	}
}

// pair drives the queue and the model with the same calls and compares after each. Lanes have room for some requests; what
// is served takes room, a release gives it back and wakes the lane, as the queue's owner does.
type pair struct {
	t       testing.TB
	profile *queue.Profile
	queue   *queue.Queue[int]
	model   *model.Queue
	items   []*queue.Item[int] // by id
	now     int64
	room    map[string]int
	served  []int

	time int // for so many questions; below 0: no end of it
	late bool
}

const fuzzMax = 24

var fuzzLanes = [...]string{"", "x", queue.Bound + "y", queue.Bound + "z"}

func newPair(t testing.TB, p *queue.Profile) *pair {
	pair := &pair{t: t, profile: p, queue: queue.New[int](p, fuzzMax), model: model.New(p, fuzzMax), now: 1, room: map[string]int{}}
	pair.queue.More = func() bool {
		pair.late = pair.late || pair.time == 0
		pair.time--
		return !pair.late
	}
	return pair
}

// fits depends on the class too: b needs room for two.
func (p *pair) fits(r *queue.Request) bool { return p.room[r.Lane] > r.Class%2 }

func (p *pair) step(op, a, b, c byte) {
	lane := fuzzLanes[a%4]
	switch op % 8 {
	case 0, 1, 2:
		p.push(lane, a, b, c)
	case 3:
		if len(p.items) > 0 {
			id := (int(a)<<8 | int(b)) % len(p.items)
			got := p.queue.Remove(p.items[id])
			require.Equal(p.t, p.model.Remove(id), got, "remove %d", id)
			require.False(p.t, p.items[id].Waiting())
		}
	case 4:
		p.now += int64(c%64) * 250_000_000
		p.expire()
	case 5:
		p.room[lane] += int(b % 3)
		p.queue.WakeLane(lane)
	case 6:
		lanes := fuzzLanes[:]
		if c%2 == 0 {
			p.queue.Wake()
		} else {
			lanes = lanes[:2]
			p.queue.WakeOpen()
		}
		for _, name := range lanes {
			p.room[name] += int(b>>1) % 2
		}
	case 7:
		p.next(a)
	}
	p.compare()
}

func (p *pair) push(lane string, a, b, c byte) {
	r := queue.Request{
		Lane: lane, StrictPriority: uint32(a>>2) % 2, PriorityJump: float64(int(a>>4)-2) / 2,
		ISLTokens: int64(b % 64), CachedTokens: int64(c % 64),
	}
	if c >= 192 {
		r.Deadline = p.now + int64(c%8-1)*1_000_000_000
	}
	if b == 255 {
		r.ISLTokens = -1
	}
	r.Class = p.profile.Classify([]string{"", "chat", "c", "other"}[b>>6], max(r.ISLTokens-r.CachedTokens, 0))
	workers := int(c>>4) % 3
	id := len(p.items)
	it, err := p.queue.Push(p.now, workers, r, id)
	want := p.model.Push(p.now, workers, r, id)
	for _, kind := range []error{queue.ErrInvalid, queue.ErrDeadline, queue.ErrQueueLimit} {
		require.Equal(p.t, errors.Is(want, kind), errors.Is(err, kind), "got %v, want %v", err, want)
	}
	if err == nil {
		require.True(p.t, it.Waiting())
		p.items = append(p.items, it)
	}
}

func (p *pair) expire() {
	for {
		it, want := p.queue.Expired(p.now), p.model.Expired(p.now)
		if it == nil {
			require.Equal(p.t, -1, want)
			return
		}
		require.Equal(p.t, want, it.Value, "expired")
	}
}

func (p *pair) next(time byte) {
	for {
		p.late, p.time = false, int(time)-1
		time /= 2
		// The model first: it asks more, and asking changes nothing.
		want := p.model.Next(p.fits)
		it := p.queue.Next(func(it *queue.Item[int]) bool { return p.fits(&it.Request) })
		for it == nil && p.late { // not found yet
			queue.Check(p.t, p.queue)
			p.late, p.time = false, len(p.profile.Classes())*2+1
			it = p.queue.Next(func(it *queue.Item[int]) bool { return p.fits(&it.Request) })
		}
		if it == nil {
			require.Equal(p.t, -1, want, "the queue has no next")
			return
		}
		require.Equal(p.t, want, it.Value, "next after %v", p.served)
		p.served = append(p.served, want)
		p.room[it.Lane]--
	}
}

func (p *pair) compare() {
	require.Equal(p.t, p.model.Len(), p.queue.Len())
	for i := range p.profile.Classes() {
		require.Equal(p.t, p.model.Stats(i), p.queue.Stats(i), "class %d", i)
		for workers := range 2 {
			for _, busy := range []bool{false, true} {
				is := func() bool { return busy }
				require.Equal(p.t, p.model.MustWait(i, workers, is), p.queue.MustWait(i, workers, is))
			}
		}
	}
	queue.Check(p.t, p.queue)
}

func FuzzQueueAgainstModel(f *testing.F) {
	for i := range byte(4) {
		f.Add(append([]byte{i}, 0, 1, 20, 0, 1, 2, 9, 0, 2, 17, 5, 3, 6, 0, 2, 0, 7, 0, 0, 0, 3, 0, 1, 0, 5, 1, 2, 0, 7, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 {
			return
		}
		profiles := fuzzProfiles(t)
		p := newPair(t, profiles[int(ops[0])%len(profiles)])
		for ops = ops[1:]; len(ops) >= 4; ops = ops[4:] {
			p.step(ops[0], ops[1], ops[2], ops[3])
		}
	})
}

func TestQueueAgainstModel(t *testing.T) {
	for i, profile := range fuzzProfiles(t) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			served := 0
			for seed := range uint64(4) {
				rng := rand.New(rand.NewPCG(seed, 7))
				p := newPair(t, profile)
				for range 1000 {
					v := rng.Uint32()
					p.step(byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
				}
				served += len(p.served)
			}
			require.Greater(t, served, 300, "the test serves little")
		})
	}
}
