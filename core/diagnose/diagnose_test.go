package diagnose_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
)

func causes(found []diagnose.Finding) (list []diagnose.Cause) {
	for _, f := range found {
		list = append(list, f.Cause)
	}
	return list
}

// Stores that are left out are a fault only if no other store of the same engine process is kept.
func TestIntakeNamesStoresThatAreAllLeftOut(t *testing.T) {
	var i diagnose.Intake
	find := func() []diagnose.Cause { return causes(diagnose.Findings(&i, new(diagnose.Watch), nil, 16, 0)) }
	out := func(reason string, n int) {
		for range n {
			i.Unusable(reason, 64)
		}
	}
	out("wrong_block_size", 3)
	require.Empty(t, find(), "three are too few")
	out("wrong_block_size", 1)
	require.Equal(t, []diagnose.Cause{diagnose.BlockSizeDiffers}, find())
	out("token_count", 5)
	require.Equal(t, []diagnose.Cause{diagnose.EventsUnusable}, find(), "the most frequent reason counts")
	i.Applied(true, 0, 0, "unknown_parent")
	i.Applied(false, 0, 1, "")
	require.Equal(t, []diagnose.Cause{diagnose.EventsUnusable}, find())
	i.Applied(true, 1, 0, "")
	require.Empty(t, find(), "one was kept")
	out("token_count", 50)
	require.Empty(t, find())
	i.Cleared()
	out("token_count", 50)
	require.Empty(t, find(), "it is still the same engine")
	i.Reset()
	out("wrong_block_size", 2)
	i.Reset() // what cannot be decoded empties the view, and is followed by more of it
	out("wrong_block_size", 2)
	require.Equal(t, []diagnose.Cause{diagnose.BlockSizeDiffers}, find())
	require.Equal(t, diagnose.Progress{Heard: 116, Stored: 1, Removed: 1, Failed: 1, Lives: 3}, i.Progress())
}

func TestIntakeRemembersTheLatestIdentities(t *testing.T) {
	var i diagnose.Intake
	require.Equal(t, []diagnose.Identity{{}}, i.Identities())
	salted := func(n int) diagnose.Identity { return diagnose.Identity{CacheSalt: fmt.Sprint(n)} }
	for n := range 100 {
		i.Named(salted(n))
		i.Named(salted(0))
		i.Named(diagnose.Identity{})
		i.Named(diagnose.Identity{LoRAName: strings.Repeat("x", 257)})
	}
	got := i.Identities()
	require.Len(t, got, 17)
	require.Equal(t, []diagnose.Identity{salted(0), salted(99), salted(98)}, got[:3])
	require.Equal(t, diagnose.Identity{}, got[16])
	var nobody *diagnose.Intake
	nobody.Unusable("token_count", 0)
	nobody.Named(salted(1))
	nobody.Heard()
}

// bench is a rank with a clock.
type bench struct {
	diagnose.Watch
	intake  diagnose.Intake
	now     int64
	holds   map[string]bool // of fmt.Sprint(tokens, identity)
	partial bool
	waiting bool
	next    uint32
}

func (b *bench) pass(d time.Duration) { b.now += int64(d) }

// miss sends a prompt of its own that ends, and gives its tokens.
func (b *bench) miss(id diagnose.Identity) []uint32 {
	b.next++
	q := diagnose.Request{ID: fmt.Sprint(b.next), Booked: true, Identity: id, Tokens: []uint32{b.next}}
	if b.Wants() {
		b.Miss(b.now, &q, b.intake.Progress())
	}
	b.Ended(q.ID, b.now)
	return q.Tokens
}

func (b *bench) store(tokens []uint32, id diagnose.Identity) {
	if b.holds == nil {
		b.holds = map[string]bool{}
	}
	b.holds[fmt.Sprint(tokens, id)] = true
	b.intake.Named(id)
	b.intake.Applied(true, 1, 0, "")
}

