package discovery

import (
	"errors"
	"fmt"
	"iter"
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
	// Reach tells whether the server is within reach now, and has shown all that is watched. The error says why it is not, once it has not been for longer than it may, or
	// what it refuses.
	Reach() (connected bool, err error)
}

// View shows the records under a prefix. Its owner reads; the store that made it calls Update and Apply. It is safe for concurrent use.
type View struct {
	prefix string
	stop   func(*View)
	signal chan struct{}

	mu      sync.Mutex
	entries map[string][]byte   // by path
	news    map[string]struct{} // the paths that Take has not given yet as they are
}

// NewView is for stores: stop is called when the view is closed.
func NewView(prefix string, stop func(*View)) *View {
	return &View{prefix: prefix, stop: stop, signal: make(chan struct{}, 1), entries: map[string][]byte{}, news: map[string]struct{}{}}
}

// Entries are the records by path. The records must not be changed.
func (v *View) Entries() map[string][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.entries)
}

// Take gives each record that came or changed since it was taken the last time, and nil for one that is gone. The records must not be changed. It is
// for one goroutine at a time. What each panics about is given again.
func (v *View) Take(each func(path string, record []byte)) {
	type change struct {
		path   string
		record []byte
	}
	v.mu.Lock()
	changes := make([]change, 0, len(v.news))
	for path := range v.news {
		changes = append(changes, change{path, v.entries[path]})
	}
	v.mu.Unlock()
	for _, c := range changes {
		each(c.path, c.record)
		v.mu.Lock()
		if now := v.entries[c.path]; (now == nil) == (c.record == nil) && same(now, c.record) {
			delete(v.news, c.path)
		}
		v.mu.Unlock()
	}
}

// Changed tells, once, that there may be something to Take since it was told the last time.
func (v *View) Changed() <-chan struct{} { return v.signal }

// Close ends the view; it shows nothing any more. It is idempotent.
func (v *View) Close() { v.stop(v) }

// Update is for stores: it shows those of a bucket's records that begin with the prefix. The records must not change any more.
func (v *View) Update(bucket map[string][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := false
	for path := range v.entries {
		if _, there := bucket[path]; !there {
			changed = v.apply(bucket, path) || changed
		}
	}
	for path := range bucket {
		changed = v.apply(bucket, path) || changed
	}
	v.tell(changed)
}

// Apply is Update, where only some paths may have changed.
func (v *View) Apply(bucket map[string][]byte, paths iter.Seq[string]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := false
	for path := range paths {
		changed = v.apply(bucket, path) || changed
	}
	v.tell(changed)
}

// apply shows what a bucket has under a path, and tells whether that is something else than before. v.mu is held.
func (v *View) apply(bucket map[string][]byte, path string) bool {
	old := v.entries[path]
	record, there := bucket[path]
	if there && record == nil {
		record = []byte{} // nil stands for none
	}
	switch {
	case !strings.HasPrefix(path, v.prefix), (old == nil) == (record == nil) && same(old, record):
		return false
	case record == nil:
		delete(v.entries, path)
	default:
		v.entries[path] = record
	}
	v.news[path] = struct{}{}
	return true
}

// same tells whether records are the same, at a glance where they are one.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || string(a) == string(b))
}

// tell has Changed tell. v.mu is held.
func (v *View) tell(changed bool) {
	if !changed {
		return
	}
	select {
	case v.signal <- struct{}{}:
	default:
	}
}
