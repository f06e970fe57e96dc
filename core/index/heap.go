package index

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/internal/offheap"
)

const (
	pageBytes = 4096
	minRegion = 16      // pages
	maxRegion = 512     // pages: 2 MiB, a huge page
	hugeFrom  = 8 << 20 // bytes, from which regions are huge: small ones cost a miss of the address cache at each look
)

// A heap is all memory of an index outside the Go heap: regions, mapped one by one, which the other structures take pages of.
// Regions are given back when all of their pages are. Under a bound, pages are refused rather than mapped beyond it.
//
// Guard: mu, the innermost lock but for nothing.
type heap struct {
	mu      sync.Mutex
	pages   space
	regions int          // pages of all regions
	limit   int64        // bytes up to which pages are given to who asks politely; 0: no bound
	hard    int64        // the bound
	mapped  atomic.Int64 // bytes of regions, without what the system took back of them
	noted   atomic.Int64 // what the other structures keep on the Go heap
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
		n := max(uint32(h.mapped.Load()/pageBytes/16), minRegion)
		if h.mapped.Load() >= hugeFrom {
			n = maxRegion
		}
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
	h.account()
	return r, h.pages.at(r), true
}

// account brings mapped up to date.
func (h *heap) account() {
	h.mapped.Store(int64(h.regions-h.pages.gone) * pageBytes)
}

// scavenge gives free memory within regions back to the system, when there is much of it: all but the first and the last
// page of each free run, which it is kept by.
func (h *heap) scavenge() {
	const much = 128 // pages
	if free := h.regions - h.pages.gone - h.pages.live; h.limit > 0 || free < max(much, h.pages.live/4) {
		return
	}
	for _, r := range h.pages.bins {
		for ; r != noRun; r = h.pages.note(r.chunk(), r.unit()).next {
			n := h.pages.note(r.chunk(), r.unit())
			if n.units < 4 || n.gone > 0 {
				continue
			}
			inner := unsafe.Slice((*byte)(unsafe.Add(h.pages.at(r), pageBytes)), int(n.units-2)*pageBytes)
			if offheap.Release(inner) {
				n.gone = n.units - 2
				h.pages.gone += int(n.gone)
			}
		}
	}
}

func (h *heap) grow(pages uint32) {
	before := h.pages.own()
	b := offheap.Map(int(pages) * pageBytes)
	h.pages.add(unsafe.Pointer(unsafe.SliceData(b)), pages, noRun)
	h.regions += int(pages)
	h.account()
	h.note(h.pages.own() - before)
}

func (h *heap) put(r run, pages uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.account()
	h.pages.put(r, pages)
	before := h.pages.own()
	for c, ok := h.pages.surplus(); ok; c, ok = h.pages.surplus() {
		h.unmap(c)
	}
	h.note(h.pages.own() - before)
	h.scavenge()
}

func (h *heap) unmap(c chunk) {
	h.regions -= int(c.units)
	offheap.Unmap(unsafe.Slice((*byte)(c.base), int(c.units)*pageBytes))
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
	h.pages, h.regions = newSpace(pageBytes), 0
	h.account()
	h.noted.Store(0)
}
