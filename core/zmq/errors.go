package zmq

import "errors"

var (
	// ErrEndpoint: the endpoint cannot be used as it is written; nothing was opened. Correct the configuration.
	ErrEndpoint = errors.New("bad endpoint")
	// ErrClosed: this end was closed. Stop using it.
	ErrClosed = errors.New("connection closed")
	// ErrTooLarge: the peer sent more than Options allow. The connection is broken; dial again, or raise the limit.
	ErrTooLarge = errors.New("message too large")
	// ErrProtocol: the peer does not speak ZMTP as it should. The connection is broken.
	ErrProtocol = errors.New("not valid ZMTP")
	// ErrHandshake: the peer did not finish the handshake in time, or is not a socket of a fitting type.
	ErrHandshake = errors.New("handshake failed")
	// ErrSilent: nothing arrived for Options.HeartbeatTimeout. The peer is stopped or gone; dial again.
	ErrSilent = errors.New("peer is silent")
)
