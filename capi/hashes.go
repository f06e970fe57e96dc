package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/router"
)

//export dgo_go_compute_block_hashes
func dgo_go_compute_block_hashes(tokens *C.uint32_t, n C.size_t, blockSize C.int64_t, q *C.dgo_request, eagle C.int32_t, hashes *C.uint64_t, capacity C.size_t, count *C.size_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(count, "count"); err != nil {
			return err
		}
		if err := block.CheckSize(int64(blockSize)); err != nil {
			return fmt.Errorf("%w: %w", errArgument, err)
		}
		room, err := view[block.Hash](hashes, capacity, math.MaxInt32, "hashes")
		if err != nil {
			return err
		}
		var p router.Prompt
		if err := prompt(tokens, n, q, &p); err != nil {
			return err
		}
		blocks := block.Count(len(p.Tokens), int(blockSize), eagle != 0)
		*count = C.size_t(blocks)
		if blocks <= len(room) {
			id := block.Identity{LoRAName: p.LoRAName, CacheSalt: p.CacheNamespace, MM: p.MM, Eagle: eagle != 0}
			block.Hashes(room[:0], p.Tokens, int(blockSize), &id)
		}
		return nil
	})
}

//export dgo_go_compute_sequence_hashes
func dgo_go_compute_sequence_hashes(hashes *C.uint64_t, n C.size_t, sequences *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		in, err := view[block.Hash](hashes, n, C.DGO_TOKENS_MAX, "hashes")
		if err != nil {
			return err
		}
		room, err := view[block.SequenceHash](sequences, n, C.DGO_TOKENS_MAX, "sequences")
		if err != nil {
			return err
		}
		block.Sequences(room[:0], in)
		return nil
	})
}
