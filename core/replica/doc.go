// Package replica lets routers share load without a server: each tells the others which requests it placed, whose prefill is
// complete, and which ended, so that all count the same work on the same ranks.
//
// A Mesh publishes on one ZeroMQ PUB socket and follows those of its peers. Messages are those of Dynamo 1.6.1's replica mesh
// (wire.SequenceEvent, topic Topic), so its selection service can be a peer. Delivery is best effort, and nothing is repaired:
//
//   - Events of one router arrive in order, or not at all. A lost placement makes what follows of its request unknown, which
//     the Sink ignores; a lost end leaves a booking that expires, late. Nothing is counted twice or below zero.
//   - The first router that placed an id owns it; a second one's placement is the Sink's to ignore.
//   - A router that joins late hears what happens from then on. What was placed before ends without it.
//   - A router is gone when its endpoint has been out of reach for Config.PeerTimeout, or when another one is there after a
//     reconnect: then the Sink ends what it placed. Another one is known by its incarnation, a random number of each Mesh that
//     the handshake tells (zmq.Options), and one that tells none, as Dynamo's, by its id. A broken connection alone ends nothing.
//
// One endpoint is one router: what it publishes under another's id, on one connection, is ignored and counted, and so is
// everything malformed, of another model, group or block size, or of this router itself; a list of peers may name the router's
// own endpoint.
//
// A Mesh has a goroutine for each peer, beside those of package zmq; Close ends all of them. Publish encodes on the caller's
// thread (9 us for a prompt of 2,048 blocks), never waits, and drops for a peer that is too slow.
package replica
