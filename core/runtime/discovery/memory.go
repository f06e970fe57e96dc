package discovery

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// Memory is a Store for one process: who shares it finds each other.
type Memory struct {
	id uint64

	mu      sync.Mutex // guards the rest
	closed  bool
	buckets map[string]map[string][]byte
	views   map[*View]string // to the bucket
}

var _ Store = (*Memory)(nil)

// NewMemory gives an empty store with an id drawn at random.
func NewMemory() *Memory {
	return &Memory{id: RandomID(), buckets: make(map[string]map[string][]byte), views: make(map[*View]string)}
}

// RandomID draws an id, which is not 0.
func RandomID() uint64 {
	for {
		if id := rand.Uint64(); id != 0 {
			return id
		}
	}
}

// ID implements Store.
func (m *Memory) ID() uint64 { return m.id }

// Create implements Store.
func (m *Memory) Create(k Key, value []byte) error { return m.put(k, value, false) }

// Replace implements Store.
func (m *Memory) Replace(k Key, value []byte) error { return m.put(k, value, true) }

func (m *Memory) put(k Key, value []byte, replace bool) error {
	return m.change(k, func(b map[string][]byte) error {
		if _, there := b[k.Path]; there != replace {
			return existence(k, there)
		}
		b[k.Path] = bytes.Clone(value)
		return nil
	})
}

func existence(k Key, there bool) error {
	if there {
		return fmt.Errorf("%w: %s", ErrExists, k)
	}
	return fmt.Errorf("%w: %s", ErrNotFound, k)
}

// Delete implements Store.
func (m *Memory) Delete(k Key) error {
	return m.change(k, func(b map[string][]byte) error {
		if _, there := b[k.Path]; !there {
			return existence(k, there)
		}
		delete(b, k.Path)
		return nil
	})
}

func (m *Memory) change(k Key, change func(bucket map[string][]byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	b := m.buckets[k.Bucket]
	if b == nil {
		b = make(map[string][]byte)
		m.buckets[k.Bucket] = b
	}
	if err := change(b); err != nil {
		return err
	}
	for v, bucket := range m.views {
		if bucket == k.Bucket {
			v.Apply(b, slices.Values([]string{k.Path}))
		}
	}
	return nil
}

// Watch implements Store.
func (m *Memory) Watch(bucket, prefix string) (*View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	v := NewView(prefix, func(v *View) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.views, v)
		v.Update(nil)
	})
	m.views[v] = bucket
	v.Update(m.buckets[bucket])
	return v, nil
}

// Close implements Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for v := range m.views {
		v.Update(nil)
	}
	clear(m.buckets)
	clear(m.views)
	return nil
}
