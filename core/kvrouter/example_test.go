package kvrouter_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/mockworker"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// A worker without a GPU and a router, in one process. In several processes discovery is a directory: file.Open(os.Getenv("DYN_FILE_KV"), ...);
// some of them may be Dynamo's.
func Example() {
	r := runtime.New(discovery.NewMemory(), runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	defer r.Close()
	endpoint, err := r.Endpoint("demo.backend.generate")
	if err != nil {
		log.Fatal(err)
	}
	cfg := mocker.DefaultConfig()
	worker, err := mockworker.Start(endpoint, 0, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()

	k, err := kvrouter.New(endpoint, cfg.BlockSize, router.DefaultConfig(), router.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	fields, err := wire.FromJSON(nil, []byte(`{"model": "mock-8b", "stop_conditions": {"max_tokens": 3}}`))
	if err != nil {
		log.Fatal(err)
	}
	request := &kvrouter.Request{Fields: fields}
	request.Tokens = make([]block.Token, 64)
	stream, err := k.Generate(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	fmt.Println("to the worker:", stream.Choice().WorkerID == r.ID())
	for {
		item, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		out, err := wire.ReadOutput(item.Data)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(out.Tokens, "token, the last:", item.Last)
	}
	// Output:
	// to the worker: true
	// 1 token, the last: false
	// 1 token, the last: false
	// 1 token, the last: true
}
