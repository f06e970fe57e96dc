//go:build linux && !race

package offheap

import "syscall"

func mmap(bytes int) []byte {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	if bytes >= HugePage {
		_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // a kernel without them has small ones
	}
	return b
}

// munmap does nothing to memory that mmap did not give.
func munmap(b []byte) { _ = syscall.Munmap(b) }

func release(b []byte) bool { return syscall.Madvise(b, syscall.MADV_DONTNEED) == nil }

func populate(b []byte) {
	const populateWrite = 23 // since Linux 5.14
	_ = syscall.Madvise(b, populateWrite)
}
