package zmq

import (
	"math/rand/v2"
	"time"
)

// Options tune connections and listeners. The zero value of a field means its default.
type Options struct {
	// DialTimeout bounds connecting, HandshakeTimeout the exchange of greetings after it. Defaults 3 s and 5 s.
	DialTimeout, HandshakeTimeout time.Duration
	// Heartbeat is the time between PINGs; negative switches them off. Default 5 s when dialling, off when listening:
	// a subscriber that does not read for minutes keeps its connection, as with libzmq (TCP keep-alive still finds a
	// vanished one).
	Heartbeat time.Duration
	// HeartbeatTimeout is the silence after which a peer counts as gone; unused without Heartbeat. Default 3 Heartbeats.
	HeartbeatTimeout time.Duration
	// WriteTimeout bounds sending one message to a peer that is slow to take it; negative for no bound. Default 15 s for
	// a dialled connection, 30 s for a RouterSocket, no bound for a Pub, whose queue drops instead.
	WriteTimeout time.Duration
	// BackoffMin and BackoffMax bound the wait before a Subscriber dials again: it doubles from one to the other, and
	// a random part of up to a half is taken off. Defaults 50 ms and 2 s: an engine that is back is followed within 2 s.
	BackoffMin, BackoffMax time.Duration
	// MaxMessage bounds the bytes of a received message, all frames together; MaxFrames its frames. Defaults 64 MiB
	// (the largest batches measured are 10 MB) and 64 when dialling; 64 KiB and 16 when listening, where only
	// subscriptions and requests arrive.
	MaxMessage, MaxFrames int
	// MaxConns bounds a listener's connections, and MaxHandshakes those among them that have not finished their
	// handshake; more are closed at once and counted. Defaults 1024 and 64.
	MaxConns, MaxHandshakes int
	// SendQueue bounds the messages waiting for one subscriber of a Pub, SendQueueBytes their bytes; a message beyond
	// is dropped for that subscriber and counted. Defaults 100 000 (the engines' own) and 64 MiB.
	SendQueue, SendQueueBytes int
	// Incarnation, of at most 255 bytes, names the process, or whatever else starts anew, to those it is connected with
	// (metadata X-Incarnation of the handshake). "": none.
	Incarnation string
	// Jitter gives a number in [0,1). Default: the global random source.
	Jitter func() float64

	readBuffer, writeBuffer int
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// dialling fills in the defaults of a connection we open. The read buffer is what makes small messages cheap: 32 KiB
// holds some 200 one-block batches, and a thousand feeds still take only 32 MiB.
func (o Options) dialling() Options {
	def(&o.Heartbeat, 5*time.Second)
	def(&o.WriteTimeout, 15*time.Second)
	def(&o.MaxMessage, 64<<20)
	def(&o.MaxFrames, 64)
	def(&o.readBuffer, 32<<10)
	def(&o.writeBuffer, 1<<10)
	return o.common()
}

// listening fills in the defaults of a connection we accept.
func (o Options) listening() Options {
	def(&o.Heartbeat, -1)
	def(&o.MaxMessage, 64<<10)
	def(&o.MaxFrames, 16)
	def(&o.MaxConns, 1024)
	def(&o.MaxHandshakes, 64)
	def(&o.SendQueue, 100_000)
	def(&o.SendQueueBytes, 64<<20)
	def(&o.readBuffer, 4<<10)
	def(&o.writeBuffer, 32<<10)
	return o.common()
}

func (o Options) common() Options {
	def(&o.DialTimeout, 3*time.Second)
	def(&o.HandshakeTimeout, 5*time.Second)
	def(&o.HeartbeatTimeout, 3*o.Heartbeat)
	def(&o.BackoffMin, 50*time.Millisecond)
	def(&o.BackoffMax, 2*time.Second)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

// backoff is the wait before attempt number n, counted from 0.
func (o *Options) backoff(n int) time.Duration {
	d := o.BackoffMax
	if n < 20 && o.BackoffMin<<n < d {
		d = o.BackoffMin << n
	}
	return d - time.Duration(o.Jitter()*float64(d)/2)
}
