package mocker

import (
	"container/heap"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// change is what happened to the cache: blocks stored below a parent, blocks removed, or everything cleared.
type change struct {
	stored    []block.EngineHash
	hasParent bool
	parent    block.EngineHash
	tokens    []block.Token // of the stored blocks
	removed   []block.EngineHash
	cleared   bool
	adapter   string // of the stored blocks
}

// rates is the scheduler's view of the configuration, in the units it counts in.
type rates struct {
	blockSize  int
	pages      int
	perToken   float64 // ns of prefill
	interToken int64   // ns
	coalesce   int64   // ns that a due token may wait for the next ones
	chunk      int     // prompt tokens in one step
	running    int     // sequences admitted at once
}

// part is a sequence's share of the prefill step under way.
type part struct {
	seq    *sequence
	tokens int
}

// scheduler is the engine's core: it admits sequences first come first served, prefills them in chunks, and generates
// their tokens at a steady rate. It knows no clock: every method is told the time, in nanoseconds, and time never goes
// back. Whatever was due in between happens at the time it was due, however late the call, so a slow host does
// not slow the engine down.
//
// Invariants: admitted = prefilling + decoding <= running; the sum of reserved pages <= idle pages, so a
// sequence once admitted always finishes; step is empty iff no prefill step is under way.
type scheduler struct {
	rates
	pool       *pool
	now        int64
	queue      []*sequence // waiting, first come first
	prefilling []*sequence // admitted, prompt not yet computed
	decoding   byWake
	step       []part
	stepEnd    int64
	reserved   int
	orders     uint64
	changes    []change // not yet taken by the driver
	totals     totals
}

// totals only grow.
type totals struct {
	Requests     uint64 `json:"requests"`
	Finished     uint64 `json:"finished"`
	Cancelled    uint64 `json:"cancelled"`
	PromptTokens uint64 `json:"prompt_tokens"` // of admitted requests
	CachedTokens uint64 `json:"cached_tokens"`
	OutputTokens uint64 `json:"output_tokens"`
	Evicted      uint64 `json:"evicted_blocks"`
}

func newScheduler(r rates) *scheduler {
	return &scheduler{rates: r, pool: newPool(r.pages)}
}

// pagesFor is the number of pages that hold n tokens.
func (r *rates) pagesFor(n int) int { return (n + r.blockSize - 1) / r.blockSize }

// submit queues a sequence. The caller has checked that it fits the pool.
func (s *scheduler) submit(q *sequence, now int64) {
	s.advance(now)
	s.totals.Requests++
	q.arrived = s.now
	s.queue = append(s.queue, q)
	s.startStep()
}

// cancel ends a sequence wherever it is and frees its pages. One that is over stays as it is.
func (s *scheduler) cancel(q *sequence, now int64) {
	s.advance(now)
	switch q.state {
	case over:
		return
	case waiting:
		s.queue = slices.DeleteFunc(s.queue, func(o *sequence) bool { return o == q })
	case prefill:
		s.prefilling = slices.DeleteFunc(s.prefilling, func(o *sequence) bool { return o == q })
	case decode:
		heap.Remove(&s.decoding, q.heap)
	}
	s.totals.Cancelled++
	s.end(q)
	s.startStep()
}

// clear empties the cache, unless a request is using it.
func (s *scheduler) clear(now int64) bool {
	s.advance(now)
	if !s.pool.clear() {
		return false
	}
	s.changes = append(s.changes, change{cleared: true})
	return true
}

// next tells when something is due.
func (s *scheduler) next() (int64, bool) {
	switch {
	case len(s.step) > 0 && (len(s.decoding) == 0 || s.stepEnd <= s.decoding[0].wake):
		return s.stepEnd, true
	case len(s.decoding) > 0:
		return s.decoding[0].wake, true
	}
	return 0, false
}

// advance lets everything happen that is due by now.
func (s *scheduler) advance(now int64) {
	for {
		t, ok := s.next()
		if !ok || t > now {
			break
		}
		s.now = t
		if len(s.step) > 0 && s.stepEnd == t {
			s.endStep()
		} else {
			s.generate(s.decoding[0])
		}
		s.startStep()
	}
	s.now = max(s.now, now)
}

// startStep begins a prefill step, if none is under way and there are prompts to compute: those already begun first,
// then waiting ones, until the chunk is full. A prompt meets the cache here, as late as possible.
func (s *scheduler) startStep() {
	if len(s.step) > 0 {
		return
	}
	budget, total := s.chunk, 0
	add := func(q *sequence) {
		n := min(budget, len(q.prompt)-q.computed)
		s.step = append(s.step, part{q, n})
		budget, total = budget-n, total+n
	}
	for _, q := range s.prefilling {
		if budget == 0 {
			break
		}
		add(q)
	}
	for budget > 0 && len(s.queue) > 0 && s.admit(s.queue[0]) {
		add(s.queue[0])
		s.queue = slices.Delete(s.queue, 0, 1)
	}
	if total > 0 {
		// A step is a pass over the weights: however few its tokens, it takes as long as generating one.
		s.stepEnd = s.now + max(int64(float64(total)*s.perToken), s.interToken, 1)
	}
}

// admit gives a sequence its prompt's pages and a place among the running, if there is room for all it may need.
func (s *scheduler) admit(q *sequence) bool {
	if len(s.prefilling)+len(s.decoding) >= s.running {
		return false
	}
	// One token is always computed: the model needs it to say what comes next.
	hits, idle := s.pool.match(q.keys[:min(len(q.keys), (len(q.prompt)-1)/s.blockSize)])
	now := s.pagesFor(len(q.prompt)) - hits
	later := s.pagesFor(q.kept()) - hits - now
	if now+later > s.pool.idle-idle-s.reserved {
		return false
	}
	q.pages = s.pool.use(make([]int32, 0, hits+now+later), q.keys[:hits])
	s.grow(q, now)
	q.reserved = later
	s.reserved += later
	q.cached = hits * s.blockSize
	q.computed = q.cached
	q.state, q.admitted = prefill, s.now
	q.order = s.orders
	s.orders++
	s.prefilling = append(s.prefilling, q)
	s.totals.PromptTokens += uint64(len(q.prompt))
	s.totals.CachedTokens += uint64(q.cached)
	return true
}

// grow gives a sequence n more pages and reports what they held before.
func (s *scheduler) grow(q *sequence, n int) {
	if n == 0 {
		return
	}
	var removed []block.EngineHash
	q.pages, removed = s.pool.take(q.pages, nil, n)
	if len(removed) > 0 {
		s.totals.Evicted += uint64(len(removed))
		s.changes = append(s.changes, change{removed: removed})
	}
}

// endStep credits the step under way to its sequences. Those whose prompt is computed generate their first token.
func (s *scheduler) endStep() {
	parts := s.step
	s.step = s.step[:0:0]
	for _, p := range parts {
		q := p.seq
		if q.state != prefill { // cancelled meanwhile
			continue
		}
		from := q.computed / s.blockSize
		q.computed += p.tokens
		to := q.computed / s.blockSize
		s.store(q, q.keys[from:to], q.prompt[from*s.blockSize:to*s.blockSize], from)
		if q.computed < len(q.prompt) {
			continue
		}
		s.prefilling = slices.DeleteFunc(s.prefilling, func(o *sequence) bool { return o == q })
		q.state, q.first, q.wake = decode, s.now, s.now
		q.tail = append(q.tail, q.prompt[to*s.blockSize:]...)
		heap.Push(&s.decoding, q)
		s.generate(q)
	}
}

// store names the pages of the sequence from the from-th and reports them.
func (s *scheduler) store(q *sequence, hashes []block.EngineHash, tokens []block.Token, from int) {
	if len(hashes) == 0 {
		return
	}
	for i, h := range hashes {
		s.pool.fill(q.pages[from+i], h)
	}
	c := change{stored: hashes, tokens: tokens, adapter: q.adapter}
	if from > 0 {
		c.hasParent, c.parent = true, s.pool.pages[q.pages[from-1]].hash
	}
	s.changes = append(s.changes, c)
}

// generate delivers the tokens of a decoding sequence that are due, and sets when to look again.
func (s *scheduler) generate(q *sequence) {
	due := q.maxTokens
	if s.interToken > 0 {
		due = int(min(int64(due), (s.now-q.first)/s.interToken+1))
	}
	tokens := make([]block.Token, 0, due-q.out)
	for ; q.out < due; q.out++ {
		if q.out > 0 {
			s.keep(q, q.token(q.out-1))
		}
		tokens = append(tokens, q.token(q.out))
	}
	s.totals.OutputTokens += uint64(len(tokens))
	finished := q.out == q.maxTokens
	if finished {
		heap.Remove(&s.decoding, q.heap)
		s.totals.Finished++
		s.end(q)
	} else {
		last := q.first + int64(q.maxTokens-1)*s.interToken
		q.wake = min(last, q.first+int64(q.out)*s.interToken+s.coalesce)
		heap.Fix(&s.decoding, q.heap)
	}
	q.sink.generated(tokens, progress{q.cached, q.admitted - q.arrived, q.first - q.arrived, finished})
}

// keep puts a generated token into the pages of the sequence.
func (s *scheduler) keep(q *sequence, t block.Token) {
	if q.computed%s.blockSize == 0 {
		s.grow(q, 1)
		q.reserved--
		s.reserved--
	}
	q.computed++
	q.tail = append(q.tail, t)
	if len(q.tail) == s.blockSize {
		from := q.computed/s.blockSize - 1
		s.store(q, []block.EngineHash{q.chain.next(q.tail)}, slices.Clone(q.tail), from)
		q.tail = q.tail[:0]
	}
}

// end gives back whatever a sequence holds.
func (s *scheduler) end(q *sequence) {
	s.pool.release(q.pages)
	s.reserved -= q.reserved
	q.pages, q.reserved, q.state = nil, 0, over
}

// takeChanges hands the changes since the last call to the caller.
func (s *scheduler) takeChanges() []change {
	c := s.changes
	s.changes = nil
	return c
}

// byWake is a heap of decoding sequences, the next to wake first.
type byWake []*sequence

func (h byWake) Len() int { return len(h) }
func (h byWake) Less(i, j int) bool {
	if h[i].wake != h[j].wake {
		return h[i].wake < h[j].wake
	}
	return h[i].order < h[j].order
}
func (h byWake) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}
func (h *byWake) Push(x any) {
	q := x.(*sequence)
	q.heap = len(*h)
	*h = append(*h, q)
}
func (h *byWake) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	q.heap = -1
	return q
}
