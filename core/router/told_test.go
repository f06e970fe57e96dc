package router_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// told is a mesh that keeps what a router tells the others, and has its sink at hand.
type told struct {
	events []wire.SequenceEvent
	sink   replica.Sink
}

func (m *told) Publish(e *wire.SequenceEvent) {
	c := *e
	c.Sequences = slices.Clone(e.Sequences) // it is borrowed
	m.events = append(m.events, c)
}
func (m *told) Stats() replica.Stats { return replica.Stats{} }
func (m *told) Close()               {}

func listen(t *testing.T, k *kit) *told {
	m := &told{}
	require.NoError(t, k.Share(func(sink replica.Sink) (router.Mesh, error) {
		m.sink = sink
		return m, nil
	}))
	return m
}

// Everything that another router needs to count a request as this one does is told, and nothing that is not so.
func TestWhatRoutersTellEachOther(t *testing.T) {
	at := worker.Rank{ID: 1}
	prompt := tokens(1, 18)
	identity := &block.Identity{LoRAName: "l"}
	_, sequences := block.Both(nil, nil, prompt, 4, identity)
	added := wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "a", Worker: at, LoRAName: "l", HasSequences: true, Sequences: sequences, PrefillTokens: 18}
	for name, c := range map[string]struct {
		config string
		change func(e *wire.SequenceEvent)
	}{
		"default": {`{}`, func(*wire.SequenceEvent) {}},
		"no prefill": {`{"router_track_prefill_tokens": false}`, func(e *wire.SequenceEvent) {
			e.PrefillTokens, e.UntrackedTokens = 0, true
		}},
		"no blocks": {`{"router_track_active_blocks": false}`, func(e *wire.SequenceEvent) { e.HasSequences, e.Sequences = false, nil }},
		"durations": {`{"router_prefill_load_model": {"new_tokens": [0, 36], "cached_tokens": [0], "seconds": [[0, 3.6]]}}`, func(e *wire.SequenceEvent) {
			e.HasDuration, e.PrefillDuration = true, 1800*time.Millisecond
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, 4, with(t, "%s", c.config)).workers(1)
			m := listen(t, k)
			q := book("a", prompt)
			q.LoRAName = "l"
			k.best(q)
			k.best(ask(prompt))
			require.NoError(t, k.MarkPrefillComplete("a"))
			require.ErrorIs(t, k.MarkPrefillComplete("nobody"), router.ErrRequestNotFound)
			require.NoError(t, k.Renew("a"))
			require.NoError(t, k.Free("a"))
			require.ErrorIs(t, k.Free("a"), router.ErrRequestNotFound)
			want := added
			c.change(&want)
			require.Len(t, m.events, 3)
			if len(want.Sequences) == 0 {
				m.events[0].Sequences = nil
			}
			require.Equal(t, want, m.events[0])
			require.Equal(t, wire.SequenceEvent{Kind: wire.SequencePrefilled, RequestID: "a", Worker: at}, m.events[1])
			require.Equal(t, wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: "a", Worker: at}, m.events[2])
		})
	}
	t.Run("a session that may not move there", func(t *testing.T) {
		k := newKit(t, 4, with(t, `{"session_affinity_ttl_secs": 60}`)).workers(1, 2)
		m := listen(t, k)
		for i, id := range []string{"a", "b"} {
			q := pinned(book(id, prompt), uint64(i+1), 0)
			q.SessionID = "s"
			_, err := k.BestWorker(q)
			require.Equal(t, i == 1, err != nil)
		}
		for _, e := range m.events {
			require.False(t, e.Kind == wire.SequenceAdded && e.RequestID == "b", "it is booked nowhere")
		}
	})
	t.Run("what expires late", func(t *testing.T) {
		k := newKit(t, 4, router.DefaultConfig()).workers(1)
		m := listen(t, k)
		k.best(book("a", prompt))
		k.at = k.at.Add(router.DefaultRequestExpiry + time.Second)
		require.NoError(t, k.MarkPrefillComplete("a"), "one late call is fine")
		require.Len(t, m.events, 2)
		require.Equal(t, wire.SequenceFreed, m.events[1].Kind, "it had ended")
	})
}

// What others tell counts as this router counts, whatever it says.
func TestWhatRoutersHearOfEachOther(t *testing.T) {
	event := wire.SequenceEvent{
		Kind: wire.SequenceAdded, RequestID: "a", Worker: worker.Rank{ID: 1}, RouterID: 9, HasSequences: true, Sequences: []block.SequenceHash{1, 2, 3}, PrefillTokens: 40,
	}
	for name, c := range map[string]struct {
		config string
		change func(e *wire.SequenceEvent)
		later  time.Duration
		want   [3]int64
	}{
		"as it is":           {`{}`, func(*wire.SequenceEvent) {}, 40 * time.Minute, [3]int64{40, 3, 1}},
		"of no router":       {`{}`, func(e *wire.SequenceEvent) { e.RouterID = 0 }, 0, [3]int64{}},
		"of no worker":       {`{}`, func(e *wire.SequenceEvent) { e.Worker.ID = 2 }, 0, [3]int64{}},
		"of no rank":         {`{}`, func(e *wire.SequenceEvent) { e.Worker.DPRank = 1 }, 0, [3]int64{}},
		"its tokens do not":  {`{}`, func(e *wire.SequenceEvent) { e.UntrackedTokens = true }, 0, [3]int64{0, 3, 1}},
		"tokens do not here": {`{"router_track_prefill_tokens": false}`, func(*wire.SequenceEvent) {}, 0, [3]int64{0, 3, 1}},
		"blocks do not here": {`{"router_track_active_blocks": false}`, func(*wire.SequenceEvent) {}, 0, [3]int64{40, 0, 1}},
		"too many tokens":    {`{}`, func(e *wire.SequenceEvent) { e.PrefillTokens = math.MaxUint64 }, 0, [3]int64{math.MaxInt32, 3, 1}},
		"it fades": {`{}`, func(e *wire.SequenceEvent) {
			e.HasDuration, e.PrefillDuration = true, 10*time.Second
		}, 5 * time.Second, [3]int64{20, 3, 1}},
		"it lasts no time":  {`{}`, func(e *wire.SequenceEvent) { e.HasDuration, e.PrefillDuration = true, -1 }, 0, [3]int64{}},
		"a kind of its own": {`{}`, func(e *wire.SequenceEvent) { e.Kind = 77 }, 0, [3]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, 4, with(t, "%s", c.config)).workers(1)
			m := listen(t, k)
			e := event
			c.change(&e)
			m.sink.Apply([]wire.SequenceEvent{e})
			k.at = k.at.Add(c.later)
			l := k.loads(nil)[1]
			require.Equal(t, c.want, [3]int64{l.PotentialPrefillTokens, l.PotentialDecodeBlocks, l.ActiveRequests})
			require.Empty(t, m.events, "others' are not told again")
			m.sink.Gone(9)
			k.idle()
		})
	}
}
