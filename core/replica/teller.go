package replica

import (
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Teller tells a Sink, and counts what it told. A panic of the Sink is counted, and whoever tells lives. The zero value but for To is ready; it is safe
// for concurrent use.
type Teller struct {
	To Sink

	applied, gone, panics atomic.Uint64
}

// Apply tells of events, at least one.
func (t *Teller) Apply(events []wire.SequenceEvent) {
	if t.tell(func() { t.To.Apply(events) }) {
		t.applied.Add(uint64(len(events)))
	}
}

// Gone tells that a router is gone.
func (t *Teller) Gone(router uint64) {
	t.tell(func() { t.To.Gone(router) })
	t.gone.Add(1)
}

func (t *Teller) tell(call func()) (ok bool) {
	if ok = owned.Do(call); !ok {
		t.panics.Add(1)
	}
	return ok
}

// Count puts what was counted into s.
func (t *Teller) Count(s *Stats) {
	s.Applied, s.Gone, s.Panics = t.applied.Load(), t.gone.Load(), t.panics.Load()
}
