package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

// waits are the tickets of one router by number, and those that are done in a list behind a descriptor. Its lock is taken below
// the router's, and never held while the router is called.
//
// Invariants: live has the tickets whose result nobody took. ready is empty without a descriptor.
type waits struct {
	mu    sync.Mutex
	last  uint64
	live  map[uint64]*router.Ticket
	ready []uint64
	bell  *stream.Bell // nil until somebody asks for the descriptor
}

func newWaits() *waits { return &waits{live: make(map[uint64]*router.Ticket)} }

// add gives a ticket its number.
func (w *waits) add(tk *router.Ticket) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	w.live[w.last] = tk
	return w.last
}

// done hears that a ticket has its result.
func (w *waits) done(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bell == nil {
		return
	}
	if len(w.ready) > 2*len(w.live)+64 { // nobody drains: keep what was not taken
		w.ready = slices.DeleteFunc(w.ready, func(id uint64) bool { _, ok := w.live[id]; return !ok })
	}
	w.ready = append(w.ready, id)
	w.bell.Ring()
}

// descriptor gives the descriptor, open from now on.
func (w *waits) descriptor() (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bell == nil {
		bell, err := stream.NewBell()
		if err != nil {
			return 0, err
		}
		w.bell = bell
		for id, tk := range w.live {
			select {
			case <-tk.Done():
				w.ready = append(w.ready, id)
			default:
			}
		}
		w.bell.Ring()
	}
	return w.bell.Descriptor(), nil
}

// drain moves numbers of tickets that are done to dst, and tells how many.
func (w *waits) drain(dst []uint64) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bell == nil {
		return 0
	}
	rest := w.ready
	for len(rest) > 0 && n < len(dst) {
		if _, ok := w.live[rest[0]]; ok {
			dst[n] = rest[0]
			n++
		}
		rest = rest[1:]
	}
	w.ready = append(w.ready[:0], rest...)
	if len(rest) == 0 {
		w.bell.Silence()
	}
	return n
}

// find gives a ticket whose result nobody took; with take, it is taken.
func (w *waits) find(id uint64, take bool) (*router.Ticket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tk := w.live[id]
	if tk == nil {
		return nil, fmt.Errorf("%w: ticket=%d: no such ticket, or its result was taken", errArgument, id)
	}
	if take {
		delete(w.live, id)
	}
	return tk, nil
}

func (w *waits) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bell != nil {
		w.bell.Close()
	}
	w.bell, w.ready = nil, nil
}

// servedCall is call with everything behind a router's handle.
func servedCall(h C.dgo_router, e *C.dgo_error, body func(s *served) error) C.dgo_status {
	return call(e, func() error {
		s, err := routers.find(handle(h))
		if err != nil {
			return err
		}
		return body(s)
	})
}

//export dgo_go_router_submit
func dgo_go_router_submit(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, choice *C.dgo_choice, ticket *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return servedCall(h, e, func(s *served) error {
		if err := checkChoice(choice); err != nil {
			return err
		}
		if err := out(ticket, "ticket"); err != nil {
			return err
		}
		var req router.Request
		if err := request(tokens, n, q, &req); err != nil {
			return err
		}
		if !s.Queues() {
			chosen, err := s.BestWorker(&req)
			if err == nil {
				giveChoice(choice, chosen)
				*ticket = 0
			}
			return err
		}
		var number atomic.Uint64 // 0 until it has one: most requests get their choice at once, and need none
		chosen, tk, err := s.Submit(&req, func() {
			if id := number.Load(); id != 0 {
				s.waits.done(id)
			}
		})
		if err != nil {
			return err
		}
		*ticket = 0
		if tk == nil {
			giveChoice(choice, chosen)
			return nil
		}
		id := s.waits.add(tk)
		number.Store(id)
		*ticket = C.uint64_t(id)
		select {
		case <-tk.Done():
			s.waits.done(id) // who was told before that had no number
		default:
		}
		return nil
	})
}

//export dgo_go_router_wait
func dgo_go_router_wait(h C.dgo_router, ticket C.uint64_t, timeout C.uint32_t, choice *C.dgo_choice, done *C.int32_t, e *C.dgo_error) C.dgo_status {
	return servedCall(h, e, func(s *served) error {
		if err := checkChoice(choice); err != nil {
			return err
		}
		if err := out(done, "done"); err != nil {
			return err
		}
		if err := checkWait(timeout); err != nil {
			return err
		}
		tk, err := s.waits.find(uint64(ticket), false)
		if err != nil {
			return err
		}
		if !within(tk.Done(), time.Duration(timeout)*time.Millisecond) {
			*done = 0
			return nil
		}
		if tk, err = s.waits.find(uint64(ticket), true); err != nil {
			return err
		}
		chosen, err := tk.Result()
		if err != nil {
			return err
		}
		giveChoice(choice, chosen)
		*done = 1
		return nil
	})
}

// within tells whether something is done before a time is over.
func within(done <-chan struct{}, limit time.Duration) bool {
	select {
	case <-done:
		return true
	default:
	}
	if limit == 0 {
		return false
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

//export dgo_go_router_cancel
func dgo_go_router_cancel(h C.dgo_router, ticket C.uint64_t, e *C.dgo_error) C.dgo_status {
	return servedCall(h, e, func(s *served) error {
		tk, err := s.waits.find(uint64(ticket), true)
		if err == nil {
			tk.Cancel()
		}
		return err
	})
}

//export dgo_go_router_ready_fd
func dgo_go_router_ready_fd(h C.dgo_router, result *C.int, e *C.dgo_error) C.dgo_status {
	return servedCall(h, e, func(s *served) error {
		if err := out(result, "fd"); err != nil {
			return err
		}
		fd, err := s.waits.descriptor()
		if err == nil {
			*result = C.int(fd)
		}
		return err
	})
}

//export dgo_go_router_ready
func dgo_go_router_ready(h C.dgo_router, tickets *C.uint64_t, capacity C.size_t, count *C.size_t, e *C.dgo_error) C.dgo_status {
	return servedCall(h, e, func(s *served) error {
		if err := out(count, "count"); err != nil {
			return err
		}
		room, err := view[uint64](tickets, capacity, C.DGO_WORKER_IDS_MAX, "tickets")
		if err != nil {
			return err
		}
		if len(room) == 0 {
			return fmt.Errorf("%w: capacity=0, expected at least 1", errArgument)
		}
		*count = C.size_t(s.waits.drain(room))
		return nil
	})
}
