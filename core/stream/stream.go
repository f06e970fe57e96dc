// Package stream carries items from producers, who must not run ahead, to a consumer, who may have an event loop and must not
// wait.
//
// A producer Sends and is held back while more than `size` items wait. A consumer takes all that wait at once; a descriptor is
// readable while there is something to take, and costs one write for each time the stream was found empty, however many items
// come. The last thing a stream gives is how it ended, again and again.
package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// What a consumer is told instead of items, besides how a producer says that the stream failed.
var (
	// ErrEmpty: nothing waits now. Ask again. The text after it, if any, is the producer's state.
	ErrEmpty = errors.New("nothing came in time")
	// ErrEnded: everything was taken, and the stream ended well.
	ErrEnded = errors.New("the stream has ended")
	// ErrCancelled: the stream was killed. It is also what producers get.
	ErrCancelled = errors.New("the stream was cancelled")
	// ErrClosed: the stream was closed.
	ErrClosed = errors.New("the stream is closed")
)

// maxBytes holds producers back like `size` does, where items are large. It is room for about a second of what one connection
// brings.
const maxBytes = 16 << 20

// keptBytes is how much room an empty stream may keep.
const keptBytes = 1 << 20

// A Batch is items that were taken: item i is Data[Ends[i-1]:Ends[i]], the first begins at 0.
type Batch struct {
	Data []byte
	Ends []int
}

// Reset empties a batch and keeps its room.
func (b *Batch) Reset() { b.Data, b.Ends = b.Data[:0], b.Ends[:0] }

// Items lists the items; they are parts of Data.
func (b *Batch) Items() [][]byte {
	items := make([][]byte, len(b.Ends))
	start := 0
	for i, end := range b.Ends {
		items[i] = b.Data[start:end:end]
		start = end
	}
	return items
}

// A Stream is a bounded queue of items. All methods are safe for concurrent use; several consumers share the items.
//
// Invariants:
//
//	S1  item i of those that wait is data[ends[head+i-1]:ends[head+i]], ends[-1] being 0; head < len(ends), or both are 0.
//	S2  bell rings iff something waits or end is set, once it is there.
//	S3  end is set once, but for a kill, which takes the items away with the ending that was to follow them.
//	S4  more and room are nil unless somebody waits for them.
type Stream struct {
	size     int
	stopping chan struct{}
	killed   chan struct{}

	mu    sync.Mutex // guards what follows
	data  []byte
	ends  []int
	head  int
	end   error // ErrEnded, or how it failed
	stop  bool
	dead  bool
	state string
	bell  *Bell         // nil until somebody asks for the descriptor
	more  chan struct{} // closed when bell would ring
	room  chan struct{} // closed when producers may go on
}

// New gives a stream in which `size` items may wait before its producers do. With 0 each item is awaited.
func New(size int) *Stream {
	return &Stream{size: size, stopping: make(chan struct{}), killed: make(chan struct{})}
}

// Send hands on a copy of an item, and returns once no more than `size` items wait, or ctx is done: then the item waits all the
// same. Errors: ErrCancelled (nobody takes anything any more), the context's.
func (s *Stream) Send(ctx context.Context, item []byte) error {
	s.mu.Lock()
	if s.dead || s.end != nil {
		s.mu.Unlock()
		return ErrCancelled
	}
	s.append(item)
	for !s.hasRoom() {
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		s.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
	}
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return ErrCancelled
	}
	return nil
}

// Offer hands on a copy of an item if fewer than `size` wait, and tells whether it did. It never waits.
func (s *Stream) Offer(item []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || s.end != nil || s.waiting() >= s.size || len(s.data)-s.begin() > maxBytes {
		return false
	}
	s.append(item)
	return true
}

func (s *Stream) append(item []byte) {
	s.data = append(s.data, item...)
	s.ends = append(s.ends, len(s.data))
	s.ring()
}

// waiting counts the items that wait.
func (s *Stream) waiting() int { return len(s.ends) - s.head }

func (s *Stream) hasRoom() bool {
	return s.dead || s.waiting() <= s.size && len(s.data)-s.begin() <= maxBytes
}

// begin is where in data the first item that waits begins.
func (s *Stream) begin() int {
	if s.head == 0 {
		return 0
	}
	return s.ends[s.head-1]
}

// End says that no item follows: the stream ended well if err is nil. Only the first end counts.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	if s.end = err; err == nil {
		s.end = ErrEnded
	}
	s.ring()
}

