package mailbox

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// ErrUnknown: no call, service or client has this number, or it has ended.
var ErrUnknown = errors.New("unknown or ended")

// Kind says what a notice is of.
type Kind uint32

// Kinds. The payload is told after each.
const (
	Request   Kind = iota + 1 // a service is called: [service, request id, metadata, body]
	Cancelled                 // who called wants no more, or with Kill nothing at all: nothing
	Drained                   // few answers wait for the caller's socket again: nothing
	Begun                     // a worker has begun to answer: nil; of a router's call [worker, rank, overlap, prompt blocks, request id, requests that waited]
	Items                     // an item: its value; with Last also [received, wait, prefill, total] in milliseconds; with Note [name, comment] instead
	Ended                     // it is over, and how: a text, with what End said in the flags
	Changed                   // the instances of a client changed: nothing
	Closed                    // a service has ended, and all its calls: nothing
)

// Flags of notices.
const (
	First uint32 = 1 << iota // Items: the first of a router's call
	Last                     // Items: it has a finish reason, and the call is a router's
	Note                     // Items: an annotation
	Kill                     // Cancelled: at once
)

// Head begins each notice: the number it is about, its kind, its flags, in the machine's byte order.
type Head struct {
	ID    uint64
	Kind  Kind
	Flags uint32
}

// HeadBytes is the size of a Head.
const HeadBytes = 16

// room is how many notices wait before goroutines do.
const room = 1 << 14

// Mailbox is a runtime, and what happens in it. All methods are safe for concurrent use.
type Mailbox struct {
	r      *runtime.Runtime
	local  bool // the store is this process's memory
	out    *stream.Stream
	status func(error) uint32
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once

	running owned.Group // calls, and what ends

	mu       sync.Mutex // guards the rest
	last     uint64
	calls    map[uint64]*call
	answers  map[uint64]*answer
	services map[uint64]*runtime.Service
	clients  map[uint64]*client
	loads    map[discovery.Name]*event.Publisher
	engines  map[discovery.Name]*engineworker.Set
	routers  map[*kvrouter.KvRouter]discovery.Name
	sources  map[sourceKey]*source

	publishing sync.Mutex // guards the sources' users, and that they agree with the map; before mu
	modeling   sync.Mutex // guards models, and that the store agrees; before mu
	models     map[discovery.Key][]byte
}

// New gives the mailbox of a runtime, which it closes with it. status gives the flags of Ended for an error, nil included.
func New(r *runtime.Runtime, status func(error) uint32) *Mailbox {
	m := &Mailbox{
		r: r, out: stream.New(room), status: status, calls: make(map[uint64]*call), answers: make(map[uint64]*answer),
		services: make(map[uint64]*runtime.Service), clients: make(map[uint64]*client), loads: make(map[discovery.Name]*event.Publisher),
		engines: make(map[discovery.Name]*engineworker.Set), routers: make(map[*kvrouter.KvRouter]discovery.Name), sources: make(map[sourceKey]*source),
		models: make(map[discovery.Key][]byte),
	}
	_, m.local = r.Store().(*discovery.Memory)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Runtime is the runtime.
func (m *Mailbox) Runtime() *runtime.Runtime { return m.r }

// Notices is the stream of them. It ends with the mailbox, and is the caller's to close.
func (m *Mailbox) Notices() *stream.Stream { return m.out }

// Close ends everything: calls, services, clients, and the runtime. It is idempotent.
func (m *Mailbox) Close() error {
	var err error
	m.once.Do(func() {
		m.mu.Lock()
		m.cancel() // under mu: nothing begins after it
		clients, loads, engines := m.clients, m.loads, m.engines
		m.clients, m.loads, m.engines, m.routers, m.sources = nil, nil, nil, nil, nil
		m.mu.Unlock()
		m.out.End(nil) // whoever sends a notice does not wait for its reader any more
		for _, c := range clients {
			c.close()
		}
		for _, p := range loads {
			p.Close()
		}
		for _, s := range engines {
			s.Close()
		}
		err = m.r.Close()
		m.running.Wait()
	})
	return err
}

// number gives a number that was never given.
func (m *Mailbox) number() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	return m.last
}

