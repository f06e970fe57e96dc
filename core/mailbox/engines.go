package mailbox

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Engines gives the HTTP engines that serve an endpoint by this process; create says that there may be some from now on. Errors: plane.ErrClosed,
// ErrUnknown (there are none).
func (m *Mailbox) Engines(e *runtime.Endpoint, o engineworker.Options, create bool) (*engineworker.Set, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clients == nil {
		return nil, plane.ErrClosed
	}
	s := m.engines[e.Name]
	if s == nil && !create {
		return nil, fmt.Errorf("%w: no engine serves %s", ErrUnknown, e.Name)
	}
	if s == nil {
		s = engineworker.NewSet(e, o)
		m.engines[e.Name] = s
	}
	return s, nil
}
