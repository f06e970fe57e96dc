package callhome

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
)

// Options of both sides. The zero value of a field means its default, which is Dynamo's where it has one.
type Options struct {
	ConnectTimeout   time.Duration // of Dial; 5 s
	HandshakeTimeout time.Duration // from connecting to naming a subject; 10 s
	MaxMessage       int           // bytes of an item; plane.MaxMessageBytes
	MaxConns         int           // of a Listener; 65,536
	MaxHalfOpen      int           // of them, those that have not named a subject yet; 4,096. One more ends the oldest
	TLS              *secure.TLS   // nil: connections are plain
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (o Options) filled() Options {
	def(&o.ConnectTimeout, 5*time.Second)
	def(&o.HandshakeTimeout, 10*time.Second)
	def(&o.MaxMessage, plane.MaxMessageBytes)
	def(&o.MaxConns, 1<<16)
	def(&o.MaxHalfOpen, 1<<12)
	return o
}

// The words of the protocol, each a JSON text as the header of a message without a body.
const (
	wordSentinel = `"sentinel"`
	wordStop     = `"stop"`
	wordKill     = `"kill"`
)

// handshake is the first message of a worker.
type handshake struct {
	Subject    string `json:"subject"`
	StreamType string `json:"stream_type"`
}
