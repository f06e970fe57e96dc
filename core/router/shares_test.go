package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// What may hold something has all of the bound together, and no more.
func TestSharesOfTheBound(t *testing.T) {
	shares := func(change func(*Config)) [3]int64 {
		c := DefaultConfig()
		c.MaxBytes = 800
		change(&c)
		return [3]int64{c.share(forTiers), c.share(forDevice), c.share(forPresumed)}
	}
	events := shares(func(*Config) {})
	require.Equal(t, [2]int64{100, 700}, [2]int64(events[:2]))
	ttl := 5.0
	require.Equal(t, [3]int64{100, 600, 100}, shares(func(c *Config) { c.RouterPredictedTTLSecs = &ttl }))
	require.Equal(t, [3]int64{100, 100, 600}, shares(func(c *Config) { c.UseKVEvents = false }), "no events fill the first two")
	c := DefaultConfig()
	c.MaxBytes, c.UseKVEvents = 8*77, false
	ofIndex, rest := c.presumedBounds()
	require.Equal(t, [2]int64{231, 231}, [2]int64{ofIndex, rest})
	require.Zero(t, shares(func(c *Config) { c.MaxBytes = 0 }))
}

// Blocks that left the device after it was matched: the lower tiers then go on from nowhere, also not from the name 0.
func TestLowerTiersDoNotGoOnFromWhatLeft(t *testing.T) {
	r := newWith(t, 1)
	k, err := r.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	hashes := []block.Hash{1, 2}
	q := index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
	require.NoError(t, r.ApplyEvent(1, &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 0, Hash: 1}}}, index.Count))
	below := event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true, Parent: 0, Blocks: []event.Block{{Engine: 5, Hash: 2}}}
	require.NoError(t, r.ApplyEvent(1, &below, index.Count))
	s := &scratch{overlaps: r.index.Match(nil, q)}
	r.extend(s, q)
	require.Len(t, s.extensions, 1)
	require.EqualValues(t, 1, s.extensions[0].Host)
	require.NoError(t, r.ApplyEvent(1, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{0}}, index.Count))
	require.Zero(t, r.index.Blocks(k.cache))
	r.extend(s, q) // with the overlaps of before
	require.Empty(t, s.extensions)
}
