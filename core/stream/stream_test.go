package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// over is a context that is done: with it Send never waits.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// soon bounds a test that hangs.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func readable(t *testing.T, fd int) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	require.NoError(t, err)
	return n == 1
}

var errFault = errors.New("the engine is gone")

// literal is what a stream is: a list of items and how it ends.
type literal struct {
	size  int
	items []string
	end   error
	dead  bool
}

func (m *literal) send(item string) error {
	if m.dead || m.end != nil {
		return ErrCancelled
	}
	m.items = append(m.items, item)
	bytes := 0
	for _, i := range m.items {
		bytes += len(i)
	}
	if len(m.items) > m.size || bytes > maxBytes {
		return context.Canceled // that of `over`
	}
	return nil
}

func (m *literal) offer(item string) bool {
	if m.dead || m.end != nil || len(m.items) >= m.size {
		return false
	}
	m.items = append(m.items, item)
	return true
}

func (m *literal) take(n int) ([]string, error) {
	n = min(n, len(m.items))
	taken := m.items[:n:n]
	m.items = m.items[n:]
	switch {
	case n > 0:
		return taken, nil
	case m.end != nil:
		return nil, m.end
	}
	return nil, ErrEmpty
}

func (m *literal) finish(err error) {
	if m.end == nil {
		m.end = err
	}
}

func (m *literal) kill() {
	m.dead = true
	if m.end == nil || len(m.items) > 0 {
		m.end, m.items = ErrCancelled, nil
	}
}

func FuzzStreamAgainstList(f *testing.F) {
	f.Add([]byte{3, 10, 30, 30, 10, 90, 40, 200, 90, 90, 240, 90})
	f.Add([]byte{0, 30, 250, 90, 30, 90, 254, 90, 10, 90})
	f.Add([]byte{1, 220, 10, 30, 30, 81, 82, 10, 83, 241, 10, 99, 99})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 {
			return
		}
		size := int(ops[0] % 5)
		s, m := New(size), &literal{size: size}
		defer s.Close()
		fd := -1
		var b Batch
		for i, op := range ops[1:] {
			switch {
			case op < 20:
				item := fmt.Sprintf("%0*d", op%8, i)
				require.Equal(t, m.offer(item), s.Offer([]byte(item)))
			case op < 80:
				item := fmt.Sprintf("%0*d", op%8, i)
				require.Equal(t, m.send(item), s.Send(over, []byte(item)))
			case op < 200:
				b.Reset()
				want, wantErr := m.take(int(op-80)%7 + 1)
				require.Equal(t, wantErr, s.Take(&b, int(op-80)%7+1))
				var got []string
				for _, item := range b.Items() {
					got = append(got, string(item))
				}
				require.Equal(t, want, got)
			case op < 230 && fd < 0:
				var err error
				fd, err = s.Descriptor()
				require.NoError(t, err)
			case op >= 252:
				m.kill()
				s.Kill()
			case op >= 240:
				end := []error{ErrEnded, errFault}[op%2]
				m.finish(end)
				if end == ErrEnded {
					end = nil
				}
				s.End(end)
			}
			if fd >= 0 {
				require.Equal(t, len(m.items) > 0 || m.end != nil, readable(t, fd), "op %d", i)
			}
		}
	})
}

func TestAProducerWaitsWhileMoreThanSizeItemsWait(t *testing.T) {
	for _, size := range []int{0, 1, 4} {
		s := New(size)
		for range size {
			require.NoError(t, s.Send(soon(t), []byte("x")))
		}
		sent := make(chan error, 1)
		go func() { sent <- s.Send(context.Background(), []byte("last")) }()
		var b Batch
		require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.room != nil }, time.Minute, time.Millisecond)
		require.Empty(t, sent)
		for {
			if err := s.Take(&b, 1); errors.Is(err, ErrEmpty) {
				break
			}
		}
		require.NoError(t, <-sent)
		require.Equal(t, "last", string(b.Items()[size]))
		s.Close()
	}
}

func TestAProducerThatWaitsIsLetGo(t *testing.T) {
	for name, let := range map[string]func(*Stream){"kill": (*Stream).Kill, "close": (*Stream).Close} {
		t.Run(name, func(t *testing.T) {
			s := New(0)
			sent := make(chan error)
			go func() { sent <- s.Send(context.Background(), nil) }()
			require.NoError(t, s.waitFull(soon(t)))
			let(s)
			require.ErrorIs(t, <-sent, ErrCancelled)
			<-s.Killed()
			<-s.Stopping()
			require.ErrorIs(t, s.Send(soon(t), nil), ErrCancelled)
			s.Close()
			require.ErrorIs(t, s.Take(new(Batch), 1), ErrClosed)
			_, err := s.Descriptor()
			require.ErrorIs(t, err, ErrClosed)
		})
	}
	s := New(0)
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan error)
	go func() { sent <- s.Send(ctx, nil) }()
	require.NoError(t, s.waitFull(soon(t)))
	cancel()
	require.ErrorIs(t, <-sent, context.Canceled)
	s.Close()
}

// waitFull waits until a producer waits.
func (s *Stream) waitFull(ctx context.Context) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		full := s.room != nil
		s.mu.Unlock()
		if full {
			return nil
		}
		runtime.Gosched()
	}
	return ctx.Err()
}

func TestLargeItemsHoldProducersBack(t *testing.T) {
	s := New(1000)
	defer s.Close()
	item := make([]byte, maxBytes/4)
	for range 4 {
		require.NoError(t, s.Send(over, item))
	}
	require.ErrorIs(t, s.Send(over, []byte("x")), context.Canceled)
	var b Batch
	require.NoError(t, s.Take(&b, 5))
	require.Len(t, b.Ends, 5)
	require.NoError(t, s.Send(over, item))
	require.NoError(t, s.Take(&b, 9))
	require.LessOrEqual(t, cap(s.data), keptBytes, "an empty stream keeps little")
}

