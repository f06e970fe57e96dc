package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Errors of handles.
var (
	errBadHandle      = errors.New("not a handle")
	errHandleClosed   = errors.New("closed")
	errTooManyHandles = errors.New("too many live handles")
)

// maxHandles bounds the live handles of a kind. It is far above what a process needs, and far below what would matter.
const maxHandles = 1 << 14

// A handle is kind (8 bits, never 0), slot (24 bits), generation (32 bits, never 0).
type handle = uint64

const (
	kindRouter uint8 = iota + 1
	kindStream
	kindMocker
	kindPublisher
	kindRadixTree
	kindRuntime
	kindServer
)

// kindNames: what the objects of each kind are called in errors.
var kindNames = [...]string{
	kindRouter: "router", kindStream: "stream", kindMocker: "mocker", kindPublisher: "publisher", kindRadixTree: "radix tree",
	kindRuntime: "runtime", kindServer: "server",
}

// table maps the handles of one kind to objects. Lookups take no lock.
//
// Invariants: slots[i] is nil iff i was never used; its generation only grows; its value is nil iff i is in free.
type table[T any] struct {
	kind  uint8
	slots [maxHandles]atomic.Pointer[entry[T]]

	mu   sync.Mutex // guards what follows, and every change of slots
	free []uint32
	used uint32 // slots below it were used
}

// The tables are told their kinds here, so that what is known of them before is nothing but zeros: tables with a kind from the
// start would be in the library's file, 128 KiB each.
func init() {
	routers.kind, streams.kind, mockers.kind, publishers.kind = kindRouter, kindStream, kindMocker, kindPublisher
	trees.kind, runtimes.kind, servers.kind = kindRadixTree, kindRuntime, kindServer
}

type entry[T any] struct {
	gen   uint32
	value *T
}

func (t *table[T]) add(value *T) (handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot, gen uint32
	switch n := len(t.free); {
	case n > 0:
		slot, t.free = t.free[n-1], t.free[:n-1]
		gen = t.slots[slot].Load().gen
	case t.used < maxHandles:
		slot = t.used
		t.used++
	default:
		return 0, fmt.Errorf("%w: %d", errTooManyHandles, maxHandles)
	}
	gen++
	if gen == 0 {
		gen = 1
	}
	t.slots[slot].Store(&entry[T]{gen, value})
	return uint64(t.kind)<<56 | uint64(slot)<<32 | uint64(gen), nil
}

// at gives the object of a live handle, or nil. It is small, so that the compiler puts it where it is used.
func (t *table[T]) at(h handle) *T {
	if slot := uint32(h>>32) & (1<<24 - 1); uint8(h>>56) == t.kind && slot < maxHandles {
		if e := t.slots[slot].Load(); e != nil && e.gen == uint32(h) {
			return e.value
		}
	}
	return nil
}

// find gives the object of a live handle.
func (t *table[T]) find(h handle) (*T, error) {
	if value := t.at(h); value != nil {
		return value, nil
	}
	return nil, t.refuse(h)
}

// refuse tells why find has nothing for a handle.
func (t *table[T]) refuse(h handle) error {
	slot := uint32(h>>32) & (1<<24 - 1)
	if uint8(h>>56) != t.kind || slot >= maxHandles {
		return fmt.Errorf("%w of a %s: %#x", errBadHandle, kindNames[t.kind], h)
	}
	if e := t.slots[slot].Load(); e == nil || uint32(h) == 0 || uint32(h) > e.gen {
		return fmt.Errorf("%w of a %s: %#x", errBadHandle, kindNames[t.kind], h)
	}
	return fmt.Errorf("the %s is %w: %#x", kindNames[t.kind], errHandleClosed, h)
}

// remove ends a handle and gives its object, or nil if it was closed before or is 0.
func (t *table[T]) remove(h handle) (*T, error) {
	if h == 0 {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	value, err := t.find(h)
	if errors.Is(err, errHandleClosed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slot := uint32(h>>32) & (1<<24 - 1)
	t.slots[slot].Store(&entry[T]{gen: uint32(h)})
	t.free = append(t.free, slot)
	return value, nil
}

// live counts the handles that are not closed.
func (t *table[T]) live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.used) - len(t.free)
}
