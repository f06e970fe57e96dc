// Package runtime joins a Dynamo deployment: it serves endpoints and calls those that others serve.
//
// A Runtime belongs to one process and one discovery store. An Endpoint is a name; Serve makes this process an instance of it, Client follows all
// instances, and calls them. Requests and items are MessagePack here, whatever goes over the wire. A call is sent to the instance
// (package tcp), which connects back and streams the response (package callhome).
//
// Nothing starts before it is needed: the listener for requests with the first Serve, the one for responses with the first call. Close ends
// everything. Several routers may use one Runtime, and a process may have several; none of them disturbs another.
//
// Later planes have their place: a store of its own (discovery.Store), and a carrier of requests beside tcp (Runtime.send picks one by the
// instance's transport).
package runtime