func TestAStopIsARequest(t *testing.T) {
	s := New(10)
	defer s.Close()
	s.Stop()
	s.Stop()
	<-s.Stopping()
	require.NoError(t, s.Send(soon(t), []byte("on its way")))
	s.End(nil)
	var b Batch
	require.NoError(t, s.Next(soon(t), &b, 5))
	require.ErrorIs(t, s.Next(soon(t), &b, 5), ErrEnded)
	s.Kill()
	require.ErrorIs(t, s.Take(&b, 5), ErrEnded, "it had ended before")
}

func TestSilenceTellsTheProducersState(t *testing.T) {
	s := New(1)
	defer s.Close()
	s.SetState("connecting")
	require.EqualError(t, s.Next(over, new(Batch), 1), ErrEmpty.Error()+": connecting")
	s.SetState("")
	require.Equal(t, ErrEmpty, s.Take(new(Batch), 1))
}

// TestOneWriteADrain: the descriptor's counter counts the writes since it was read last.
func TestOneWriteADrain(t *testing.T) {
	s := New(1 << 20)
	defer s.Close()
	fd, err := s.Descriptor()
	require.NoError(t, err)
	var b Batch
	for range 3 {
		for range 1000 {
			require.NoError(t, s.Send(over, []byte("item")))
		}
		require.NoError(t, s.Take(&b, 10))
		var count [8]byte
		_, err := unix.Read(fd, count[:])
		require.NoError(t, err)
		require.EqualValues(t, 1, binary.NativeEndian.Uint64(count[:]))
		_, err = unix.Write(fd, count[:])
		require.NoError(t, err)
		require.NoError(t, s.Take(&b, 1<<20))
		require.False(t, readable(t, fd))
	}
}

// TestEveryItemComesOnceInOrder: producers of numbered items, consumers that poll, wait or look, through small and large buffers.
func TestEveryItemComesOnceInOrder(t *testing.T) {
	const producers, items = 3, 1000
	for _, size := range []int{0, 1, 7, 500} {
		for _, consumers := range []int{1, 3} {
			s := New(size)
			var sending, taking sync.WaitGroup
			for p := range producers {
				sending.Go(func() {
					for i := range items {
						if err := s.Send(soon(t), binary.BigEndian.AppendUint32(nil, uint32(p*items+i))); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			taken := make([][]uint32, consumers)
			for c := range consumers {
				taking.Go(func() { taken[c] = drain(t, s, c) })
			}
			sending.Wait()
			s.End(nil)
			taking.Wait()
			s.Close()
			var all []uint32
			for _, numbers := range taken {
				last := map[uint32]uint32{}
				for _, n := range numbers {
					require.GreaterOrEqual(t, n+1, last[n/items], "order of a producer")
					last[n/items] = n + 1
				}
				all = append(all, numbers...)
			}
			slices.Sort(all)
			require.Len(t, all, producers*items)
			require.Len(t, slices.Compact(all), producers*items)
		}
	}
}

// drain takes everything until the end, as the c-th kind of consumer.
func drain(t *testing.T, s *Stream, c int) (numbers []uint32) {
	fd, err := s.Descriptor()
	if err != nil {
		t.Error(err)
		return nil
	}
	var b Batch
	for ctx := soon(t); ; b.Reset() {
		switch c {
		case 0:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
			err = s.Take(&b, 100)
		case 1:
			err = s.Next(ctx, &b, 3)
		default:
			runtime.Gosched()
			err = s.Take(&b, 1)
		}
		for _, item := range b.Items() {
			numbers = append(numbers, binary.BigEndian.Uint32(item))
		}
		if err != nil && !errors.Is(err, ErrEmpty) {
			if !errors.Is(err, ErrEnded) {
				t.Error(err)
			}
			return numbers
		}
	}
}

// TestKillsAndClosesAtAnyTime: whoever is at it, nobody hangs, and nobody touches a descriptor that is closed.
func TestKillsAndClosesAtAnyTime(t *testing.T) {
	for round := range 200 {
		s := New(round % 3)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for s.Send(context.Background(), []byte("item")) == nil {
				}
			})
			all.Go(func() {
				var b Batch
				for ctx := soon(t); ; b.Reset() {
					if err := s.Next(ctx, &b, 2); err != nil {
						return
					}
					_, _ = s.Descriptor()
				}
			})
		}
		all.Go(func() {
			runtime.Gosched()
			if round%2 == 0 {
				s.Kill()
			}
			s.Close()
		})
		all.Wait()
	}
}

func TestTakingAllocatesNothing(t *testing.T) {
	s := New(100)
	defer s.Close()
	_, err := s.Descriptor()
	require.NoError(t, err)
	item := []byte(`{"token_ids":[12345]}`)
	var b Batch
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Reset()
		for range 50 {
			_ = s.Send(over, item)
		}
		_ = s.Take(&b, 100)
	}))
}

func BenchmarkItem(b *testing.B) {
	s := New(1024)
	defer s.Close()
	item := []byte(`{"token_ids":[12345]}`)
	go func() {
		for range b.N {
			_ = s.Send(context.Background(), item)
		}
		s.End(nil)
	}()
	fd, _ := s.Descriptor()
	var batch Batch
	for {
		batch.Reset()
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if errors.Is(s.Take(&batch, 1024), ErrEnded) {
			return
		}
	}
}
