package zmq

import (
	"context"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRecv reads three-frame messages that a peer sends as fast as TCP takes them: what one message costs the
// receiver. The sender is in the process, but writes encoded blocks of many messages.
func BenchmarkRecv(b *testing.B) {
	for _, size := range []int{100, 8 << 10} {
		b.Run("payload="+strconv.Itoa(size), func(b *testing.B) {
			payload := make([]byte, size)
			var block []byte
			for range 64 {
				block = append(block, flagMore, 2, 'k', 'v', flagMore, 8, 0, 0, 0, 0, 0, 0, 0, 0)
				if size > 255 {
					block = append(block, long(0, uint64(size))...)
				} else {
					block = append(block, 0, byte(size))
				}
				block = append(block, payload...)
			}
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			done := make(chan struct{})
			go func() {
				defer close(done)
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				shake(c, "PUB")
				for {
					if _, err := c.Write(block); err != nil {
						return
					}
				}
			}()
			c, err := Dial(context.Background(), "tcp://"+ln.Addr().String(), Sub, Options{})
			require.NoError(b, err)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Recv(); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			ln.Close()
			<-done
		})
	}
}
