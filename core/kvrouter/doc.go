// Package kvrouter routes requests to the workers of a deployment: a runtime that drives a router.
//
// A KvRouter follows an endpoint. An instance with a model card is a worker of its Router, from the moment both are seen; its KV events, wherever they
// are published, reach its ranks' feeds; and when the instance or its card is gone, so is all that was known of it. One goroutine does that (members.go),
// and looks at the whole each time anything changed, so nothing is missed or done twice.
//
// Generate decides, books, sends and streams: the first item ends the prompt's load on the worker, and whatever ends the stream ends the booking. A
// request whose worker cannot be reached or refuses it goes to another one; once the worker has begun, an error is the caller's to see. Workers that
// break or cannot be reached are left alone for a while.
//
// With router_replica_sync, the routers of an endpoint tell each other what they place. What workers say of their load (kv_metrics) is kept for
// Metrics.
//
// A KvRouter uses the runtime's connections, and closes nothing of it: several may share one.
package kvrouter
