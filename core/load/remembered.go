package load

// maxRemembered bounds the ids of abandoned requests; beyond it the oldest is forgotten early. 65,536 ids of a normal
// length are a few MiB, and more than one router's requests of an expiry period on a worker that dies.
const maxRemembered = 1 << 16

// maxRememberedBytes bounds their lengths together, for ids that are not of a normal length: of a router whose callers name requests as their clients say.
const maxRememberedBytes = 16 << 20

// remembered keeps the ids of requests that expired or lost their worker, so that one late call for each succeeds.
//
// Invariants: the queue has at most maxRemembered items, whose ids have bytes, at most maxRememberedBytes; an id in live has exactly one item in queue with its number; items whose
// number is not in live are settled, and leave when they come to the front.
type remembered struct {
	live  map[string]uint64 // id -> number of its item
	queue []abandoned       // oldest first, from head
	head  int
	next  uint64
	bytes int
}

type abandoned struct {
	id     string
	number uint64
	until  int64 // the last moment it is remembered
}

func newRemembered() remembered { return remembered{live: map[string]uint64{}} }

func (m *remembered) remember(id string, until int64) {
	for m.head < len(m.queue) && (len(m.queue)-m.head >= maxRemembered || m.bytes+len(id) > maxRememberedBytes) {
		m.pop()
	}
	if len(id) > maxRememberedBytes {
		return
	}
	m.bytes += len(id)
	m.next++
	m.live[id] = m.next
	m.queue = append(m.queue, abandoned{id, m.next, until})
}

// settle tells whether id is remembered at now, and forgets it.
func (m *remembered) settle(id string, now int64) bool {
	number, ok := m.live[id]
	if !ok {
		return false
	}
	delete(m.live, id)
	// Numbers are consecutive in the queue, so the item is found by position.
	first := m.queue[m.head].number
	return m.queue[m.head+int(number-first)].until >= now
}

func (m *remembered) forget(id string) { delete(m.live, id) }

// expire forgets what is too old, at most so many: settle looks at the time itself.
func (m *remembered) expire(now int64, most int) {
	for ; m.head < len(m.queue) && m.queue[m.head].until < now && most > 0; most-- {
		m.pop()
	}
}

func (m *remembered) pop() {
	item := &m.queue[m.head]
	if m.live[item.id] == item.number {
		delete(m.live, item.id)
	}
	m.bytes -= len(item.id)
	*item = abandoned{}
	m.head++
	if m.head*2 >= len(m.queue) {
		n := copy(m.queue, m.queue[m.head:])
		clear(m.queue[n:])
		m.queue, m.head = m.queue[:n], 0
	}
}
