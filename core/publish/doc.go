// Package publish is the worker's side of the KV events: it numbers batches from 0, sends them on a PUB socket, keeps the
// latest, and answers replay requests on a ROUTER socket. On the wire it is vLLM 0.26 or later, topic first in
// replays, so whatever follows vLLM follows it.
//
// A batch costs its encoding and one place in the ring; a subscriber that does not keep up costs bounded memory and
// loses batches, which it can ask for again while they are kept. A replay is found by index and sent beside the live
// stream, at the peer's pace: unlike the engines', it stalls nobody and drops nothing. A batch wrongly made is refused
// with an error and uses no number.
//
// Limits: one rank for a Publisher; it listens and never connects out; endpoints are used as given, without adding the
// rank to the port. There is no security in this protocol: who reaches the port reads token ids.
package publish
