// Package rawhttp asks an HTTP/1.1 server on the caller's goroutine, with little more work than the bytes cost, for a proxy.
//
// A Pool keeps connections to one address. An Exchange is a request and its answer: Do sends and returns when the answer begins, Read gives what
// has come, without waiting for more, Cancel ends it from any goroutine, End gives the connection back if all was read and closes it if not, which
// tells the server to stop. There is no goroutine, no context and no timer an exchange: net/http's client costs three times the CPU of a whole
// request through this one (docs/benchmarks.md, part "serve").
//
// Everything has a bound: the answer's head, each wait, idle connections. What it does not do: redirects, proxies, cookies, compression, HTTP/2,
// trailers (they are read and dropped), answers without a head (HTTP/0.9).
package rawhttp
