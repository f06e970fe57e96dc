// Package publish is the worker's side of the KV events: it numbers batches from 0, sends them on a PUB socket, keeps the
// latest, and answers replay requests on a ROUTER socket. On the wire it is vLLM 0.26 or later, topic first in
// replays, so whatever follows vLLM follows it.
//
// A batch costs its encoding and one place in the ring; a subscriber that does not keep up costs bounded memory and
// loses batches, which it can ask for again while they are kept. A replay is found by index and sent beside the live
// stream, at the peer's pace: unlike the engines', it stalls nobody and drops nothing. A batch wrongly made is refused
// with an error and uses no number.
//
// A Source is that for a worker that wants its routers to recover: one event a message, an index of all the rank holds, and a
// query socket (ROUTER) that gives a router the events it missed or, when these are no longer kept, everything; the bytes are Dynamo's. Blocks
// that the engine stores twice are counted here, and routers hear of the first store and the last removal. A Worker is the sources of its
// ranks. What cannot be true is an error at the call.
//
// A router notices a restart: a Source begins with message 0, which clears, and answers queries under a number drawn anew.
//
// Limits: they listen and never connect out; endpoints of a Publisher or a Source are used as given, only a Worker adds
// the rank to the port. A Source's memory is the index (some 30 bytes a block), 30 to 60 for the count of each name, and the
// events kept, twice: as messages and as hashes. There is no security in this protocol: who reaches the port reads token ids.
package publish
