// Package offheap gives memory that the garbage collector neither scans nor waits for: what is unmapped is back at once.
// Whatever is built in it must hold no pointers into the Go heap.
package offheap

// HugePage is the size from which mappings ask for large pages.
const HugePage = 2 << 20

// Map gives zeroed memory, aligned to 8 bytes or better. Where the system refuses, it is ordinary Go memory.
func Map(bytes int) []byte {
	if b := mmap(bytes); b != nil {
		return b
	}
	return ordinary(bytes)
}

// Release gives the memory of whole pages back to the system, but not their addresses: they are zero when next used. It tells
// whether that was possible.
func Release(b []byte) bool { return release(b) }

// Unmap gives memory of Map back. Nothing may refer to it any more.
func Unmap(b []byte) { munmap(b) }

// ordinary allocates words, so that the memory is aligned to them.
func ordinary(bytes int) []byte { return bytesOf(make([]uint64, (bytes+7)/8), bytes) }
