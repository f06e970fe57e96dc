package plane

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Requests is a request plane: it carries requests to instances, and those of others to the services of this process. It does not look into
// payloads, and has no part in responses. All methods are safe for concurrent use.
type Requests interface {
	// Send sends to an instance that is reached by this plane, and waits for the acknowledgement. Errors: ErrInvalidArgument, ErrTooLarge (nothing
	// was sent), ErrCannotConnect, ErrNoServer, ErrTimeout (no acknowledgement), ErrOverloaded, ErrUnavailable (refused), ErrClosed, and that of ctx.
	Send(ctx context.Context, to *discovery.Instance, m *Message) error
	// Serve has a service get what is sent to an instance, and says in the instance how it is reached. After stop, which may be called more than
	// once, nothing new comes; what is on its way may. Errors:
	// ErrInvalidArgument (it is served already), ErrCannotConnect, ErrNoServer, ErrClosed.
	Serve(at *discovery.Instance, s Service) (stop func(), err error)
	// Close ends everything. It is idempotent.
	Close()
}

// Message is a request on its way.
type Message struct {
	ID      string // of the request, for whoever looks on
	Payload []byte
	// Begun is closed when the instance has begun to answer: that acknowledges, too.
	Begun <-chan struct{}
}

// Service takes requests. Its methods must not block.
type Service interface {
	// Take takes a payload, which is its own, or refuses it: ErrOverloaded, ErrUnavailable.
	Take(payload []byte) error
	// Refuse tells who sent a payload by other ways than the acknowledgement, which not everyone reads on every plane, that it was refused.
	Refuse(payload []byte, why error)
}

// The refusals of Dynamo's workers.
const (
	overloaded  = "Server overloaded: "
	unavailable = "Server unavailable: "
)

// Refusal is the acknowledgement that says why a request is refused; nil: it is not.
func Refusal(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrOverloaded):
		return overloaded + err.Error()
	}
	return unavailable + err.Error()
}

// Refused gives the error of an acknowledgement, nil if there is none.
func Refused(ack string) error {
	switch {
	case ack == "":
		return nil
	case strings.HasPrefix(ack, strings.TrimSpace(overloaded)):
		return fmt.Errorf("%w: %s", ErrOverloaded, ack)
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, ack)
}
