package plane

import (
	"errors"
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Errors of requests. Each returned error wraps one of them.
var (
	// ErrInvalidArgument: the request cannot be sent as it is. Correct it.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrNoInstances: no instance serves the endpoint now.
	ErrNoInstances = errors.New("no instances")
	// ErrInstanceNotFound: the instance that was named does not serve the endpoint.
	ErrInstanceNotFound = errors.New("instance not found")
	// ErrCannotConnect: the request did not reach the worker, or the worker refused to begin. Nothing was computed; another worker may do.
	ErrCannotConnect = errors.New("cannot connect")
	// ErrNoServer: the server that the request or event plane goes by is not within reach. It is nobody's fault that can be avoided by asking another.
	ErrNoServer = errors.New("no server")
	// ErrTimeout: the worker did not acknowledge in time. It may have begun.
	ErrTimeout = errors.New("timeout")
	// ErrOverloaded: the worker has as many requests as it takes, or this process has.
	ErrOverloaded = errors.New("worker overloaded")
	// ErrUnavailable: the worker does not serve the endpoint (any more).
	ErrUnavailable = errors.New("worker unavailable")
	// ErrDisconnected: the stream ended before the response was complete.
	ErrDisconnected = errors.New("stream ended before generation completed")
	// ErrCancelled: the request was cancelled by this side.
	ErrCancelled = errors.New("cancelled")
	// ErrWorker: the worker's handler failed. errors.As finds a *WorkerError.
	ErrWorker = errors.New("worker error")
	// ErrProtocol: the other side does not speak the protocol as it should. The connection is broken.
	ErrProtocol = errors.New("request plane protocol")
	// ErrTooLarge: a message is larger than Options allow.
	ErrTooLarge = errors.New("message too large")
	// ErrClosed: this side was closed.
	ErrClosed = errors.New("closed")
)

// WorkerError is an error that a worker told. It is an ErrWorker.
type WorkerError struct{ wire.Failure }

// Error gives the class, if it is known, and the message.
func (e *WorkerError) Error() string {
	if e.Class != "" {
		return fmt.Sprintf("%s: %s", e.Class, e.Message)
	}
	return e.Message
}

// Is makes it an ErrWorker, and what its type means besides.
func (e *WorkerError) Is(target error) bool {
	switch target {
	case ErrWorker:
		return true
	case ErrDisconnected:
		return e.Type == "Disconnected" || e.Backend && (e.Type == "StreamIncomplete" || e.Type == "EngineShutdown")
	case ErrCancelled:
		return e.Type == "Cancelled"
	}
	return false
}

// Quarantines tells whether an error says that its worker should not get requests for a while.
func Quarantines(err error) bool {
	var told *WorkerError
	if errors.As(err, &told) {
		switch told.Type {
		case "CannotConnect", "Disconnected", "ConnectionTimeout", "ResponseTimeout", "WorkerUnavailable":
			return true
		case "EngineShutdown", "StreamIncomplete":
			return told.Backend
		}
		return false
	}
	for _, fault := range []error{ErrCannotConnect, ErrTimeout, ErrUnavailable, ErrDisconnected, ErrProtocol} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// InvalidRequest tells whether a worker says that the request is wrong: no other worker would take it.
func (e *WorkerError) InvalidRequest() bool {
	return e.Class == "InvalidRequest" || e.Type == "InvalidArgument"
}

// FailureOf gives what a worker tells of an error of its handler.
func FailureOf(err error) *wire.Failure {
	var told *WorkerError
	switch {
	case errors.As(err, &told):
		return &told.Failure
	case errors.Is(err, ErrInvalidArgument):
		return &wire.Failure{Type: "InvalidArgument", Backend: true, Class: "InvalidRequest", Reason: "backend.invalid_argument", Message: err.Error()}
	case errors.Is(err, ErrCancelled):
		return &wire.Failure{Type: "Cancelled", Backend: true, Class: "Cancelled", Reason: "backend.cancelled", Message: err.Error()}
	case errors.Is(err, ErrUnavailable):
		return &wire.Failure{Type: "EngineShutdown", Backend: true, Class: "Unavailable", Reason: "backend.engine_shutdown", Message: err.Error()}
	case errors.Is(err, ErrOverloaded):
		return &wire.Failure{Type: "ResourceExhausted", Class: "CapacityExhausted", Reason: "resource_exhausted", Message: err.Error()}
	}
	return &wire.Failure{Type: "Unknown", Backend: true, Class: "Internal", Reason: "backend.unknown", Message: err.Error()}
}
