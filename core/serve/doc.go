// Package serve is an OpenAI endpoint over a fleet of engines: it reads of a request what a router needs, lets package fleet choose, and hands request
// and answer on as they are.
//
// A request: body.go finds prompt, model and a few more members without building anything. A prompt that is text, and messages, are turned into token
// ids by an engine's own /tokenize, or, a text, by the host (Texts). Then fleet.Route books a place, engine.Call sends the body there, and the first
// bytes of the answer decide: an engine that failed before them, or says that it cannot, is replaced by another (fleet.Lease.Next). From there on each
// piece of the answer is written as it comes (answer.go). The booking ends with the answer, whatever the end is.
//
// What cannot be turned into token ids goes by load alone: several prompts in one request, content that no engine tokenises. What is wrong with a
// request is the engine's to say: its status and body are handed on.
//
// A client that disconnects is noticed within a quarter of a second also while nothing is written (watch.go), and the engine's work is cancelled. An
// engine that breaks in the middle of an event stream ends it with an error event and [DONE], as engines report errors themselves; any other answer is
// cut off.
//
// Bounds: connections, requests in flight, the head and the body of a request, bodies in memory altogether, and the time that a client takes to send
// and to take. The server is fasthttp's and the client rawhttp, because net/http's cost three times as much CPU (docs/benchmarks.md).
package serve
