// Package nats carries requests and events by a NATS server, in Dynamo's formats: Dynamo's "nats" request plane and event plane. Responses do not go by
// it: the worker connects to who asked (package callhome), as with every request plane.
//
// A Conn is a process's one connection, for both planes. It is made in the background, and made anew for as long as it takes when it breaks. What
// needs the server waits for it, but not for ever (Options.ServerWait, RequestWait).
//
// Requests: an instance subscribes to a subject of its own, in a queue group; an empty reply acknowledges, any other is a refusal. A request whose server
// is lost is sent again when it is back, unless the worker has begun to answer: of two answers one is taken. That nobody listens is believed only some
// time after a server was reached (Options.Settle): workers come back in their own time.
//
// Events: all publishers of a topic share a subject, which is subscribed to once; each publisher's messages wait in a queue of their own. NATS keeps
// nothing: after a lost connection, and when a queue is full, the follower is told so, as if its publisher had been away. So that this shows also
// when it is the publisher's connection that was lost, a publisher of KV events sends the last one again.
package nats
