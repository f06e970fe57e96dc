package kvrouter

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// members keeps the router's workers in step with discovery. sync looks at what changed, and again at what could not be done.
//
// Invariant, after sync: the router's workers are the instances with a card of their own that fits the router; the stream of each of their ranks
// follows the one publisher that is registered for it where the card says, and nobody if there is none, or more than one.
type members struct {
	k      *KvRouter
	models *discovery.View
	scopes scopes

	syncing sync.Mutex // held by sync, for the next five
	closed  bool
	cards   map[uint64]*cards
	paths   map[string]uint64 // of the records of cards, to the instance
	served  map[uint64]struct{}
	dirty   map[uint64]struct{} // instances that are to be looked at

	mu      sync.Mutex // guards the rest; sync alone writes
	workers map[uint64]*member
	changed chan struct{} // closed, and made anew, when workers change
	unfit   map[uint64]error
}

// cards are the model cards of an instance.
type cards struct {
	own      *discovery.Card
	err      error             // why its own cannot be read
	adapters map[string]string // their names, by the path of the card
}

// member is a worker of the router.
type member struct {
	card     discovery.Card
	adapters []string // sorted
	streams  map[worker.Rank]*event.RankStream
}

// watch opens the views.
func (m *members) watch(k *KvRouter) (err error) {
	m.k, m.workers, m.changed, m.unfit = k, make(map[uint64]*member), make(chan struct{}), make(map[uint64]error)
	m.cards, m.paths = make(map[uint64]*cards), make(map[string]uint64)
	m.served, m.dirty = make(map[uint64]struct{}), make(map[uint64]struct{})
	m.scopes = newScopes(k.r.Store())
	if m.models, err = k.r.Store().Watch(discovery.Models, k.name.Prefix()); err != nil {
		return err
	}
	_, err = m.scopes.get(k.name)
	return err
}

func (m *members) close() {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	m.closed = true
	if m.models != nil {
		m.models.Close()
	}
	m.scopes.keep(func(discovery.Name) bool { return false })
}

// run follows what changes. The views are in no order among each other: whichever tells, all are looked at.
func (m *members) run() {
	for {
		instances := m.k.client.Changed()
		m.sync()
		select {
		case <-m.k.stop:
			return
		case <-instances:
		case <-m.models.Changed():
		case <-m.scopes.told:
		}
	}
}

// count gives the number of workers, and a channel that is closed when it may be another.
func (m *members) count() (changed <-chan struct{}, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed, len(m.workers)
}

func (m *members) has(id uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[id] != nil
}

// Unfit tells why instances with a model card are no workers, by id.
func (k *KvRouter) Unfit() map[uint64]error {
	k.members.mu.Lock()
	defer k.members.mu.Unlock()
	return maps.Clone(k.members.unfit)
}

// take takes the record of a model card that changed; nil: it is gone.
func (m *members) take(path string, record []byte) {
	if id, known := m.paths[path]; known {
		c := m.cards[id]
		if _, is := c.adapters[path]; is {
			delete(c.adapters, path)
		} else {
			c.own, c.err = nil, nil
		}
		if c.own == nil && c.err == nil && len(c.adapters) == 0 {
			delete(m.cards, id)
		}
		delete(m.paths, path)
		m.dirty[id] = struct{}{}
	}
	model, err := discovery.DecodeModel(path, record)
	if err != nil {
		return
	}
	c := m.cards[model.ID]
	if c == nil {
		c = &cards{adapters: make(map[string]string)}
		m.cards[model.ID] = c
	}
	if adapter, ok := model.Adapter(); ok {
		c.adapters[path] = adapter
	} else if card, err := model.Parse(); err == nil {
		c.own = &card
	} else {
		c.err = err
	}
	m.paths[path] = model.ID
	m.dirty[model.ID] = struct{}{}
}

