package zmq

import (
	"context"
	"time"
)

// large is the size from which a message does not share a queue with others.
const large = 64 << 10

// Offer puts v, which holds size bytes, into a buffered channel with one producer and one consumer, waiting while there
// is no room; false if ctx ended first. It bounds the bytes that wait and not only their number: a large message goes
// only into an empty channel, and nothing follows before it was taken. So at most cap(ch) * 64 KiB wait, or one message.
func Offer[T any](ctx context.Context, ch chan<- T, v T, size int) bool {
	if size > large && !drained(ctx, ch) {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case ch <- v:
	}
	return size <= large || drained(ctx, ch)
}

// drained waits until the consumer has taken everything. A channel tells nobody when that happens, so it looks: large
// messages are rare, and a millisecond more for one is less than it took to receive.
func drained[T any](ctx context.Context, ch chan<- T) bool {
	for len(ch) > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(200 * time.Microsecond):
		}
	}
	return true
}

// weigh counts the bytes of a message.
func weigh(frames [][]byte) (n int) {
	for _, f := range frames {
		n += len(f)
	}
	return n
}
