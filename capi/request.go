package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"math"
	"time"

	"github.com/dynamo-go/dynamo-go/core/router"
)

const knownRequestFlags = C.DGO_REQUEST_WORKER_ID | C.DGO_REQUEST_DP_RANK | C.DGO_REQUEST_UPDATE_INDEXER | C.DGO_REQUEST_TIMEOUT

// prompt reads the tokens and the identity members of a request, which may be NULL.
func prompt(tokens *C.uint32_t, n C.size_t, q *C.dgo_request, p *router.Prompt) error {
	var err error
	if p.Tokens, err = tokenView(tokens, n); err != nil || q == nil {
		return err
	}
	if err := sized(q, &q.struct_size, "request"); err != nil {
		return err
	}
	if p.LoRAName, _, err = textOf(&q.lora_name, "lora_name"); err != nil {
		return err
	}
	if p.CacheNamespace, _, err = textOf(&q.cache_namespace, "cache_namespace"); err != nil {
		return err
	}
	if p.Shared, err = view[[2]uint32](member(&q.shared_ranges, q.n_shared_ranges), q.n_shared_ranges, C.DGO_WORKER_IDS_MAX, "shared_ranges"); err != nil {
		return err
	}
	infos, err := bytesOf(&q.block_mm_infos, "block_mm_infos")
	if err != nil || infos == nil {
		return err
	}
	p.MM, err = router.ParseBlockMMInfos(infos)
	return err
}

// request reads everything of a request, which may be NULL: that costs two calls less.
func request(tokens *C.uint32_t, n C.size_t, q *C.dgo_request, r *router.Request) (err error) {
	if q == nil {
		r.Tokens, err = tokenView(tokens, n)
		return err
	}
	return fullRequest(tokens, n, q, r)
}

func fullRequest(tokens *C.uint32_t, n C.size_t, q *C.dgo_request, r *router.Request) error {
	if err := prompt(tokens, n, q, &r.Prompt); err != nil {
		return err
	}
	if q.flags&^knownRequestFlags != 0 {
		return fmt.Errorf("%w: request->flags=%#x has unknown bits", errArgument, uint32(q.flags))
	}
	r.UpdateIndexer = q.flags&C.DGO_REQUEST_UPDATE_INDEXER != 0
	var err error
	if r.ID, r.Book, err = textOf(&q.request_id, "request_id"); err != nil {
		return err
	}
	if r.PolicyClass, _, err = textOf(&q.policy_class, "policy_class"); err != nil {
		return err
	}
	if r.SessionID, _, err = textOf(&q.session_id, "session_id"); err != nil {
		return err
	}
	r.StrictPriority, r.PriorityJump = uint32(q.strict_priority), float64(q.priority_jump)
	if q.flags&C.DGO_REQUEST_TIMEOUT != 0 {
		timeout := float64(q.timeout_seconds)
		if !(timeout >= 0 && timeout <= math.MaxFloat64) {
			return fmt.Errorf("%w: timeout=%v, expected seconds, finite and >= 0", errArgument, timeout)
		}
		wait := time.Duration(math.MaxInt64)
		if timeout < wait.Seconds() {
			wait = time.Duration(timeout * float64(time.Second))
		}
		r.Timeout = &wait
	}
	overrides, err := bytesOf(&q.router_config_override, "router_config_override")
	if err != nil {
		return err
	}
	if overrides != nil {
		if r.Overrides, err = router.ParseOverrides(overrides); err != nil {
			return err
		}
	}
	return constraints(q, r)
}

// constraints reads who may be chosen.
func constraints(q *C.dgo_request, r *router.Request) error {
	c := &r.Constraints
	c.HasWorker, c.HasDPRank = q.flags&C.DGO_REQUEST_WORKER_ID != 0, q.flags&C.DGO_REQUEST_DP_RANK != 0
	if c.HasWorker {
		c.Worker = uint64(q.worker_id)
	}
	if c.HasDPRank {
		c.DPRank = uint32(q.dp_rank)
	}
	if allowed := member(&q.allowed_worker_ids, q.n_allowed_worker_ids); allowed != nil || q.n_allowed_worker_ids != 0 {
		ids, err := view[uint64](allowed, q.n_allowed_worker_ids, C.DGO_WORKER_IDS_MAX, "allowed_worker_ids")
		if err != nil {
			return err
		}
		c.Allowed = make(map[uint64]struct{}, len(ids))
		for _, id := range ids {
			c.Allowed[id] = struct{}{}
		}
	}
	raw, err := bytesOf(&q.routing_constraints, "routing_constraints")
	if err != nil || raw == nil {
		return err
	}
	return router.ParseRoutingConstraints(raw, c)
}
