package mocker

import "github.com/dynamo-go/dynamo-go/core/block"

// noPage ends the linked lists of pages.
const noPage = int32(-1)

// page is one block of KV memory.
type page struct {
	hash   block.EngineHash // names the content while hashed
	hashed bool             // the page is full, computed, and can be found by its hash
	refs   int32            // running requests that use it
	prev   int32            // idle list, while refs == 0
	next   int32
	copy   int32 // the page with the same hash that filled next, while hashed
}

// A pool is the paged KV memory of an engine, with prefix caching: a page nobody uses keeps its content, and can be
// found by its hash, until it is needed for something else.
//
// Two requests that compute the same block at the same time leave two pages with one hash, as in vLLM; each is
// reported stored when it fills and removed when it is reused.
//
// Invariants (checkPool in the tests verifies them):
//   - a page is on the idle list iff refs == 0; idle counts them;
//   - the idle list is in the order of reuse: pages without content, then cached ones, least recently released first,
//     and of one request's pages the deepest first (a prefix outlives what follows it);
//   - heads and the copy links list exactly the hashed pages.
type pool struct {
	pages []page
	heads map[block.EngineHash]int32 // of the pages with a hash, the first that filled: the one that is found
	first int32                      // the idle page to be reused next
	last  int32
	idle  int
}

func newPool(pages int) *pool {
	p := &pool{
		pages: make([]page, pages),
		heads: make(map[block.EngineHash]int32),
		first: noPage,
		last:  noPage,
	}
	for i := range p.pages {
		p.pages[i].copy = noPage
		p.pushLast(int32(i))
	}
	return p
}

// match tells how many leading hashes are cached, and how many of their pages are idle.
func (p *pool) match(hashes []block.EngineHash) (n, idle int) {
	for _, h := range hashes {
		i, ok := p.heads[h]
		if !ok {
			break
		}
		if p.pages[i].refs == 0 {
			idle++
		}
		n++
	}
	return n, idle
}

// use takes a reference on the page of each hash, all of which are cached, and appends the pages to dst.
func (p *pool) use(dst []int32, hashes []block.EngineHash) []int32 {
	for _, h := range hashes {
		i := p.heads[h]
		if p.pages[i].refs == 0 {
			p.unlink(i)
		}
		p.pages[i].refs++
		dst = append(dst, i)
	}
	return dst
}

// take appends n idle pages to dst, one reference on each, and the hashes of what they held to removed. The caller has
// checked that there are n.
func (p *pool) take(dst []int32, removed []block.EngineHash, n int) ([]int32, []block.EngineHash) {
	for range n {
		i := p.first
		p.unlink(i)
		if p.pages[i].hashed {
			removed = append(removed, p.pages[i].hash)
			p.forget(i)
		}
		p.pages[i].refs = 1
		dst = append(dst, i)
	}
	return dst, removed
}

// fill names the content of a page in use: from now on it can be found.
func (p *pool) fill(i int32, h block.EngineHash) {
	pg := &p.pages[i]
	pg.hash, pg.hashed, pg.copy = h, true, noPage
	last, ok := p.heads[h]
	if !ok {
		p.heads[h] = i
		return
	}
	for p.pages[last].copy != noPage {
		last = p.pages[last].copy
	}
	p.pages[last].copy = i
}

// release gives back one reference on each page; pages are given in the order of the request.
func (p *pool) release(pages []int32) {
	for k := len(pages) - 1; k >= 0; k-- {
		i := pages[k]
		pg := &p.pages[i]
		pg.refs--
		switch {
		case pg.refs > 0:
		case pg.hashed:
			p.pushLast(i)
		default:
			p.pushFirst(i)
		}
	}
}

// clear forgets the content of every page. It refuses while a page is in use.
func (p *pool) clear() bool {
	if p.idle != len(p.pages) {
		return false
	}
	for i := range p.pages {
		p.pages[i].hashed, p.pages[i].copy = false, noPage
	}
	clear(p.heads)
	return true
}

// forget takes a page out of the pages with its hash.
func (p *pool) forget(i int32) {
	pg := &p.pages[i]
	pg.hashed = false
	head := p.heads[pg.hash]
	if head == i {
		if pg.copy == noPage {
			delete(p.heads, pg.hash)
		} else {
			p.heads[pg.hash] = pg.copy
		}
		pg.copy = noPage
		return
	}
	for p.pages[head].copy != i {
		head = p.pages[head].copy
	}
	p.pages[head].copy, pg.copy = pg.copy, noPage
}

func (p *pool) pushLast(i int32) {
	p.pages[i].prev, p.pages[i].next = p.last, noPage
	if p.last == noPage {
		p.first = i
	} else {
		p.pages[p.last].next = i
	}
	p.last = i
	p.idle++
}

func (p *pool) pushFirst(i int32) {
	p.pages[i].prev, p.pages[i].next = noPage, p.first
	if p.first == noPage {
		p.last = i
	} else {
		p.pages[p.first].prev = i
	}
	p.first = i
	p.idle++
}

func (p *pool) unlink(i int32) {
	pg := &p.pages[i]
	if pg.prev == noPage {
		p.first = pg.next
	} else {
		p.pages[pg.prev].next = pg.next
	}
	if pg.next == noPage {
		p.last = pg.prev
	} else {
		p.pages[pg.next].prev = pg.prev
	}
	p.idle--
}