func (b *bench) find(counters map[string]uint64) []diagnose.Cause {
	b.Look(&diagnose.View{Now: b.now, Progress: b.intake.Progress(), Identities: b.intake.Identities(), Complete: !b.partial, Waiting: b.waiting,
		Holds: func(s *diagnose.Sample, id diagnose.Identity) bool { return b.holds[fmt.Sprint(s.Tokens, id)] }})
	return causes(diagnose.Findings(&b.intake, &b.Watch, counters, 16, b.now))
}

var (
	base   = diagnose.Identity{}
	salted = diagnose.Identity{CacheSalt: "tenant"}
	lora   = diagnose.Identity{LoRAName: "sql"}
	both   = diagnose.Identity{LoRAName: "sql", CacheSalt: "tenant"}
)

func TestWatchTellsSaltFromAdapterFromTokens(t *testing.T) {
	for name, c := range map[string]struct {
		asked, stored diagnose.Identity
		counters      map[string]uint64
		want          diagnose.Cause
	}{
		"salt":                 {base, salted, nil, diagnose.CacheSaltDiffers},
		"salt of an adapter":   {lora, both, nil, diagnose.CacheSaltDiffers},
		"adapter":              {base, lora, nil, diagnose.LoRADiffers},
		"adapter beside salt":  {salted, both, nil, diagnose.LoRADiffers},
		"both":                 {base, both, nil, diagnose.LoRADiffers},
		"unnamed adapter":      {lora, diagnose.Identity{LoRAName: "?"}, map[string]uint64{"unnamed_lora": 1}, diagnose.LoRADiffers},
		"lost salt":            {salted, diagnose.Identity{LoRAName: "?"}, map[string]uint64{"ambiguous_cache_namespace": 1}, diagnose.CacheSaltDiffers},
		"tokens":               {base, diagnose.Identity{LoRAName: "?"}, map[string]uint64{"unnamed_lora": 1}, diagnose.TokensDiffer},
		"eagle":                {base, diagnose.Identity{LoRAName: "?"}, map[string]uint64{"eagle_windows": 1}, diagnose.EventsUnusable},
		"tokens of an adapter": {lora, diagnose.Identity{LoRAName: "?"}, nil, diagnose.TokensDiffer},
	} {
		t.Run(name, func(t *testing.T) {
			var b bench
			for n := range 8 {
				require.Empty(t, b.find(c.counters), n)
				tokens := b.miss(c.asked)
				if c.stored.LoRAName == "?" {
					tokens = []uint32{1 << 31}
					c.stored = base
				} else if c.want == diagnose.TokensDiffer || len(c.counters) > 0 {
					tokens = []uint32{1 << 31}
				}
				b.store(tokens, c.stored)
				require.Empty(t, b.find(c.counters), "events take a moment")
				b.pass(2 * time.Second)
			}
			require.Equal(t, []diagnose.Cause{c.want}, b.find(c.counters))
			b.Hit(diagnose.Identity{LoRAName: "sql", CacheSalt: "another"})
			if c.asked != both {
				require.Equal(t, []diagnose.Cause{c.want}, b.find(c.counters), "a hit of other requests says nothing")
			}
			b.Hit(c.asked)
			require.Empty(t, b.find(c.counters), "a hit clears")
		})
	}
}

// What may have been there says nothing: while events were missed or refused, after the rank was emptied, where much went.
func TestWatchWantsProof(t *testing.T) {
	for name, spoil := range map[string]func(b *bench){
		"partial": func(b *bench) { b.partial = true },
		"refused": func(b *bench) { b.intake.Applied(true, 0, 0, "unknown_parent") },
		"cleared": func(b *bench) { b.intake.Cleared() },
		"reset":   func(b *bench) { b.intake.Reset() },
		"evicted": func(b *bench) { b.intake.Applied(false, 0, 3, "") },
	} {
		var b bench
		for range 10 {
			b.store([]uint32{1 << 31}, base)
		}
		for range 8 {
			b.miss(base)
		}
		spoil(&b)
		b.store([]uint32{1 << 30}, base)
		b.pass(time.Minute)
		require.Empty(t, b.find(nil), name)
	}
	var b bench // and a salt that is found is proof in any case
	for range 8 {
		b.store(b.miss(base), salted)
	}
	b.partial = true
	b.pass(time.Minute)
	require.Equal(t, []diagnose.Cause{diagnose.CacheSaltDiffers}, b.find(nil))
}

