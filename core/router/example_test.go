package router_test

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// Two workers; one of them has cached the prompt. A worker given with KVEvents and Replay endpoints is followed by itself;
// here the events are applied by hand.
func Example() {
	r, err := router.New(16, router.DefaultConfig(), router.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	for _, id := range []uint64{1, 2} {
		if err := r.AddWorker(router.Worker{ID: id}); err != nil {
			panic(err)
		}
	}

	prompt := make([]uint32, 64)
	stored := event.Event{Kind: event.Stored}
	for i, h := range block.Hashes(nil, prompt, 16, nil) {
		stored.Blocks = append(stored.Blocks, event.Block{Engine: block.EngineHash(i), Hash: h})
	}
	if err := r.ApplyEvent(2, &stored, index.Count); err != nil {
		panic(err)
	}

	choice, err := r.BestWorker(&router.Request{Prompt: router.Prompt{Tokens: prompt}, ID: "request-1", Book: true})
	if err != nil {
		panic(err)
	}
	fmt.Printf("worker %d holds %d of 4 blocks\n", choice.WorkerID, choice.OverlapBlocks)
	_ = r.MarkPrefillComplete("request-1") // at the first token
	_ = r.Free("request-1")                // at the end, whatever the end is
	// Output: worker 2 holds 4 of 4 blocks
}