// SetState says what ErrEmpty is to tell: why nothing comes.
func (s *Stream) SetState(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = text
}

// Stopping is closed when the consumer wants no more than is on its way: a producer ends the stream as soon as it can.
func (s *Stream) Stopping() <-chan struct{} { return s.stopping }

// Killed is closed when nobody takes anything any more.
func (s *Stream) Killed() <-chan struct{} { return s.killed }

// ring tells whoever waits that there is something to take. The caller holds mu.
func (s *Stream) ring() {
	if s.bell != nil {
		s.bell.Ring()
	}
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
}

// Take appends up to n items to b. Errors, when there is none: ErrEmpty, ErrEnded, ErrCancelled, ErrClosed, or why the stream
// failed.
func (s *Stream) Take(b *Batch, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(b, n)
}

func (s *Stream) take(b *Batch, n int) error {
	if n = min(n, s.waiting()); n == 0 {
		return s.none()
	}
	start, base := s.begin(), len(b.Data)
	taken := s.ends[s.head : s.head+n]
	b.Data = append(b.Data, s.data[start:taken[n-1]]...)
	b.Ends = slices.Grow(b.Ends, n)
	for _, end := range taken {
		b.Ends = append(b.Ends, end-start+base)
	}
	s.drop(n)
	return nil
}

// none is what a consumer is told when no item waits.
func (s *Stream) none() error {
	switch {
	case s.end != nil:
		return s.end
	case s.state != "":
		return fmt.Errorf("%w: %s", ErrEmpty, s.state)
	}
	return ErrEmpty
}

// drop takes the first n items away. Room is made when half of the items are gone: producers then do several at a time.
func (s *Stream) drop(n int) {
	s.head += n
	switch {
	case s.waiting() == 0:
		s.data, s.ends, s.head = s.data[:0], s.ends[:0], 0
		if cap(s.data) > keptBytes {
			s.data = nil
		}
		if s.bell != nil && s.end == nil {
			s.bell.Silence()
		}
	case s.head > len(s.ends)/2: // as many are moved as were taken since the last time, at most
		begin := s.begin()
		s.data = s.data[:copy(s.data, s.data[begin:])]
		for i, end := range s.ends[s.head:] {
			s.ends[i] = end - begin
		}
		s.ends, s.head = s.ends[:s.waiting()], 0
	}
	if s.room != nil && s.waiting() <= s.size/2 && s.hasRoom() {
		s.letGo()
	}
}

// letGo wakes producers. The caller holds mu.
func (s *Stream) letGo() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// Next is Take that waits for the first item until ctx is done.
func (s *Stream) Next(ctx context.Context, b *Batch, n int) error {
	for {
		s.mu.Lock()
		err := s.take(b, n)
		if !errors.Is(err, ErrEmpty) || ctx.Err() != nil {
			s.mu.Unlock()
			return err
		}
		if s.more == nil {
			s.more = make(chan struct{})
		}
		more := s.more
		s.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}

// Descriptor gives a descriptor that is readable while there is something to take, the end included. It is the stream's: it is
// closed with it. ErrNoBell: the system has none.
func (s *Stream) Descriptor() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bell == nil {
		if errors.Is(s.end, ErrClosed) {
			return -1, ErrClosed
		}
		bell, err := NewBell()
		if err != nil {
			return -1, err
		}
		s.bell = bell
		if s.waiting() > 0 || s.end != nil {
			s.bell.Ring()
		}
	}
	return s.bell.Descriptor(), nil
}

// Stop asks the producer to end the stream; what it still sends, and its end, are given as before.
func (s *Stream) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask()
}

func (s *Stream) ask() {
	if !s.stop {
		s.stop = true
		close(s.stopping)
	}
}

// Kill ends the stream now: what waits is dropped, producers are turned away. A stream of which all was taken stays as it ended.
func (s *Stream) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill(ErrCancelled)
}

func (s *Stream) kill(end error) {
	s.ask()
	if !s.dead {
		s.dead = true
		close(s.killed)
	}
	if s.end == nil || s.waiting() > 0 {
		s.end = end
	}
	s.data, s.ends, s.head = nil, nil, 0
	s.letGo()
	s.ring()
}

// Close kills the stream and closes its descriptor. It is idempotent.
func (s *Stream) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill(ErrClosed)
	s.end = ErrClosed
	if s.bell != nil {
		s.bell.Close()
		s.bell = nil
	}
}
