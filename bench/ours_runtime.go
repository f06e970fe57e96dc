package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

const (
	served  = "bench.backend.generate"
	workers = 8
	streams = 2000
	tokens  = 200  // of the answer to each
	prompt  = 64   // tokens of theirs, no two the same
	pairs   = 5000 // of a request through the router and one directly
	length  = 1024 // tokens of theirs
)

var loopback = runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"}

func init() {
	prepare["workers"] = func() map[string]measurement {
		for range workers {
			serveInstantly(join())
		}
		return nil
	}
	prepare["runtime"] = func() map[string]measurement {
		folder := self() + "-deployment" // of the last round's there is nothing but files
		must(os.RemoveAll(folder))
		must(os.Setenv("DYN_FILE_KV", folder))
		startWorkers()
		k := route()
		stream(k, 0) // warm
		return map[string]measurement{
			"streams":  func() map[string][]float64 { return one(perToken(k)) },
			"overhead": func() map[string][]float64 { return one(overhead(k)) },
		}
	}
}

func join() *runtime.Runtime {
	store, err := file.Open(os.Getenv("DYN_FILE_KV"), file.Options{})
	must(err)
	return runtime.New(store, loopback)
}

func endpoint(r *runtime.Runtime) *runtime.Endpoint {
	e, err := r.Endpoint(served)
	must(err)
	return e
}

// serveInstantly serves a worker that gives as many tokens as it is asked for as fast as they are taken. The n-th is n.
func serveInstantly(r *runtime.Runtime) {
	var items [][]byte
	for n := range tokens {
		items = append(items, encode(fmt.Sprintf(`{"token_ids":[%d]}`, n)))
	}
	last := encode(fmt.Sprintf(`{"token_ids":[%d],"finish_reason":"length"}`, tokens-1))
	alone := encode(`{"token_ids":[0],"finish_reason":"length"}`)
	s, err := endpoint(r).Serve(func(c *runtime.Call) error {
		if !bytes.Contains(c.Body, many) {
			return c.Send(alone)
		}
		for _, item := range items[:tokens-1] {
			if err := c.Send(item); err != nil {
				return err
			}
		}
		return c.Send(last)
	}, runtime.ServeOptions{})
	must(err)
	must(s.RegisterModel([]byte(`{"display_name":"m","slug":"m","model_info":null,"tokenizer":null,"context_length":8192,"kv_cache_block_size":16,` +
		`"migration_limit":0,"model_type":"Completions","model_input":"Tokens","worker_type":"aggregated","needs":[],"media_decoder":null,` +
		`"media_fetcher":null,"runtime_config":{"total_kv_blocks":100000,"max_num_seqs":4096,"max_num_batched_tokens":65536,` +
		`"tool_call_parser":null,"reasoning_parser":null,"tool_call_arguments_format":"json_string","structural_tag_mode":"off",` +
		`"structural_tag_scope":"auto","structural_tag_schema":"auto","exclude_tools_when_tool_choice_none":true,` +
		`"data_parallel_start_rank":0,"data_parallel_size":1,"enable_local_indexer":false,"enable_eagle":false}}`)))
}

// many is the model whose requests get all tokens.
var many = []byte("many-tokens")

func encode(text string) []byte {
	b, err := wire.FromJSON(nil, []byte(text))
	must(err)
	return b
}

// startWorkers starts them in a process of their own, which ends with this one.
func startWorkers() {
	cmd := exec.Command(self(), "serve", "workers")
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // it ends with this process, and then the workers do
	must(err)
	must(cmd.Start())
	go func() { must(cmd.Wait()) }() // which keeps the pipe, and tells if they end too early
}

func self() string {
	path, err := os.Executable()
	must(err)
	return path
}

func route() *kvrouter.KvRouter {
	k, err := kvrouter.New(endpoint(join()), 16, router.DefaultConfig(), router.Options{})
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(k.WaitForWorkers(ctx, workers))
	return k
}

// stream sends one request for all tokens, and sees that they come.
func stream(k *kvrouter.KvRouter, first int) {
	q := &kvrouter.Request{Fields: encode(`{"model":"many-tokens"}`)}
	for n := range prompt {
		q.Tokens = append(q.Tokens, block.Token(first+n))
	}
	s, err := k.Generate(context.Background(), q)
	must(err)
	for n := range tokens {
		item, err := s.Recv()
		must(err)
		out, err := wire.ReadOutput(item.Data)
		must(err)
		if out.Tokens != 1 || item.First != (n == 0) || item.Last != (n == tokens-1) {
			panic(fmt.Sprintf("item %d of a stream is %+v", n, item))
		}
	}
	if _, err := s.Recv(); err != io.EOF {
		panic(err)
	}
}

// perToken gives the CPU time of this process that a token takes.
func perToken(k *kvrouter.KvRouter) float64 {
	var all sync.WaitGroup
	start := cpu()
	for n := range streams {
		all.Go(func() { stream(k, n*prompt) })
	}
	all.Wait()
	return (cpu() - start) / (streams * tokens)
}

// overhead gives the median of what a request takes longer through the router than directly, in nanoseconds by the clock.
func overhead(k *kvrouter.KvRouter) float64 {
	q := &kvrouter.Request{Fields: encode(`{"model":"m"}`)}
	for n := range length {
		q.Tokens = append(q.Tokens, block.Token(n))
	}
	fields, err := wire.AppendRequest(nil, q.Fields, q.Tokens, encode(`{"dp_rank":0}`))
	must(err)
	id := k.Client().IDs()[0]
	direct := func() time.Duration {
		began := time.Now()
		s, err := k.Client().Direct(context.Background(), id, &runtime.Request{ID: "direct", Body: fields})
		for err == nil {
			_, err = s.Recv()
		}
		ended(err)
		return time.Since(began)
	}
	routed := func() time.Duration {
		began := time.Now()
		s, err := k.Generate(context.Background(), q)
		for err == nil {
			_, err = s.Recv()
		}
		ended(err)
		return time.Since(began)
	}
	differences := make([]time.Duration, pairs)
	for n := range differences {
		if n%2 == 0 {
			x := direct()
			differences[n] = routed() - x
		} else {
			x := routed()
			differences[n] = x - direct()
		}
	}
	slices.Sort(differences)
	return float64(differences[pairs/2])
}

func ended(err error) {
	if err != io.EOF {
		panic(err)
	}
}
