package router

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A file that was whole, and is not any more when its blocks are restored: nothing of it stays, no slot either.
func TestFileThatChangesWhileItIsLoaded(t *testing.T) {
	a := newWith(t, 1, 2, 3)
	for id := range uint64(3) {
		for i := range block.EngineHash(20) {
			ev := event.Event{Kind: event.Stored, Blocks: make([]event.Block, 1000)}
			for at := range ev.Blocks {
				name := 1 + i*1000 + block.EngineHash(at)
				ev.Blocks[at] = event.Block{Engine: name, Hash: block.Hash(name)}
			}
			require.NoError(t, a.ApplyEvent(id+1, &ev, index.Count)) // more than one section
		}
	}
	path := filepath.Join(t.TempDir(), "router.snapshot")
	require.NoError(t, a.Save(path))

	b := newWith(t, 1)
	_, err := b.Load(path)
	require.NoError(t, err)
	require.NoError(t, b.RemoveWorker(3))
	require.Len(t, b.waiting, 1)
	require.NoError(t, b.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, info.Size()-1))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	epoch := b.epoch.Load()
	_, err = b.restore(path, f)
	require.ErrorIs(t, err, ErrSnapshotRefused)
	require.Empty(t, b.waiting)
	require.Equal(t, 1, b.table.Len(), "slots were given back")
	require.Greater(t, b.epoch.Load(), epoch)
	require.Zero(t, b.index.Stats().Pairs)
	live, err := b.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	require.True(t, live.mu.TryLock(), "its events go on")
	live.mu.Unlock()
}
