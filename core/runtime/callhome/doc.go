// Package callhome is how responses come back: the worker connects to the router and streams the response of one request over one connection.
//
// A Listener is the router's side. Expect gives a subject, which goes into the request; the worker names it when it connects, and then sends a
// prologue (it began, or why not), the items, a final item and a farewell. The router may write "stop" or "kill" on the same connection,
// after which nothing more is expected. Dial is the worker's side.
//
// TCP is the flow control: who does not read an item keeps the worker from sending more, when the buffers are full. A stream that breaks before
// its final item is plane.ErrDisconnected, never an end.
//
// Limits, in Options: sizes, connections, those that have not named a subject yet and the time they have for it.
package callhome