// Time counts from the end of a request, not from when it was sent; a rank that is silent, or heard of something else only, has
// not stored other tokens.
func TestWatchWaits(t *testing.T) {
	var b bench
	for n := range uint32(8) {
		q := diagnose.Request{ID: fmt.Sprint(n), Booked: true, Tokens: []uint32{n}}
		require.True(t, b.Miss(b.now, &q, b.intake.Progress()))
	}
	b.pass(time.Minute)
	require.Empty(t, b.find(nil), "they are under way")
	for n := range 8 {
		b.Ended(fmt.Sprint(n), b.now)
	}
	b.pass(1999 * time.Millisecond)
	require.Empty(t, b.find(nil), "they have just ended")
	b.pass(time.Millisecond)
	b.waiting = true
	require.Empty(t, b.find(nil), "events wait behind a hole")
	b.waiting = false
	require.Equal(t, []diagnose.Cause{diagnose.NoEvents}, b.find(nil))
	b.intake.Heard()
	require.Empty(t, b.find(nil), "an event came, but no store")
}

// What is said of one life of a rank is not said of the next.
func TestWatchForgetsAnotherLife(t *testing.T) {
	var b bench
	for range 8 {
		b.store([]uint32{b.miss(base)[0] | 1<<31}, base)
	}
	b.pass(time.Minute)
	require.Equal(t, []diagnose.Cause{diagnose.TokensDiffer}, b.find(nil))
	b.intake.Cleared()
	require.Empty(t, b.find(nil))
}

func TestWatchIsBounded(t *testing.T) {
	var b bench
	b.store([]uint32{0}, base)
	for range 8 {
		require.True(t, b.Wants())
		b.miss(base)
	}
	wanted := 0
	for range 640 {
		if b.Wants() {
			wanted++
			require.False(t, b.Miss(b.now, &diagnose.Request{}, b.intake.Progress()), "nobody's place is free")
		}
	}
	require.Equal(t, 10, wanted)
	b.intake.Cleared()
	require.True(t, b.Miss(b.now, &diagnose.Request{}, b.intake.Progress()), "useless samples make room")
	require.False(t, b.Miss(b.now, &diagnose.Request{Identity: diagnose.Identity{CacheSalt: strings.Repeat("x", 257)}}, b.intake.Progress()))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Wants()
		b.Hit(base)
		b.Ended("1", b.now)
	}))
}

// TestConcurrently is for the race detector.
func TestConcurrently(t *testing.T) {
	var b bench
	var work sync.WaitGroup
	for g := range 4 {
		work.Go(func() {
			for n := range 300 {
				id := fmt.Sprint(g, n)
				if b.Wants() {
					b.Miss(int64(n), &diagnose.Request{ID: id, Booked: true, Tokens: []uint32{1}}, b.intake.Progress())
				}
				b.Ended(id, int64(n))
				b.Hit(salted)
				b.intake.Named(diagnose.Identity{LoRAName: id})
				b.intake.Applied(true, 1, 0, "")
				b.intake.Unusable("token_count", 0)
				b.Look(&diagnose.View{Now: int64(n) + int64(time.Hour), Progress: b.intake.Progress(), Identities: b.intake.Identities(), Complete: true,
					Holds: func(*diagnose.Sample, diagnose.Identity) bool { return true }})
				_ = diagnose.Findings(&b.intake, &b.Watch, nil, 16, int64(n))
			}
		})
	}
	work.Wait()
	require.Empty(t, diagnose.Findings(&b.intake, &b.Watch, nil, 16, 0))
}
