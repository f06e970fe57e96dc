package index

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/internal/offheap"
)

const (
	pageBytes = 4096
	minRegion = 16       // pages
	maxRegion = 512      // pages: 2 MiB, a huge page
	hugeFrom  = 32 << 20 // bytes, from which regions are huge
)

// A heap is all memory of an index outside the Go heap: regions, mapped one by one, which the other structures take pages of.
// Regions are given back when all of their pages are. Under a bound, pages are refused rather than mapped beyond it.
//
// Memory in small pages costs a miss of the address cache at each look. So small regions are cut from reservations, each of the addresses of
// a huge page, and become one when all of it is in use.
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

	reserved []reservation
}

// A reservation is cut from its beginning; what comes back is left as it is, without memory, until all does.
type reservation struct {
	whole, huge []byte
	used        int // bytes cut off
	live        int // bytes of regions
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
		n := max(uint32(h.mapped.Load()/pageBytes/32), minRegion)
		if h.mapped.Load() >= hugeFrom {
			n = maxRegion
		}
		n = h.room(n, sure(pages))
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

// room gives how many pages of n, but at least so many, are best cut from the reservation, so that nothing of it remains.
func (h *heap) room(n, least uint32) uint32 {
	if k := len(h.reserved); k > 0 && n < maxRegion {
		left := uint32(offheap.HugePage-h.reserved[k-1].used) / pageBytes
		if left >= least && left < n+minRegion {
			return left
		}
	}
	return n
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
	before := h.own()
	b := h.cut(int(pages) * pageBytes)
	if b == nil {
		b = offheap.Map(int(pages) * pageBytes)
	}
	h.pages.add(unsafe.Pointer(unsafe.SliceData(b)), pages, noRun)
	h.regions += int(pages)
	h.account()
	h.note(h.own() - before)
}

// cut gives a small region of a reservation, nil if it cannot.
func (h *heap) cut(bytes int) []byte {
	if bytes >= offheap.HugePage {
		return nil
	}
	n := len(h.reserved)
	if n == 0 || h.reserved[n-1].used+bytes > offheap.HugePage {
		whole, huge := offheap.Reserve()
		if huge == nil {
			return nil
		}
		h.reserved = append(h.reserved, reservation{whole: whole, huge: huge})
		n++
	}
	r := &h.reserved[n-1]
	b := r.huge[r.used:][:bytes]
	r.used += bytes
	r.live += bytes
	offheap.Populate(b)
	if r.used == offheap.HugePage && r.live == r.used {
		offheap.Collapse(r.huge)
	}
	return b
}

// own counts what the heap itself keeps on the Go heap.
func (h *heap) own() int { return h.pages.own() + cap(h.reserved)*int(unsafe.Sizeof(reservation{})) }

func (h *heap) put(r run, pages uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.account()
	h.pages.put(r, pages)
	before := h.own()
	for c, ok := h.pages.surplus(); ok; c, ok = h.pages.surplus() {
		h.unmap(c)
	}
	h.note(h.own() - before)
	h.scavenge()
}

// unmap gives a region back.
func (h *heap) unmap(c chunk) {
	h.regions -= int(c.units)
	b := unsafe.Slice((*byte)(c.base), int(c.units)*pageBytes)
	i := slices.IndexFunc(h.reserved, func(r reservation) bool { return r.has(c.base) })
	if i < 0 {
		offheap.Unmap(b)
		return
	}
	r := &h.reserved[i]
	if r.live -= len(b); r.live > 0 {
		offheap.Release(b)
		return
	}
	offheap.Unmap(r.whole)
	if h.reserved = slices.Delete(h.reserved, i, i+1); len(h.reserved) == 0 {
		h.reserved = nil
	}
}

func (r *reservation) has(p unsafe.Pointer) bool {
	return uintptr(p)-uintptr(unsafe.Pointer(unsafe.SliceData(r.huge))) < offheap.HugePage
}

// release unmaps everything. Nothing may use the heap any more, unless it takes pages anew.
func (h *heap) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.pages.chunks {
		if c.base != nil {
			h.unmap(c)
		}
	}
	h.pages, h.regions = newSpace(pageBytes), 0
	h.account()
	h.noted.Store(0)
}
