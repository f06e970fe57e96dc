package etcd

import (
	"maps"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Bounds of what is under a prefix that is watched.
const (
	MaxRecords = 100_000
	MaxBytes   = 256 << 20
)

// settleTime: changes that come so close together are shown at once. A worker that is replaced changes five records, in 2 ms.
const settleTime = 5 * time.Millisecond

type name struct{ bucket, prefix string }

func (n name) key() string { return n.bucket + "/" + n.prefix }

// end is the first key that does not begin with the prefix, which has a byte that is not 0xff.
func (n name) end() string {
	k := []byte(n.key())
	for i := len(k) - 1; ; i-- {
		if k[i] < 0xff {
			k[i]++
			return string(k[:i+1])
		}
	}
}

// mirror is what the server has under a prefix. Store.mu guards it.
type mirror struct {
	name
	views   map[*discovery.View]struct{}
	loaded  bool                // it was read once
	news    map[string]struct{} // paths that the views do not show yet as they are
	entries map[string][]byte
	bytes   int                  // of entries
	held    map[string]time.Time // those of them that the server has no more since a reconnect, and until when they are shown
	ignored int                  // records that are no entries
	full    bool                 // some of them because there was no room
	err     error                // why it cannot be read

	watch int64 // the session's; 0: it is to be read
}

func newMirror(n name) *mirror {
	return &mirror{
		name: n, views: make(map[*discovery.View]struct{}), news: make(map[string]struct{}), entries: make(map[string][]byte),
		held: make(map[string]time.Time),
	}
}

func (m *mirror) String() string { return m.key() }

func (m *mirror) path(key []byte) (string, bool) { return strings.CutPrefix(string(key), m.bucket+"/") }

// put takes a record; known: the server had one under its key before.
func (m *mirror) put(path string, value []byte, known bool) {
	old, there := m.entries[path]
	if there {
		m.bytes -= len(old)
		delete(m.entries, path)
	} else if known && m.ignored > 0 {
		m.ignored--
	}
	delete(m.held, path)
	m.news[path] = struct{}{}
	if len(value) > discovery.MaxRecordBytes || len(m.entries) >= MaxRecords || m.bytes+len(value) > MaxBytes {
		m.ignored++
		m.full = m.full || len(value) <= discovery.MaxRecordBytes
		return
	}
	m.entries[path] = value
	m.bytes += len(value)
}

// remove drops a record.
func (m *mirror) remove(path string) {
	old, there := m.entries[path]
	if !there {
		m.ignored = max(m.ignored-1, 0)
		return
	}
	m.bytes -= len(old)
	delete(m.entries, path)
	delete(m.held, path)
	m.news[path] = struct{}{}
	if m.full && len(m.entries) < MaxRecords*9/10 && m.bytes < MaxBytes*9/10 {
		m.watch = 0 // there is room for what was ignored
	}
}

// show has the views show what changed.
func (m *mirror) show() {
	for v := range m.views {
		v.Apply(m.entries, maps.Keys(m.news))
	}
	clear(m.news)
}

// replace takes all that the server has. What it has no more is held until then, unless that is zero.
func (m *mirror) replace(kvs []*mvccpb.KeyValue, ignored int, until time.Time) {
	old := m.entries
	for path := range old {
		m.news[path] = struct{}{}
	}
	m.entries, m.bytes, m.ignored, m.full = make(map[string][]byte, len(kvs)), 0, ignored, ignored > 0
	clear(m.held)
	for _, kv := range kvs {
		if path, ok := m.path(kv.Key); ok {
			m.put(path, kv.Value, false)
		}
	}
	if until.IsZero() {
		return
	}
	for path, value := range old {
		if _, there := m.entries[path]; !there && len(m.entries) < MaxRecords && m.bytes+len(value) <= MaxBytes {
			m.entries[path] = value
			m.bytes += len(value)
			m.held[path] = until
		}
	}
}

// release drops what was held for long enough, and tells when there is more to do; zero: never.
func (m *mirror) release(now time.Time) (next time.Time) {
	for path, until := range m.held {
		if !now.Before(until) {
			m.bytes -= len(m.entries[path])
			delete(m.entries, path)
			delete(m.held, path)
			m.news[path] = struct{}{}
		} else if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	return next
}
