package prefetch

import (
	"testing"
	"unsafe"
)

// A prefetch has no effect that a test could see, but it must end, and fault nowhere.
func TestAnyAddress(t *testing.T) {
	there := make([]uint64, 1000)
	for n := range 40 {
		addresses := []uintptr{0, 1, ^uintptr(0), 1 << 63}[:min(n, 4)]
		for i := range n {
			addresses = append(addresses, uintptr(unsafe.Pointer(&there[i*17%len(there)])))
		}
		Lines(addresses)
	}
}

func BenchmarkLines(b *testing.B) {
	there := make([]uint64, 1<<22)
	var addresses [32]uintptr
	x := uint64(1)
	for b.Loop() {
		for i := range addresses {
			x = x*6364136223846793005 + 1
			addresses[i] = uintptr(unsafe.Pointer(&there[x>>42]))
		}
		Lines(addresses[:])
	}
}

// Head asks for whole lines of what is there, and never for more.
func TestHeadOfAnything(t *testing.T) {
	defer func(was int) { head = was }(head)
	for _, head = range []int{0, 1, 16, 32} {
		for _, n := range []int{0, 1, 15, 16, 17, 100, 1000} {
			Head(make([]uint32, n))
			Head(make([]struct{}, n))
			Head(make([]byte, n)[n/2:])
		}
	}
	Head[uint64](nil)
}
