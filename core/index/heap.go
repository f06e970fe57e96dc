package index

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/internal/offheap"
)

const (
	pageBytes = 4096
	minRegion = 16  // pages
	maxRegion = 512 // pages: 2 MiB, a huge page
)

// A heap is all memory of an index outside the Go heap: regions, mapped one by one, which the other structures take pages of.
// Regions are given back when all of their pages are. Under a bound, pages are refused rather than mapped beyond it.
//
// Guard: mu, the innermost lock but for nothing.
type heap struct {
	mu     sync.Mutex
	pages  space
	spare  uint32 // 1 + the number of an empty region kept for the next request
	limit  int64  // bytes up to which pages are given to who asks politely; 0: no bound
	hard   int64  // the bound
	mapped atomic.Int64
	noted  atomic.Int64 // what the other structures keep on the Go heap
}

// note counts bytes that a structure keeps on the Go heap, or no longer.
func (h *heap) note(bytes int) {
	if bytes != 0 {
		h.noted.Add(int64(bytes))
	}
}

func (h *heap) bytes() int64 { return h.mapped.Load() + h.noted.Load() }

// full tells whether the bound leaves no room for more bytes.
func (h *heap) full(more int) bool { return h.limit > 0 && h.bytes()+int64(more) > h.limit }

// take gives pages, not zeroed. If the bound forbids to map more, it fails unless it must not.
func (h *heap) take(pages uint32, must bool) (run, unsafe.Pointer, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.pages.take(pages)
	if !ok {
		n := min(max(uint32(h.mapped.Load()/pageBytes/16), minRegion), maxRegion)
		if h.limit > 0 && h.full(int(n)*pageBytes) {
			n = 0
		}
		n = max(n, sure(pages))
		if h.full(int(n)*pageBytes) && !must {
			return noRun, nil, false
		}
		h.grow(n)
		r, _ = h.pages.take(pages)
	}
	if h.spare != 0 && h.spare-1 == r.chunk() {
		h.spare = 0
	}
	return r, h.pages.at(r), true
}

func (h *heap) grow(pages uint32) {
	before := h.pages.own()
	b := offheap.Map(int(pages) * pageBytes)
	h.pages.add(unsafe.Pointer(unsafe.SliceData(b)), pages, noRun)
	h.mapped.Add(int64(len(b)))
	h.note(h.pages.own() - before)
}

func (h *heap) put(r run, pages uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pages.put(r, pages) {
		return
	}
	if h.pages.live > 0 && h.spare == 0 {
		h.spare = r.chunk() + 1
		return
	}
	h.unmap(r.chunk())
	if h.pages.live == 0 && h.spare != 0 {
		h.unmap(h.spare - 1)
		h.spare = 0
	}
}

func (h *heap) unmap(region uint32) {
	before := h.pages.own()
	c := h.pages.drop(region)
	h.note(h.pages.own() - before)
	n := int(c.units) * pageBytes
	h.mapped.Add(-int64(n))
	offheap.Unmap(unsafe.Slice((*byte)(c.base), n))
}

// release unmaps everything. Nothing may use the heap any more, unless it takes pages anew.
func (h *heap) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.pages.chunks {
		if c := &h.pages.chunks[i]; c.base != nil {
			offheap.Unmap(unsafe.Slice((*byte)(c.base), int(c.units)*pageBytes))
		}
	}
	h.pages, h.spare = newSpace(pageBytes), 0
	h.mapped.Store(0)
	h.noted.Store(0)
}
