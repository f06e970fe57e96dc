// Package tcp carries requests from routers to workers: Dynamo's "tcp" request plane. A request is a path, headers, and a payload that this
// package does not look into; the worker answers it with an acknowledgement, empty if it takes the request, or the text of a refusal.
//
// A Plane is both sides of a process. A Pool is the router's side: a few connections to each host, kept open, on each of which requests follow one another without waiting for
// their acknowledgements (these come in order). A Listener is the worker's side.
//
// Limits, all in Options: sizes, connections, those that have not sent a whole request yet, the time for a message once it has begun and for
// an acknowledgement, requests that wait for one, and the bytes of messages that are being read at a time.
package tcp
