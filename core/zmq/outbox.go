package zmq

import "sync"

// outbox is the bounded queue of messages for one subscriber. put never waits: what does not fit is refused, so the
// newest message is the one that is lost. take hands over everything at once; what it handed over no longer counts.
type outbox struct {
	maxCount, maxBytes int

	mu     sync.Mutex // guards the rest
	filled sync.Cond
	queue  [][][]byte
	bytes  int
	closed bool
}

func newOutbox(maxCount, maxBytes int) *outbox {
	b := &outbox{maxCount: maxCount, maxBytes: maxBytes}
	b.filled.L = &b.mu
	return b
}

// put queues a message of size bytes. A message alone in the queue is taken whatever its size.
func (b *outbox) put(frames [][]byte, size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.queue) >= b.maxCount || len(b.queue) > 0 && b.bytes+size > b.maxBytes {
		return false
	}
	b.queue = append(b.queue, frames)
	b.bytes += size
	if len(b.queue) == 1 {
		b.filled.Signal()
	}
	return true
}

// take waits for messages and exchanges the queue for spare, an empty slice; ok is false once the box is closed.
func (b *outbox) take(spare [][][]byte) (queue [][][]byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.queue) == 0 && !b.closed {
		b.filled.Wait()
	}
	queue, b.queue, b.bytes = b.queue, spare[:0], 0
	return queue, !b.closed
}

func (b *outbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.filled.Broadcast()
}
