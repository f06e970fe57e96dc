// Command go is examples/c/follow.c in Go, without the C library: an engine without a GPU serves a prompt, and a router that
// follows its events finds the prompt there.
//
//	go run ./examples/go
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

func main() {
	if err := follow(); err != nil {
		log.Fatal(err)
	}
}

func follow() error {
	config := mocker.DefaultConfig()
	config.BlockSize, config.InterTokenMS = 4, 0
	engine, err := mocker.New(config)
	if err != nil {
		return err
	}
	defer engine.Close()

	r, err := router.New(config.BlockSize, router.DefaultConfig(), router.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	info := engine.Info()
	err = r.AddWorker(router.Worker{ID: 7, KVEvents: router.Endpoints{Base: info.Events}, Replay: router.Endpoints{Base: info.Replay}})
	if err != nil {
		return err
	}

	prompt := []uint32{11, 12, 13, 14, 21, 22, 23, 24, 31, 32}
	answer, err := engine.Generate(prompt, mocker.DefaultGenerateOptions())
	if err != nil {
		return err
	}
	defer answer.Close()
	var items stream.Batch
	for err == nil {
		err = answer.Next(context.Background(), &items, 64)
	}
	if !errors.Is(err, stream.ErrEnded) {
		return err
	}

	for range 1000 { // the events come by themselves
		choice, err := r.BestWorker(&router.Request{Prompt: router.Prompt{Tokens: prompt}})
		if err != nil {
			return err
		}
		if choice.OverlapBlocks == 2 {
			fmt.Printf("%d tokens; worker %d holds %d blocks of the prompt\n", len(items.Ends), choice.WorkerID, choice.OverlapBlocks)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the events did not come")
}
