package tcp

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
)

// Options of a Pool and a Listener. The zero value of a field means its default, which is Dynamo's where it has one.
type Options struct {
	ConnectTimeout time.Duration // 5 s
	AckTimeout     time.Duration // 5 s; a worker that takes longer has its connection broken
	MaxMessage     int           // bytes of a payload; plane.MaxMessageBytes

	HostConns int // connections of a Pool to one host; 8
	Pipeline  int // requests on one of them that wait for their acknowledgement; 256. One more is ErrOverloaded

	MaxConns      int           // of a Listener; 4096
	MaxHalfOpen   int           // of them, those that have not sent a whole request yet; 256. One more ends the oldest
	FrameTimeout  time.Duration // from a message's first byte to its last, and from connecting to the first whole one; 30 s
	InFlightBytes int           // of messages above 64 KiB that a Listener reads at a time; 256 MiB

	TLS *secure.TLS // nil: connections are plain
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (o Options) filled() Options {
	def(&o.ConnectTimeout, 5*time.Second)
	def(&o.AckTimeout, 5*time.Second)
	def(&o.MaxMessage, plane.MaxMessageBytes)
	def(&o.HostConns, 8)
	def(&o.Pipeline, 256)
	def(&o.MaxConns, 4096)
	def(&o.MaxHalfOpen, 256)
	def(&o.FrameTimeout, 30*time.Second)
	def(&o.InFlightBytes, 256<<20)
	o.InFlightBytes = max(o.InFlightBytes, o.MaxMessage)
	return o
}
