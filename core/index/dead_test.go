package index_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A cemetery is an index of two lanes, those of even and of odd slots, in which the names of cleared slots stay for long: slot 4 has
// many others.
type cemetery struct {
	t *testing.T
	x index.Index
}

func newCemetery(t *testing.T) cemetery {
	c := cemetery{t, index.NewSmall(index.Options{}, 2, 1024)}
	c.apply(4, storeOf(alone(1, 400), 0, 400))
	return c
}

func (c cemetery) apply(slot worker.Slot, ev *event.Event) index.Applied {
	done, err := c.x.Apply(slot, ev, index.Count)
	require.NoError(c.t, err)
	require.NoError(c.t, index.Check(c.x))
	return done
}

func (c cemetery) clear(slot worker.Slot, dead int) {
	c.apply(slot, &event.Event{Kind: event.Cleared})
	require.Equal(c.t, dead, index.Dead(c.x))
}

// settle waits until all dead are gone, and makes sure that a slot can take each of its names.
func (c cemetery) settle(slot worker.Slot, ev *event.Event) {
	for last := -1; index.Dead(c.x) != last; {
		last = index.Dead(c.x)
		c.apply(4, &event.Event{Kind: event.Removed})
	}
	require.Zero(c.t, index.Dead(c.x))
	gone := &event.Event{Kind: event.Removed}
	for _, b := range slices.Backward(ev.Blocks) {
		gone.Removed = append(gone.Removed, b.Engine)
	}
	require.Equal(c.t, index.Applied{Removed: len(ev.Blocks)}, c.apply(slot, gone))
}

var chain20 = storeOf(alone(0, 20), 0, 20)

func TestClearedBlocksThatOthersHoldAreStoredAgain(t *testing.T) {
	c := newCemetery(t)
	c.apply(0, chain20)
	c.apply(1, chain20) // of another lane, so the blocks stay where they are
	c.clear(0, 19)
	require.Equal(t, index.Applied{Stored: 20}, c.apply(0, chain20))
	c.settle(0, chain20)
}

func TestClearedBlocksThatOthersNameInTheirWayAreStoredAgain(t *testing.T) {
	c := newCemetery(t)
	c.apply(0, chain20)
	other := storeOf(alone(0, 20), 0, 20)
	for i := range other.Blocks {
		other.Blocks[i].Engine ^= 1 << 60
	}
	c.apply(2, other)
	c.clear(0, 19)
	require.Equal(t, index.Applied{Stored: 20}, c.apply(0, chain20))
	c.settle(0, chain20)
	c.settle(2, other)
}

func TestClearedNamesNameNothing(t *testing.T) {
	c := newCemetery(t)
	c.apply(0, chain20)
	front := storeOf(alone(0, 20), 0, 7)
	c.apply(2, front)
	c.clear(0, 12)
	for _, b := range chain20.Blocks[7:] {
		require.Equal(t, index.Applied{Unknown: 1}, c.apply(2, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{b.Engine}}))
		require.Equal(t, index.Applied{Unknown: 1}, c.apply(0, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{b.Engine}}))
	}
	c.settle(2, front)
}

func TestClearedNamesGoToOtherBlocks(t *testing.T) {
	c := newCemetery(t)
	c.apply(0, chain20)
	c.apply(1, chain20)
	c.clear(0, 19)
	other := storeOf(alone(2, 20), 0, 20)
	for i := range other.Blocks {
		other.Blocks[i].Engine = chain20.Blocks[i].Engine
	}
	require.Equal(t, index.Applied{Stored: 20}, c.apply(2, other))
	c.apply(0, chain20)
	c.settle(2, other)
	c.settle(0, chain20)
}

// What dead names take is used before a block has to go.
func TestDeadNamesMakeRoomBeforeBlocksDo(t *testing.T) {
	c := newCemetery(t)
	c.apply(0, chain20)
	c.clear(0, 19)
	require.Equal(t, 19, index.Evict(c.x, 1))
	require.Zero(t, index.Dead(c.x))
	require.NoError(t, index.Check(c.x))
	require.Equal(t, 400, c.x.Blocks(4))
	require.Equal(t, 64, index.Evict(c.x, 1))
	require.Equal(t, 336, c.x.Blocks(4))
	require.Equal(t, uint64(64), c.x.Evicted(4))
}
