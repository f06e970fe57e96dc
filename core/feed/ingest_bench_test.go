package feed

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// BenchmarkIngest is what messages of many engines cost from the socket to the index, in CPU time of the whole process: the
// kernel's part and that of the senders, which write bytes made before, are in it. Stages: bytes are only read; frames are
// taken by a Subscriber; events are decoded and ordered by a Feed; blocks go to an index. What a stage adds to the one
// before is its share. One operation is one message, of a store or, as often, of a removal of so many blocks of 16 tokens.
func BenchmarkIngest(b *testing.B) {
	const feeds = 64
	for _, blocks := range []int{1, 8, 64} {
		stream := newStream(b, blocks)
		for _, stage := range []string{"bytes", "frames", "events", "blocks"} {
			b.Run(fmt.Sprintf("blocks=%d/stage=%s", blocks, stage), func(b *testing.B) {
				each := b.N/feeds + 1
				listeners := make([]net.Listener, feeds)
				var senders, receivers sync.WaitGroup
				for i := range listeners {
					ln, err := net.Listen("tcp", "127.0.0.1:0")
					require.NoError(b, err)
					defer ln.Close()
					listeners[i] = ln
					senders.Go(func() { stream.send(ln, each) })
				}
				start, wall := cpu(), time.Now()
				var shared index.Index
				if stage == "blocks" {
					shared = index.New(index.Options{})
					defer shared.Close()
				}
				for i, ln := range listeners {
					var sink Sink = noSink{}
					if shared != nil {
						sink = benchSink{shared, worker.Slot(i)}
					}
					receivers.Go(func() {
						if err := stream.receive(stage, ln.Addr().String(), each, sink); err != nil {
							b.Error(err)
						}
					})
				}
				receivers.Wait()
				used := cpu() - start
				b.ReportMetric(float64(used.Nanoseconds())/float64(each*feeds), "cpu-ns/op")
				b.ReportMetric(float64(each*feeds)/time.Since(wall).Seconds(), "messages/s")
				for _, ln := range listeners {
					ln.Close()
				}
				senders.Wait()
			})
		}
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stream is a cycle of messages, and where in it their numbers stand. It stores chains of 8 messages below each other, and
// removes them from the tail.
type stream struct {
	bytes   []byte
	numbers []int
}

func newStream(b *testing.B, blocks int) *stream {
	const messages, chain, size = 64, 8, 16
	s := &stream{}
	name := func(m, i int) block.EngineHash { return block.EngineHash(m*blocks+i)*0x9e3779b97f4a7c15 + 1 }
	payloads := make([][]byte, messages)
	for m := range messages / 2 {
		stored := wire.Event{Kind: event.Stored, BlockSize: size, Medium: "GPU", HasParent: m%chain > 0, Parent: name(m-1, blocks-1)}
		for i := range blocks {
			stored.BlockHashes = append(stored.BlockHashes, name(m, i))
			for t := range size {
				stored.TokenIDs = append(stored.TokenIDs, uint32(m*7919+i*size+t)%150_000)
			}
		}
		removed := wire.Event{Kind: event.Removed, Medium: "GPU"}
		for i := range stored.BlockHashes {
			removed.BlockHashes = append(removed.BlockHashes, stored.BlockHashes[blocks-1-i])
		}
		payloads[m], payloads[messages-1-m] = encode(b, stored), encode(b, removed)
	}
	for _, p := range payloads {
		s.bytes = append(s.bytes, 1, 2, 'k', 'v', 1, 8)
		s.numbers = append(s.numbers, len(s.bytes))
		s.bytes = append(s.bytes, make([]byte, 8)...)
		s.bytes = binary.BigEndian.AppendUint64(append(s.bytes, 2), uint64(len(p)))
		s.bytes = append(s.bytes, p...)
	}
	return s
}

// The publisher's side of the handshake. The receiver named "bytes" says the same: nobody looks.
const (
	greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + zeros
	zeros    = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	ready    = "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
)

// send takes one connection, makes the handshake and sends n messages.
func (s *stream) send(ln net.Listener, n int) {
	c, err := ln.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	io.WriteString(c, greeting+ready)
	gone := make(chan struct{})
	go func() { io.Copy(io.Discard, c); close(gone) }()
	bytes := append([]byte(nil), s.bytes...)
	for seq := 0; seq < n; {
		end := len(bytes)
		for m, at := range s.numbers {
			if seq == n {
				end = s.numbers[m] - 6
				break
			}
			binary.BigEndian.PutUint64(bytes[at:], uint64(seq))
			seq++
		}
		if _, err := c.Write(bytes[:end]); err != nil {
			return
		}
	}
	<-gone
}

// size is how many bytes n messages have.
func (s *stream) size(n int) int64 {
	whole, part := n/len(s.numbers), n%len(s.numbers)
	size := int64(whole) * int64(len(s.bytes))
	if part > 0 {
		size += int64(s.numbers[part] - 6)
	}
	return size
}

// receive takes n messages as far as the stage says.
func (s *stream) receive(stage, addr string, n int, sink Sink) error {
	ctx, endpoint := context.Background(), "tcp://"+addr
	switch stage {
	case "bytes":
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer c.Close()
		io.WriteString(c, greeting+ready)
		if _, err := io.CopyN(io.Discard, c, int64(len(greeting+ready))); err != nil {
			return err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, s.size(n)), make([]byte, 32<<10))
		return err
	case "frames":
		c, err := zmq.Dial(ctx, endpoint, zmq.Sub, zmq.Options{})
		if err != nil {
			return err
		}
		defer c.Close()
		for range n {
			if _, err := c.Recv(); err != nil {
				return err
			}
		}
		return nil
	}
	f := Start(Config{Endpoint: endpoint, BlockSize: 16, Sink: sink})
	defer f.Close()
	for s := f.Status(); !s.HasSeq || s.LastSeq < uint64(n-1); s = f.Status() {
		time.Sleep(time.Millisecond)
	}
	if state := f.Status(); state.State != Exact || state.Counters["refused"]+state.Counters["unknown_parent"]+state.Counters["unknown_removals"] > 0 {
		return fmt.Errorf("the view is %+v", state)
	}
	return nil
}

type benchSink struct {
	index index.Index
	slot  worker.Slot
}

func (s benchSink) Apply(_ worker.Rank, ev *event.Event) (index.Applied, error) {
	return s.index.Apply(s.slot, ev, index.Count)
}
func (s benchSink) Reset(worker.Rank) { s.index.Drop(s.slot) }