// sync makes the router's workers what discovery says.
func (m *members) sync() {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	if m.closed {
		return
	}
	m.models.Take(m.take)
	m.k.client.Take(func(id uint64, there bool) {
		if delete(m.served, id); there {
			m.served[id] = struct{}{}
		}
		m.dirty[id] = struct{}{}
	})
	for id := range m.unfit { // room may have been made for it
		m.dirty[id] = struct{}{}
	}
	changed := false
	for id := range m.dirty {
		changed = m.settle(id) || changed
	}
	m.follow()
	clear(m.dirty)
	if changed {
		m.mu.Lock()
		defer m.mu.Unlock()
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// settle makes one worker what discovery says, and tells whether that is something else than before.
func (m *members) settle(id uint64) (changed bool) {
	c, w := m.cards[id], m.workers[id]
	_, served := m.served[id]
	if c == nil {
		c = &cards{}
	}
	if w != nil && (c.own == nil || !served || !sameRanks(&w.card, c.own)) {
		_ = m.k.router.RemoveWorker(id) // it is there, or the router is closed
		m.k.forget(id)
		w, changed = nil, true
		m.put(id, nil, nil)
	}
	adapters := slices.Sorted(maps.Values(c.adapters))
	switch {
	case c.own == nil || !served:
		m.put(id, nil, c.err)
		return changed
	case w != nil && reflect.DeepEqual(w.card, *c.own) && slices.Equal(w.adapters, adapters):
		m.put(id, w, nil)
		return changed
	}
	was := w != nil
	if !was {
		w = &member{streams: make(map[worker.Rank]*event.RankStream)}
	}
	w.card, w.adapters = *c.own, adapters
	if err := m.k.router.AddWorker(m.describe(id, w)); err != nil {
		if was {
			_ = m.k.router.RemoveWorker(id) // as above
			m.k.forget(id)
		}
		m.put(id, nil, err)
		return was || changed
	}
	m.put(id, w, nil)
	return true
}

// put says that an instance is a worker, or why it is none, nil if nothing is wrong with it.
func (m *members) put(id uint64, w *member, unfit error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.workers, id); w != nil {
		m.workers[id] = w
	}
	if delete(m.unfit, id); unfit != nil {
		m.unfit[id] = unfit
	}
}

// sameRanks tells whether a worker with one card can become one with the other, and keep what is known of it.
func sameRanks(a, b *discovery.Card) bool {
	x, y := &a.Runtime, &b.Runtime
	return a.BlockSize == b.BlockSize && x.DataParallelStart == y.DataParallelStart && x.DataParallelSize == y.DataParallelSize &&
		x.EnableLocalIndexer == y.EnableLocalIndexer
}

func (m *members) describe(id uint64, w *member) router.Worker {
	c := &w.card.Runtime
	return router.Worker{
		ID: id, DPStart: c.DataParallelStart, DPSize: c.DataParallelSize, BlockSize: int(w.card.BlockSize),
		MaxNumBatchedTokens: c.MaxNumBatchedTokens, TotalKVBlocks: c.TotalKVBlocks, Taints: c.Taints, Adapters: w.adapters,
		Stream: func(rank uint32) feed.Stream {
			r := worker.Rank{ID: id, DPRank: rank}
			w.streams[r] = event.NewRankStream(m.k.r.Link(), r, c.EnableLocalIndexer, m.k.ask)
			return w.streams[r]
		},
	}
}

// state is where a worker's events are published.
func (m *members) state(w *member) discovery.Name {
	if named := w.card.Runtime.KVStateEndpoint; named != nil {
		return *named
	}
	return m.k.name
}

// follow tells the streams of ranks whom to follow, if that may be another one now. A scope that cannot be looked at leaves its workers without events,
// and says so in unfit.
func (m *members) follow() {
	if len(m.scopes.open) > 1 { // some cards name others than the endpoint's own
		used := map[discovery.Name]bool{m.k.name: true}
		for _, w := range m.workers {
			used[m.state(w)] = true
		}
		m.scopes.keep(func(name discovery.Name) bool { return used[name] })
	}
	for id := range m.dirty {
		w := m.workers[id]
		if w == nil {
			continue
		}
		s, err := m.scopes.get(m.state(w))
		if err != nil {
			m.put(id, w, err)
		}
		for rank, stream := range w.streams {
			if err == nil {
				s.dirty[rank] = struct{}{}
			} else {
				stream.Follow(nil)
			}
		}
	}
	for name, s := range m.scopes.open {
		s.look()
		for rank := range s.dirty {
			if w := m.workers[rank.ID]; w != nil && m.state(w) == name && w.streams[rank] != nil {
				w.streams[rank].Follow(s.publisher(rank))
			}
			delete(s.dirty, rank)
		}
	}
}