func head(h Head) []byte {
	b := make([]byte, 0, 128)
	b = binary.NativeEndian.AppendUint64(b, h.ID)
	b = binary.NativeEndian.AppendUint32(b, uint32(h.Kind))
	return binary.NativeEndian.AppendUint32(b, h.Flags)
}

// tell sends a notice. It waits while too many are not taken; an error means that nobody takes any more.
func (m *Mailbox) tell(h Head, payload []byte) error {
	return m.out.Send(m.ctx, append(head(h), payload...))
}

// Model says what the instance id of an endpoint is like, whether it serves or not: card is a JSON object in Dynamo's form, or nil to take it back.
// Again, it replaces what was said. A card that names an adapter (lora.name) stands beside the instance's own, and goes with it; alone, of no more than
// lora, it is taken back. Errors: plane.ErrInvalidArgument, in memory also if a router cannot take it: then what was said before holds; ErrUnknown
// (nothing to take back), and those of the store.
func (m *Mailbox) Model(e *runtime.Endpoint, id uint64, card []byte) error {
	m.modeling.Lock()
	defer m.modeling.Unlock()
	if card == nil {
		err := m.takeBack(e.Name, id)
		_ = m.settle(e.Name, id) // nobody refuses what is not there
		return err
	}
	model, err := discovery.NewModel(e.Name, id, card)
	if err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	key, store := discovery.ModelKey(model.Name, model.ID, model.Suffix), m.r.Store()
	record, old := model.Encode(), m.models[key]
	switch {
	case len(record) > discovery.MaxRecordBytes:
		return fmt.Errorf("%w: model card of %d bytes, at most %d", plane.ErrInvalidArgument, len(card), discovery.MaxRecordBytes)
	case model.Suffix != "" && alone(card):
		if old == nil {
			return fmt.Errorf("%w: instance %d has no card of the adapter", ErrUnknown, id)
		}
		delete(m.models, key)
		err = store.Delete(key)
		_ = m.settle(e.Name, id) // nobody refuses less
		return err
	case old != nil:
		err = store.Replace(key, record)
	default:
		err = store.Create(key, record)
	}
	if err != nil {
		return err
	}
	m.models[key] = record
	refused := m.settle(e.Name, id)
	if refused == nil {
		return nil
	}
	if m.models[key] = old; old != nil {
		_ = store.Replace(key, old) // it is in memory
	} else {
		delete(m.models, key)
		_ = store.Delete(key)
	}
	_ = m.settle(e.Name, id)
	return refused
}

// takeBack deletes all cards of an instance. m.modeling is held.
func (m *Mailbox) takeBack(n discovery.Name, id uint64) error {
	own := discovery.ModelKey(n, id, "")
	if m.models[own] == nil {
		return fmt.Errorf("%w: instance %d has no model card", ErrUnknown, id)
	}
	var errs []error
	for key := range m.models {
		if key == own || strings.HasPrefix(key.Path, own.Path+"/") {
			delete(m.models, key)
			errs = append(errs, m.r.Store().Delete(key))
		}
	}
	return errors.Join(errs...)
}

// alone tells that a card says nothing but which adapter it is of.
func alone(card []byte) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(card, &fields) == nil && len(fields) == 1
}

// Load tells the routers of an endpoint what a worker's rank is busy with. Without a value it only makes the publisher, so that routers find it before
// there is something to say. Errors: plane.ErrClosed, that nothing can be listened on, and those of the store.
func (m *Mailbox) Load(e *runtime.Endpoint, load *wire.ActiveLoad) error {
	p, err := m.loadPublisher(e)
	if err != nil || load.DecodeBlocks == nil && load.PrefillTokens == nil && load.KVUsedBlocks == nil {
		return err
	}
	return p.Publish(wire.AppendActiveLoad(nil, load))
}

func (m *Mailbox) loadPublisher(e *runtime.Endpoint) (*event.Publisher, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loads == nil {
		return nil, plane.ErrClosed
	}
	if p := m.loads[e.Name]; p != nil {
		return p, nil
	}
	p, err := event.NewPublisher(m.r.Link(), e.Name, wire.TopicMetrics, 0)
	if err == nil {
		m.loads[e.Name] = p
	}
	return p, err
}
