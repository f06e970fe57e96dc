package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// publisher is a worker's side of KV events, over sockets of its own or in a deployment.
type publisher interface {
	Publish(rank uint32, events ...publish.Event) (index.Applied, error)
	Info() []relay.RankInfo
	Close() error
}

// outlet is a publisher as a table wants it.
type outlet struct{ publisher }

var publishers table[outlet]

//export dgo_go_publisher_new
func dgo_go_publisher_new(p *C.char, n C.size_t, result *C.dgo_publisher, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "publisher"); err != nil {
			return err
		}
		raw, err := jsonView(p, n, "config")
		if err != nil {
			return err
		}
		cfg, err := relay.ParseWorkerConfig(raw)
		if err != nil {
			return err
		}
		w, err := relay.StartWorker(cfg)
		if err != nil && statusOf(err) == C.DGO_INTERNAL {
			err = fmt.Errorf("%w: %w", errCannotConnect, err)
		}
		if err != nil {
			return err
		}
		h, err := publishers.add(&outlet{w})
		if err != nil {
			return errors.Join(err, w.Close())
		}
		*result = C.dgo_publisher(h)
		return nil
	})
}

//export dgo_go_publisher_publish
func dgo_go_publisher_publish(h C.dgo_publisher, rank C.uint32_t, events *C.dgo_kv_event, size, n C.size_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		w, err := publishers.find(handle(h))
		if err != nil {
			return err
		}
		if size != C.size_t(unsafe.Sizeof(*events)) {
			return fmt.Errorf("%w: event_size is %d, expected %d", errArgument, size, unsafe.Sizeof(*events))
		}
		list, err := view[C.dgo_kv_event](events, n, C.DGO_EVENTS_MAX, "events")
		if err != nil {
			return err
		}
		batch := make([]publish.Event, len(list))
		for i := range list {
			if batch[i], err = kvEvent(&list[i]); err != nil {
				return fmt.Errorf("events[%d]: %w", i, err)
			}
		}
		_, err = w.Publish(uint32(rank), batch...)
		return err
	})
}

const knownEventFlags = C.DGO_EVENT_PARENT | C.DGO_EVENT_EAGLE

// kvEvent copies an event: nothing of the caller's memory is read once a lock is taken.
func kvEvent(ev *C.dgo_kv_event) (publish.Event, error) {
	if ev.flags&^C.uint32_t(knownEventFlags) != 0 {
		return publish.Event{}, fmt.Errorf("%w: flags=%#x has unknown bits", errArgument, uint32(ev.flags))
	}
	hashes, err := view[block.EngineHash](member(&ev.block_hashes, ev.n_blocks), ev.n_blocks, C.DGO_TOKENS_MAX, "block_hashes")
	if err != nil {
		return publish.Event{}, err
	}
	hashes = slices.Clone(hashes)
	medium, _, err := textOf(&ev.medium, "medium")
	if err != nil {
		return publish.Event{}, err
	}
	switch ev.kind {
	case C.DGO_EVENT_STORED:
		return storedEvent(ev, hashes, medium)
	case C.DGO_EVENT_REMOVED:
		return publish.Event{Kind: event.Removed, BlockHashes: hashes, Medium: medium}, nil
	case C.DGO_EVENT_CLEARED:
		return publish.Cleared(), nil
	}
	return publish.Event{}, fmt.Errorf("%w: kind=%d, expected one of DGO_EVENT_*", errArgument, uint32(ev.kind))
}

func storedEvent(ev *C.dgo_kv_event, hashes []block.EngineHash, medium string) (publish.Event, error) {
	tokens, err := tokenView(member(&ev.tokens, ev.n_tokens), ev.n_tokens)
	if err != nil {
		return publish.Event{}, err
	}
	stored := publish.Event{
		Kind: event.Stored, BlockHashes: hashes, TokenIDs: slices.Clone(tokens), BlockSize: uint32(ev.block_size), Medium: medium,
		Bigram: ev.flags&C.DGO_EVENT_EAGLE != 0,
	}
	if ev.flags&C.DGO_EVENT_PARENT != 0 {
		stored.HasParent, stored.Parent = true, block.EngineHash(ev.parent_hash)
	}
	if stored.LoRAName, _, err = textOf(&ev.lora_name, "lora_name"); err != nil {
		return publish.Event{}, err
	}
	if stored.CacheSalt, _, err = textOf(&ev.cache_salt, "cache_salt"); err != nil {
		return publish.Event{}, err
	}
	infos, err := bytesOf(&ev.block_mm_infos, "block_mm_infos")
	if err == nil && infos != nil {
		stored.MM, err = router.ParseBlockMMInfos(infos)
	}
	return stored, err
}

//export dgo_go_publisher_info
func dgo_go_publisher_info(h C.dgo_publisher, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		w, err := publishers.find(handle(h))
		if err != nil {
			return err
		}
		if err := checkBuffer(b, "ranks"); err != nil {
			return err
		}
		return giveJSON(b, w.Info())
	})
}

//export dgo_go_publisher_close
func dgo_go_publisher_close(h C.dgo_publisher, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		w, err := publishers.remove(handle(h))
		if w == nil {
			return err
		}
		return w.Close()
	})
}
