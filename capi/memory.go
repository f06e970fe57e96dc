package main

/*
#include <stdlib.h>
#include "dynamo_go.h"

// malloc of its own: cgo's ends the process when there is no memory.
static inline void *dgo_allocate(size_t size) { return malloc(size); }
*/
import "C"

import (
	"errors"
	"fmt"
	"unicode/utf8"
	"unsafe"
)

// Errors of arguments, before the library proper sees them.
var (
	errArgument = errors.New("invalid argument")
	errNoMemory = errors.New("out of memory")
)

func misaligned(p unsafe.Pointer, align uintptr) bool { return uintptr(p)%align != 0 }

// out checks a required pointer. Like the other checks, it leaves the words of a refusal to a function of its own, so that
// the compiler puts the check itself where it is used.
func out[T any](p *T, name string) error {
	if p != nil && !misaligned(unsafe.Pointer(p), unsafe.Alignof(*p)) {
		return nil
	}
	return badPointer(unsafe.Pointer(p), unsafe.Alignof(*p), name)
}

func badPointer(p unsafe.Pointer, align uintptr, name string) error {
	if p == nil {
		return fmt.Errorf("%w: %s is NULL", errArgument, name)
	}
	return fmt.Errorf("%w: %s is not aligned to %d bytes", errArgument, name, align)
}

// sized checks a struct that begins with its size.
func sized[T any](p *T, size *C.uint32_t, name string) error {
	if p != nil && !misaligned(unsafe.Pointer(p), unsafe.Alignof(*p)) && uintptr(*size) == unsafe.Sizeof(*p) {
		return nil
	}
	return badStruct(unsafe.Pointer(p), unsafe.Alignof(*p), unsafe.Sizeof(*p), size, name)
}

func badStruct(p unsafe.Pointer, align, expected uintptr, size *C.uint32_t, name string) error {
	if p == nil || misaligned(p, align) {
		return badPointer(p, align, name)
	}
	return fmt.Errorf("%w: %s->struct_size is %d, expected %d", errArgument, name, *size, expected)
}

// empty stands for an array without elements.
var empty uint64

// member reads the pointer of a caller's struct to n elements. One into the first page, which to no elements is common,
// must never be a pointer in Go: see shim.c.
func member[T any](p **T, n C.size_t) *T {
	const firstPage = 4096
	switch address := *(*uintptr)(unsafe.Pointer(p)); {
	case address == 0 || address >= firstPage:
		return *p
	case n == 0:
		return (*T)(unsafe.Pointer(&empty))
	}
	return nil
}

// view is the caller's array as a slice, valid during the call only.
func view[G, T any](p *T, n C.size_t, limit C.size_t, name string) ([]G, error) {
	if n == 0 {
		return nil, nil
	}
	if p == nil || n > limit || misaligned(unsafe.Pointer(p), unsafe.Alignof(*p)) {
		return nil, badArray(unsafe.Pointer(p), unsafe.Alignof(*p), n, limit, name)
	}
	return unsafe.Slice((*G)(unsafe.Pointer(p)), int(n)), nil
}

func badArray(p unsafe.Pointer, align uintptr, n, limit C.size_t, name string) error {
	if n > limit {
		return fmt.Errorf("%w: %s has %d elements, at most %d are allowed", errArgument, name, n, limit)
	}
	return badPointer(p, align, name)
}

func tokenView(p *C.uint32_t, n C.size_t) ([]uint32, error) {
	return view[uint32](p, n, C.DGO_TOKENS_MAX, "tokens")
}

// bytesView is a JSON text or a payload, valid during the call only. NULL is "none" and gives nil.
func bytesView(p *C.char, n C.size_t, name string) ([]byte, error) {
	if p == nil && n == 0 {
		return nil, nil
	}
	if p != nil && n == 0 {
		return []byte{}, nil
	}
	return view[byte](p, n, C.DGO_JSON_MAX, name)
}

// jsonView is a JSON text that must be there.
func jsonView(p *C.char, n C.size_t, name string) ([]byte, error) {
	text, err := bytesView(p, n, name)
	if err == nil && text == nil {
		err = fmt.Errorf("%w: %s is NULL", errArgument, name)
	}
	return text, err
}

// bytesOf is bytesView of a struct's member.
func bytesOf(s *C.dgo_string, name string) ([]byte, error) {
	return bytesView(member(&s.data, s.size), s.size, name)
}

// textOf is text of a struct's member.
func textOf(s *C.dgo_string, name string) (string, bool, error) {
	return text(member(&s.data, s.size), s.size, name)
}

// text copies a string, and tells whether there is one.
func text(p *C.char, n C.size_t, name string) (string, bool, error) {
	if p == nil && n == 0 {
		return "", false, nil
	}
	raw, err := view[byte](p, n, C.DGO_STRING_MAX, name)
	if err != nil {
		return "", false, err
	}
	if !utf8.Valid(raw) {
		return "", false, fmt.Errorf("%w: %s is not UTF-8: %.64q", errArgument, name, raw)
	}
	return string(raw), true, nil
}

// requestID copies an id that must be there.
func requestID(p *C.char, n C.size_t) (string, error) {
	id, ok, err := text(p, n, "request_id")
	if err == nil && !ok {
		err = fmt.Errorf("%w: request_id is NULL", errArgument)
	}
	return id, err
}

// give copies a result into the caller's buffer, with a NUL behind it.
func give(b *C.dgo_buffer, data []byte) error {
	p := (*byte)(C.dgo_allocate(C.size_t(len(data)) + 1))
	if p == nil {
		return fmt.Errorf("%w: %d bytes", errNoMemory, len(data))
	}
	room := unsafe.Slice(p, len(data)+1)
	room[copy(room, data)] = 0
	b.data, b.size = (*C.char)(unsafe.Pointer(p)), C.size_t(len(data))
	return nil
}

func checkBuffer(b *C.dgo_buffer, name string) error {
	if b == nil {
		return out(b, name)
	}
	return sized(b, &b.struct_size, name)
}
