package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/radix"
)

var trees table[radix.Tree]

// foundRows are rows on their way to the caller.
var foundRows = sync.Pool{New: func() any { return new([]radix.Match) }}

//export dgo_go_radix_tree_new
func dgo_go_radix_tree_new(result *C.dgo_radix_tree, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "tree"); err != nil {
			return err
		}
		tree := radix.New()
		h, err := trees.add(tree)
		if err != nil {
			tree.Close()
			return err
		}
		*result = C.dgo_radix_tree(h)
		return nil
	})
}

// treeCall is call with the tree of a handle.
func treeCall(h C.dgo_radix_tree, e *C.dgo_error, body func(t *radix.Tree) error) C.dgo_status {
	return call(e, func() error {
		t, err := trees.find(handle(h))
		if err != nil {
			return err
		}
		return body(t)
	})
}

//export dgo_go_radix_tree_apply_event
func dgo_go_radix_tree_apply_event(h C.dgo_radix_tree, workerID C.uint64_t, p *C.char, n C.size_t, e *C.dgo_error) C.dgo_status {
	return treeCall(h, e, func(t *radix.Tree) error {
		text, err := jsonView(p, n, "event")
		if err != nil {
			return err
		}
		ev, err := event.ParseKvCacheEvent(text)
		if err != nil {
			return fmt.Errorf("%w: %w", errArgument, err)
		}
		return t.Apply(uint64(workerID), &ev)
	})
}

//export dgo_go_radix_tree_find_matches
func dgo_go_radix_tree_find_matches(h C.dgo_radix_tree, hashes *C.uint64_t, n C.size_t, rows *C.dgo_match, rowSize, capacity C.size_t, count *C.size_t, e *C.dgo_error) C.dgo_status {
	return treeCall(h, e, func(t *radix.Tree) error {
		if err := out(count, "count"); err != nil {
			return err
		}
		if rowSize != C.size_t(unsafe.Sizeof(*rows)) {
			return fmt.Errorf("%w: row_size is %d, expected %d", errArgument, rowSize, unsafe.Sizeof(*rows))
		}
		room, err := view[C.dgo_match](rows, capacity, math.MaxInt32, "rows")
		if err != nil {
			return err
		}
		blocks, err := view[block.Hash](hashes, n, C.DGO_TOKENS_MAX, "block_hashes")
		if err != nil {
			return err
		}
		found := foundRows.Get().(*[]radix.Match)
		*found = t.Find((*found)[:0], blocks)
		*count = C.size_t(len(*found))
		for i, m := range (*found)[:min(len(*found), len(room))] {
			room[i] = C.dgo_match{worker_id: C.uint64_t(m.Rank.ID), dp_rank: C.uint32_t(m.Rank.DPRank), blocks: C.uint32_t(m.Blocks)}
		}
		foundRows.Put(found)
		return nil
	})
}

//export dgo_go_radix_tree_remove_worker
func dgo_go_radix_tree_remove_worker(h C.dgo_radix_tree, workerID C.uint64_t, e *C.dgo_error) C.dgo_status {
	return treeCall(h, e, func(t *radix.Tree) error {
		t.Remove(uint64(workerID))
		return nil
	})
}

//export dgo_go_radix_tree_dump
func dgo_go_radix_tree_dump(h C.dgo_radix_tree, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return treeCall(h, e, func(t *radix.Tree) error {
		if err := checkBuffer(b, "events"); err != nil {
			return err
		}
		var lines []byte
		for _, re := range t.Dump() {
			lines = append(event.AppendRouterEvent(lines, &re), '\n')
		}
		return give(b, lines)
	})
}

//export dgo_go_radix_tree_close
func dgo_go_radix_tree_close(h C.dgo_radix_tree, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		t, err := trees.remove(handle(h))
		if t != nil {
			t.Close()
		}
		return err
	})
}
