package discovery

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
)

var (
	// ErrInvalid: a name or a record cannot be what it is meant to be. Nothing was stored.
	ErrInvalid = errors.New("invalid in discovery")
	// ErrExists: there is a record under the key already. Nothing changed.
	ErrExists = errors.New("record exists")
	// ErrNotFound: there is no record under the key.
	ErrNotFound = errors.New("no such record")
	// ErrUnavailable: the store cannot be read or written now.
	ErrUnavailable = errors.New("discovery is not available")
	// ErrUnreachable: the server that keeps the records does not answer, or refuses. It is an ErrUnavailable.
	ErrUnreachable = fmt.Errorf("%w", ErrUnavailable)
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("discovery is closed")
)

// Store is where records are. All methods are safe for concurrent use. What may take time takes at most ten seconds.
type Store interface {
	// ID is this process's id; it does not change.
	ID() uint64
	// Create stores a record under a key that is free (ErrExists), until Close, or until the process dies.
	Create(k Key, value []byte) error
	// Replace stores another record under a key that Create made (ErrNotFound).
	Replace(k Key, value []byte) error
	// Delete deletes a record that Create made (ErrNotFound).
	Delete(k Key) error
	// Watch shows what is in a bucket under paths that begin with prefix. The first state is there when it returns.
	Watch(bucket, prefix string) (*View, error)
	// Close deletes what was created and ends all views. It is idempotent.
	Close() error
}

// Remote is a Store whose records a server keeps.
type Remote interface {
	Store
	// Reach tells whether the server is within reach now. The error says why it is not, once it has not been for longer than it may, or
	// what it refuses.
	Reach() (connected bool, err error)
}

// View shows the records under a prefix. Its owner reads; the store that made it calls Update. It is safe for concurrent use.
type View struct {
	prefix string
	stop   func(*View)
	signal chan struct{}

	mu      sync.Mutex
	entries map[string][]byte // by path; replaced, never changed
}

// NewView is for stores: stop is called when the view is closed.
func NewView(prefix string, stop func(*View)) *View {
	return &View{prefix: prefix, stop: stop, signal: make(chan struct{}, 1), entries: map[string][]byte{}}
}

// Entries are the records by path. Neither the map nor the records may be changed.
func (v *View) Entries() map[string][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.entries
}

// Changed tells, once, that Entries may have changed since it was told the last time.
func (v *View) Changed() <-chan struct{} { return v.signal }

// Close ends the view; it shows nothing any more. It is idempotent.
func (v *View) Close() { v.stop(v) }

// Update is for stores: it shows those of a bucket's records that begin with the prefix. The records must not change any more.
func (v *View) Update(bucket map[string][]byte) {
	entries := make(map[string][]byte)
	for path, value := range bucket {
		if strings.HasPrefix(path, v.prefix) {
			entries[path] = value
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if maps.EqualFunc(v.entries, entries, func(a, b []byte) bool { return string(a) == string(b) }) {
		return
	}
	v.entries = entries
	select {
	case v.signal <- struct{}{}:
	default:
	}
}
