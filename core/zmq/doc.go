// Package zmq speaks ZeroMQ (ZMTP 3, NULL security) over tcp and ipc; it is the only package that knows the library.
//
// It uses go-zeromq/zmq4 at connection level: zmq4.Open makes the handshake and Conn.SendMsg and Conn.RecvMsg move
// messages, over a net.Conn of ours, the guard, which checks every frame before the library sees it. The library's own
// sockets are not used: a hostile frame length ends the process, they stop reconnecting, leak when closed, and cost
// fourteen times the CPU.
//
// Two ways to connect:
//
//   - Dial gives one Conn. It is up or it is broken, and it is never repaired.
//   - A Subscriber follows a publisher for ever: it dials again with back-off, subscribes again, and tells its owner in
//     order: Connected, Message..., Disconnected, Connected, ... A failed attempt is a Disconnected too.
//
// and two to be connected to: a Pub (fan-out by topic prefix, a bounded queue for each subscriber, the newest message
// dropped and counted) and a RouterSocket (request in, any number of replies out, waiting while the peer is slow).
//
// A dialled connection sends a PING every Options.Heartbeat and is broken when nothing at all arrives for
// Options.HeartbeatTimeout, so a stopped or vanished peer is noticed. A PING is answered on every connection. Time
// spent by the owner not reading does not count as the peer's silence.
//
// Limits: frame and message size, frame count, commands, handshakes, connections, subscriptions and queues are all
// bounded by Options or by a constant beside the code; memory for a large frame grows with the bytes that arrived, not
// with the length that was claimed. Every goroutine ends before Close returns. Not here: PLAIN, CURVE, inproc, ZMTP 2,
// subscribers that listen.
package zmq
