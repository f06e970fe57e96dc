// Package plane is what all request planes of Dynamo's runtime have in common, whatever carries a request: the two-part messages
// that requests and response streams are made of, the control message that says where the response goes, and the errors.
//
// A request goes to a worker by a plane of its own (package tcp), which acknowledges it; the worker then connects to the address that the
// request names and sends the response (package callhome).
package plane
