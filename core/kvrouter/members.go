package kvrouter

import (
	"errors"
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

// members keeps the router's workers in step with discovery. sync compares the whole with the whole.
//
// Invariant, after sync: the router's workers are the instances with a card of their own that fits the router; the stream of each of their ranks
// follows the one publisher that is registered for it where the card says, and nobody if there is none, or more than one.
type members struct {
	k      *KvRouter
	models *discovery.View
	scopes scopes

	syncing sync.Mutex // held by sync

	mu      sync.Mutex // guards the rest; sync alone writes
	workers map[uint64]*member
	changed chan struct{} // closed, and made anew, when workers change
	unfit   map[uint64]error
}

// member is a worker of the router.
type member struct {
	card     discovery.Card
	adapters []string // sorted
	streams  map[worker.Rank]*event.RankStream
}

// watch opens the views.
func (m *members) watch(k *KvRouter) (err error) {
	m.k, m.workers, m.changed = k, make(map[uint64]*member), make(chan struct{})
	m.scopes = newScopes(k.r.Store())
	if m.models, err = k.r.Store().Watch(discovery.Models, k.name.Prefix()); err != nil {
		return err
	}
	_, err = m.scopes.get(k.name)
	return err
}

func (m *members) close() {
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

// cards gives the instances' own cards, the names of the adapters that they have cards of, sorted, and why others cannot be read.
func (m *members) cards() (cards map[uint64]discovery.Card, adapters map[uint64][]string, unfit map[uint64]error) {
	cards, adapters, unfit = make(map[uint64]discovery.Card), make(map[uint64][]string), make(map[uint64]error)
	for path, record := range m.models.Entries() {
		model, err := discovery.DecodeModel(path, record)
		if err != nil {
			continue
		}
		if adapter, ok := model.Adapter(); ok {
			adapters[model.ID] = append(adapters[model.ID], adapter)
			continue
		}
		card, err := model.Parse()
		if err != nil {
			unfit[model.ID] = err
			continue
		}
		cards[model.ID] = card
	}
	for _, names := range adapters {
		slices.Sort(names)
	}
	return cards, adapters, unfit
}

// sync makes the router's workers what discovery says.
func (m *members) sync() {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	cards, adapters, unfit := m.cards()
	served := make(map[uint64]bool)
	for _, id := range m.k.client.IDs() {
		served[id] = true
	}
	workers, changed := maps.Clone(m.workers), false
	for id, w := range workers {
		card, ok := cards[id]
		if ok && served[id] && sameRanks(&w.card, &card) {
			continue
		}
		_ = m.k.router.RemoveWorker(id) // it is there, or the router is closed
		m.k.forget(id)
		delete(workers, id)
		changed = true
	}
	for id, card := range cards {
		w := workers[id]
		if !served[id] || w != nil && reflect.DeepEqual(w.card, card) && slices.Equal(w.adapters, adapters[id]) {
			continue
		}
		if w == nil {
			w = &member{streams: make(map[worker.Rank]*event.RankStream)}
		}
		w.card, w.adapters = card, adapters[id]
		if err := m.k.router.AddWorker(m.describe(id, w)); err != nil {
			unfit[id] = err
			if workers[id] != nil && !errors.Is(err, router.ErrClosed) {
				_ = m.k.router.RemoveWorker(id)
			}
			delete(workers, id)
			continue
		}
		workers[id] = w
		changed = true
	}
	m.follow(workers, unfit)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers, m.unfit = workers, unfit
	if changed {
		close(m.changed)
		m.changed = make(chan struct{})
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

// follow tells the streams of all ranks whom to follow. A scope that cannot be looked at leaves its workers without events, and says so in unfit.
func (m *members) follow(workers map[uint64]*member, unfit map[uint64]error) {
	used := map[discovery.Name]bool{m.k.name: true}
	for _, w := range workers {
		used[m.state(w)] = true
	}
	m.scopes.keep(func(name discovery.Name) bool { return used[name] })
	found := make(map[discovery.Name]map[worker.Rank]*event.Source)
	for id, w := range workers {
		name := m.state(w)
		if _, looked := found[name]; !looked {
			found[name] = nil
			if s, err := m.scopes.get(name); err != nil {
				unfit[id] = err
			} else {
				found[name] = s.publishers()
			}
		}
		for rank, stream := range w.streams {
			stream.Follow(found[name][rank])
		}
	}
}
