package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/router"
)

//export dgo_go_router_best_worker
func dgo_go_router_best_worker(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, choice *C.dgo_choice, e *C.dgo_error) C.dgo_status {
	return call(e, func() (err error) { // not routerCall, find, request: each function between costs a few of the 150 ns there are
		r := routers.at(handle(h))
		if r == nil {
			return routers.refuse(handle(h))
		}
		if !isChoice(choice) {
			return checkChoice(choice)
		}
		var req router.Request
		if q == nil {
			req.Tokens, err = tokenView(tokens, n)
		} else {
			err = fullRequest(tokens, n, q, &req)
		}
		if err != nil {
			return err
		}
		chosen, err := r.BestWorker(&req)
		if err != nil {
			return err
		}
		giveChoice(choice, chosen)
		return nil
	})
}

// isChoice is checkChoice without a reason.
func isChoice(choice *C.dgo_choice) bool {
	return choice != nil && !misaligned(unsafe.Pointer(choice), unsafe.Alignof(*choice)) && uintptr(choice.struct_size) == unsafe.Sizeof(*choice)
}

func checkChoice(choice *C.dgo_choice) error {
	if choice == nil {
		return out(choice, "choice")
	}
	return sized(choice, &choice.struct_size, "choice")
}

func giveChoice(choice *C.dgo_choice, chosen router.Choice) {
	choice.worker_id, choice.dp_rank = C.uint64_t(chosen.WorkerID), C.uint32_t(chosen.DPRank)
	choice.overlap_blocks = C.uint32_t(chosen.OverlapBlocks)
}

//export dgo_go_router_explain
func dgo_go_router_explain(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "explanation", e, func(r *router.Router) (any, error) {
		var req router.Request
		if err := request(tokens, n, q, &req); err != nil {
			return nil, err
		}
		return r.Explain(&req)
	})
}

//export dgo_go_router_get_overlap_scores
func dgo_go_router_get_overlap_scores(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "scores", e, func(r *router.Router) (any, error) {
		var p router.Prompt
		if err := prompt(tokens, n, q, &p); err != nil {
			return nil, err
		}
		return r.OverlapScores(&p)
	})
}

//export dgo_go_router_get_potential_loads
func dgo_go_router_get_potential_loads(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, rows *C.dgo_potential_load, rowSize, capacity C.size_t, count *C.size_t, e *C.dgo_error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		if err := out(count, "count"); err != nil {
			return err
		}
		if rowSize != C.size_t(unsafe.Sizeof(*rows)) {
			return fmt.Errorf("%w: row_size is %d, expected %d", errArgument, rowSize, unsafe.Sizeof(*rows))
		}
		room, err := view[C.dgo_potential_load](rows, capacity, math.MaxInt32, "rows")
		if err != nil {
			return err
		}
		var p router.Prompt
		if err := prompt(tokens, n, q, &p); err != nil {
			return err
		}
		loads, err := r.PotentialLoads(nil, &p)
		if err != nil {
			return err
		}
		*count = C.size_t(len(loads))
		for i := range min(len(loads), len(room)) {
			l := &loads[i]
			room[i] = C.dgo_potential_load{
				worker_id: C.uint64_t(l.WorkerID), dp_rank: C.uint32_t(l.DPRank), active_requests: C.uint32_t(l.ActiveRequests),
				potential_prefill_tokens: C.int64_t(l.PotentialPrefillTokens), potential_decode_blocks: C.int64_t(l.PotentialDecodeBlocks),
			}
		}
		return nil
	})
}

// booked is routerCall with the id of a request.
func booked(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error, body func(r *router.Router, id string) error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		id, err := requestID(p, n)
		if err != nil {
			return err
		}
		return body(r, id)
	})
}

//export dgo_go_router_mark_prefill_complete
func dgo_go_router_mark_prefill_complete(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error) C.dgo_status {
	return booked(h, p, n, e, func(r *router.Router, id string) error { return r.MarkPrefillComplete(id) })
}

//export dgo_go_router_free
func dgo_go_router_free(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error) C.dgo_status {
	return booked(h, p, n, e, func(r *router.Router, id string) error { return r.Free(id) })
}

//export dgo_go_router_add_output_block
func dgo_go_router_add_output_block(h C.dgo_router, p *C.char, size C.size_t, n C.int64_t, decay *C.double, e *C.dgo_error) C.dgo_status {
	return booked(h, p, size, e, func(r *router.Router, id string) error {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("%w: n=%d, expected 0 .. 2^31-1 blocks", errArgument, int64(n))
		}
		var fraction *float64
		if decay != nil {
			if err := out(decay, "decay_fraction"); err != nil {
				return err
			}
			value := float64(*decay)
			fraction = &value
		}
		return r.AddOutputBlock(id, int(n), fraction)
	})
}

//export dgo_go_router_report_cached_tokens
func dgo_go_router_report_cached_tokens(h C.dgo_router, p *C.char, size C.size_t, tokens C.int64_t, e *C.dgo_error) C.dgo_status {
	return booked(h, p, size, e, func(r *router.Router, id string) error { return r.ReportCachedTokens(id, int64(tokens)) })
}

//export dgo_go_router_decisions
func dgo_go_router_decisions(h C.dgo_router, after C.uint64_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "decisions", e, func(r *router.Router) (any, error) { return r.Decisions(uint64(after)) })
}
