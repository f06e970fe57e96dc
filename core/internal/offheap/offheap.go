// Package offheap gives memory that the garbage collector neither scans nor waits for: what is unmapped is back at once.
// Whatever is built in it must hold no pointers into the Go heap.
package offheap

import "unsafe"

// HugePage is the size from which mappings ask for large pages.
const HugePage = 2 << 20

const page = 4096

// Map gives zeroed memory, aligned to 8 bytes or better. Where the system refuses, it is ordinary Go memory.
func Map(bytes int) []byte {
	if b := mmap(bytes); b != nil {
		return b
	}
	return ordinary(bytes)
}

// Reserve gives the addresses of a large page, in whose place the system provides small ones as they are touched, zeroed; nil where it
// cannot. whole is for Unmap.
func Reserve() (whole, huge []byte) { return reserve() }

// Collapse makes a large page of small ones: of all of what Reserve gave. What is in them stays. A system that cannot does not.
func Collapse(huge []byte) { collapse(huge) }

// Release gives the memory of whole pages back to the system, but not their addresses: they are zero when next used. It tells
// whether that was possible.
func Release(b []byte) bool { return release(b) }

// Populate has the system provide the whole pages of memory that is about to be written, Go's or Map's, at once rather than one by one.
// What is in them stays. A system that cannot does not.
func Populate(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	from := (at + page - 1) &^ (page - 1)
	if to := (at + uintptr(len(b))) &^ (page - 1); to > from {
		populate(b[from-at : to-at])
	}
}

// Unmap gives memory of Map back. Nothing may refer to it any more.
func Unmap(b []byte) { munmap(b) }

// ordinary allocates words, so that the memory is aligned to them.
func ordinary(bytes int) []byte { return bytesOf(make([]uint64, (bytes+7)/8), bytes) }
