//go:build linux && !race

package offheap

import (
	"syscall"
	"unsafe"
)

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

func reserve() (whole, huge []byte) {
	b, err := syscall.Mmap(-1, 0, 2*HugePage, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	huge = b[-at%HugePage:][:HugePage]
	_ = syscall.Madvise(huge, syscall.MADV_NOHUGEPAGE) // where the system gives them to everyone, one byte would take all of it
	return b, huge
}

func collapse(b []byte) {
	const now = 25 // MADV_COLLAPSE, since Linux 6.1
	if syscall.Madvise(b, syscall.MADV_HUGEPAGE) == nil {
		_ = syscall.Madvise(b, now)
	}
}

// munmap does nothing to memory that mmap did not give.
func munmap(b []byte) { _ = syscall.Munmap(b) }

func release(b []byte) bool { return syscall.Madvise(b, syscall.MADV_DONTNEED) == nil }

func populate(b []byte) {
	const populateWrite = 23 // since Linux 5.14
	_ = syscall.Madvise(b, populateWrite)
}
