package mocker

import (
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// modelPage is a page of the literal pool: victims and hits are found by looking at all of them.
type modelPage struct {
	hash     block.EngineHash
	hashed   bool
	filled   int // when it was filled, counting fills
	refs     int
	released int // when its last user let go, counting releases
	depth    int // its place in that user's sequence
}

// modelRequest is a request of the literal engine.
type modelRequest struct {
	*sequence // only what newSequence sets is read
	id        int
	state     state
	pages     []*modelPage
	tokens    []block.Token // computed ones
	cached    int
	arrived   int
	admitted  int
	out       int
	first     int
	wake      int
	order     int
}

// model is the engine, literally: time goes by in single nanoseconds, and at each of them everything is looked at.
type model struct {
	rates
	now      int
	pages    []*modelPage
	requests []*modelRequest // by arrival
	share    map[*modelRequest]int
	stepEnd  int
	counter  int
	log      *recorder
}

func newModel(r rates, log *recorder) *model {
	m := &model{rates: r, log: log, share: map[*modelRequest]int{}}
	for range r.pages {
		m.pages = append(m.pages, &modelPage{})
	}
	return m
}

func (m *model) tick() int { m.counter++; return m.counter }

func (m *model) find(h block.EngineHash) *modelPage {
	var found *modelPage
	for _, p := range m.pages {
		if p.hashed && p.hash == h && (found == nil || p.filled < found.filled) {
			found = p
		}
	}
	return found
}

func (m *model) take(r *modelRequest) *modelPage {
	var victim *modelPage
	for _, p := range m.pages {
		switch {
		case p.refs > 0:
		case victim == nil,
			victim.hashed && !p.hashed,
			victim.hashed == p.hashed && p.released < victim.released,
			victim.hashed == p.hashed && p.released == victim.released && p.depth > victim.depth:
			victim = p
		}
	}
	if victim.hashed {
		m.log.removed(victim.hash)
	}
	*victim = modelPage{refs: 1}
	r.pages = append(r.pages, victim)
	return victim
}

// compute puts tokens into pages and reports each block that fills, as one event per call.
func (m *model) compute(r *modelRequest, tokens ...block.Token) {
	from := len(r.tokens) / m.blockSize
	for _, t := range tokens {
		if len(r.tokens) == len(r.pages)*m.blockSize {
			m.take(r)
		}
		r.tokens = append(r.tokens, t)
	}
	to := len(r.tokens) / m.blockSize
	if to == from {
		return
	}
	names := newChain("")
	var all []block.EngineHash
	for i := range to {
		all = append(all, names.next(r.tokens[i*m.blockSize:(i+1)*m.blockSize]))
	}
	for i := from; i < to; i++ {
		p := r.pages[i]
		p.hash, p.hashed, p.filled = all[i], true, m.tick()
	}
	m.log.stored(all[:from], all[from:], r.tokens[from*m.blockSize:to*m.blockSize])
}

func (m *model) end(r *modelRequest) {
	at := m.tick()
	for i, p := range r.pages {
		p.refs--
		p.released, p.depth = at, i
	}
	r.pages, r.state = nil, over
}

func (m *model) in(s ...state) []*modelRequest {
	var out []*modelRequest
	for _, r := range m.requests {
		if slices.Contains(s, r.state) {
			out = append(out, r)
		}
	}
	return out
}

// room tells whether the pool could serve the request and everyone admitted to their very ends.
func (m *model) room(r *modelRequest, hits []*modelPage) bool {
	need := m.pagesFor(r.kept()) - len(hits)
	for _, o := range m.in(prefill, decode) {
		need += m.pagesFor(o.kept()) - len(o.pages)
	}
	for _, p := range m.pages {
		if p.refs == 0 && !slices.Contains(hits, p) {
			need--
		}
	}
	return need <= 0
}

func (m *model) admit(r *modelRequest) bool {
	if len(m.in(prefill, decode)) >= m.running {
		return false
	}
	var hits []*modelPage
	for i, h := range r.keys {
		p := m.find(h)
		if p == nil || (i+1)*m.blockSize >= len(r.prompt) {
			break
		}
		hits = append(hits, p)
	}
	if !m.room(r, hits) {
		return false
	}
	for _, p := range hits {
		p.refs++
	}
	r.pages = hits
	r.cached = len(hits) * m.blockSize
	r.tokens = slices.Clone(r.prompt[:r.cached])
	for len(r.pages)*m.blockSize < len(r.prompt) {
		m.take(r)
	}
	r.state, r.order, r.admitted = prefill, m.tick(), m.now
	return true
}

func (m *model) startStep() {
	if len(m.share) > 0 {
		return
	}
	left := m.chunk
	begun := m.in(prefill)
	slices.SortFunc(begun, func(a, b *modelRequest) int { return a.order - b.order })
	for _, r := range begun {
		if n := min(left, len(r.prompt)-len(r.tokens)); n > 0 {
			m.share[r], left = n, left-n
		}
	}
	for _, r := range m.in(waiting) {
		if left == 0 || !m.admit(r) {
			break
		}
		n := min(left, len(r.prompt)-len(r.tokens))
		m.share[r], left = n, left-n
	}
	if n := m.chunk - left; n > 0 {
		m.stepEnd = m.now + max(int(float64(n)*m.perToken), int(m.interToken), 1)
	}
}

func (m *model) generate(r *modelRequest) {
	var tokens []block.Token
	for r.out < r.maxTokens && r.first+r.out*int(m.interToken) <= m.now {
		if r.out > 0 {
			m.compute(r, r.token(r.out-1))
		}
		tokens = append(tokens, r.token(r.out))
		r.out++
	}
	if r.out == r.maxTokens {
		m.end(r)
	} else {
		r.wake = min(r.first+r.out*int(m.interToken)+int(m.coalesce), r.first+(r.maxTokens-1)*int(m.interToken))
	}
	m.log.at(m.now, r.id, tokens, progress{
		cached:   r.cached,
		queue:    int64(r.admitted - r.arrived),
		ttft:     int64(r.first - r.arrived),
		finished: r.state == over,
	})
}

// run lets time pass until now.
func (m *model) run(now int) {
	for ; m.now < now; m.now++ {
		m.due()
	}
	m.due()
}

func (m *model) due() {
	if len(m.share) > 0 && m.stepEnd <= m.now {
		share := m.share
		m.share = map[*modelRequest]int{}
		admitted := m.in(prefill)
		slices.SortFunc(admitted, func(a, b *modelRequest) int { return a.order - b.order })
		for _, r := range admitted {
			if n, ok := share[r]; ok {
				m.compute(r, r.prompt[len(r.tokens):len(r.tokens)+n]...)
				if len(r.tokens) == len(r.prompt) {
					r.state, r.first = decode, m.now
					m.generate(r)
				}
			}
		}
		m.startStep()
	}
	for {
		ready := slices.DeleteFunc(m.in(decode), func(r *modelRequest) bool { return r.wake > m.now })
		if len(ready) == 0 {
			return
		}
		m.generate(slices.MinFunc(ready, func(a, b *modelRequest) int { return a.order - b.order }))
		m.startStep()
	}
}

func (m *model) submit(r *modelRequest) {
	r.arrived = m.now
	m.requests = append(m.requests, r)
	m.startStep()
}

func (m *model) cancel(r *modelRequest) {
	if r.state != over {
		m.end(r)
	}
	m.startStep()
}

func (m *model) clear() {
	for _, p := range m.pages {
		if p.refs > 0 {
			return
		}
	}
	for _, p := range m.pages {
		*p = modelPage{}
	}
	m.log.lines = append(m.log.lines, "cleared")
}
