// Package engine speaks to one OpenAI-compatible HTTP server, vLLM's or SGLang's as they are, and knows whether it can serve.
//
// Two ways to ask: Forward hands a request on as it is and gives the answer as it comes, for a proxy; Complete sends token ids and gives what is
// generated piece by piece, with token ids where the server tells them. Both keep connections alive, cancel the server's work when the caller's
// context ends or the answer is closed, and tell faults by kind (errors.go), so that a caller knows whether another engine may do.
//
// States (State), and what moves between them:
//
//	starting -> healthy             the first check succeeded
//	healthy  -> ejected             it could not be reached, its check said 503, or Health.Failures faults in a row
//	ejected  -> healthy             a check succeeded, not before the back-off was over
//	any      -> draining, and back  Drain, Resume: it serves what it has, and should get no more
//
// An answer of any kind below 500 is no fault: the engine works, the request was wrong. Nor is what the caller cancelled, nor what this process lacks
// (descriptors, ports). The back-off doubles with each ejection, and with each check that fails meanwhile; it starts anew once the engine has served
// for a while.
//
// Everything has a bound (Limits): connections, waits, headers, the size of an event and of an answer. Redirects are not followed: a redirect is the
// answer. There is no proxy, no cookie, no decompression.
//
// Checked against the sources of vLLM 0.33.0 and SGLang 0.5.23.
package engine
