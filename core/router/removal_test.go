package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// What was under way when its rank was removed, and arrives after the rank's slot belongs to another: an event changes
// nothing, and what was matched for the old holder is not the new one's.

func newWith(t *testing.T, ids ...uint64) *Router {
	r, err := New(4, DefaultConfig(), Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	for _, id := range ids {
		require.NoError(t, r.AddWorker(Worker{ID: id}))
	}
	return r
}

func TestEventOfARemovedRankChangesNothing(t *testing.T) {
	r := newWith(t, 1)
	old, err := r.find(worker.Rank{ID: 1})
	require.NoError(t, err)
	require.NoError(t, r.RemoveWorker(1))
	require.NoError(t, r.AddWorker(Worker{ID: 2}))
	heir, err := r.find(worker.Rank{ID: 2})
	require.NoError(t, err)
	require.Equal(t, old.cache, heir.cache, "the test wants the cache used again")

	stored := event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	err = r.applyHost(old, &stored, index.Count)
	require.ErrorIs(t, err, ErrWorkerNotFound)
	require.Zero(t, r.index.Blocks(heir.cache))
	sink{r, old, index.Count}.Reset(old.id)
	_, err = sink{r, old, index.Count}.Apply(old.id, &stored)
	require.Error(t, err)
	require.Zero(t, r.index.Blocks(heir.cache))
}

// handover lets a slot change hands at the moment a match returns.
type handover struct {
	index.Index
	then func()
}

func (h *handover) Match(dst []index.Overlap, q index.Query) []index.Overlap {
	dst = h.Index.Match(dst, q)
	if then := h.then; then != nil {
		h.then = nil
		then()
	}
	return dst
}

func TestMatchIsNotTakenForTheNextHolderOfItsSlot(t *testing.T) {
	r := newWith(t, 1)
	tokens := []uint32{1, 2, 3, 4}
	p := Prompt{Tokens: tokens}
	stored := event.Event{Kind: event.Stored}
	stored.Blocks = []event.Block{{Engine: 1, Hash: block.Hashes(nil, tokens, 4, nil)[0]}}
	require.NoError(t, r.ApplyEvent(1, &stored, index.Count))

	r.index = &handover{r.index, func() {
		require.NoError(t, r.RemoveWorker(1))
		require.NoError(t, r.AddWorker(Worker{ID: 2}))
	}}
	choice, err := r.BestWorker(&Request{Prompt: p})
	require.NoError(t, err)
	require.Equal(t, Choice{WorkerID: 2}, choice, "worker 2 holds nothing")
}
