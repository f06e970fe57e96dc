package file

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// DefaultTTL is Dynamo's: how long a file lives that nobody renews.
const DefaultTTL = 10 * time.Second

// maxFileName is what file systems allow.
const maxFileName = 255

const (
	lockWait   = 10 * time.Second
	lockRetry  = 2 * time.Millisecond
	settleTime = 2 * time.Millisecond // changes that come so close together are read at once
)

// Options of a Store.
type Options struct {
	TTL time.Duration // 0: DefaultTTL, which Dynamo's processes assume
}

// Store is a discovery.Store.
type Store struct {
	root     string
	id       uint64
	ttl      time.Duration
	lockWait time.Duration
	room     int64 // bytes of a bucket that are kept
	watcher  *fsnotify.Watcher
	stop     chan struct{}
	running  owned.Group
	once     sync.Once
	err      error // of the first Close

	writing sync.Mutex // outermost: one write at a time, so that own and the files agree

	mu      sync.Mutex // guards the rest
	closed  bool
	own     map[discovery.Key][]byte
	buckets map[string]*bucket // those that somebody watches
}

var _ discovery.Store = (*Store)(nil)

// Open uses a directory, which is made if need be. Errors: discovery.ErrUnavailable.
func Open(root string, o Options) (*Store, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("%w: %w", discovery.ErrUnavailable, err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("%w: inotify: %w", discovery.ErrUnavailable, err)
	}
	s := &Store{
		root: root, id: discovery.RandomID(), ttl: cmp.Or(o.TTL, DefaultTTL), lockWait: lockWait, room: MaxBucketBytes, watcher: watcher, stop: make(chan struct{}),
		own: make(map[discovery.Key][]byte), buckets: make(map[string]*bucket),
	}
	s.running.Keep(s.stop, s.run)
	return s, nil
}

// ID implements discovery.Store.
func (s *Store) ID() uint64 { return s.id }

func (s *Store) dir(bucket string) string { return filepath.Join(s.root, filepath.FromSlash(bucket)) }

// fileName escapes everything but letters and digits.
func fileName(path string) string { return discovery.Escape(path, func(byte) bool { return false }) }

// Create implements discovery.Store.
func (s *Store) Create(k discovery.Key, value []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.isClosed() {
		return discovery.ErrClosed
	}
	if err := s.write(k, value, false); err != nil {
		return err
	}
	s.keep(k, bytes.Clone(value))
	return nil
}

// Replace implements discovery.Store.
func (s *Store) Replace(k discovery.Key, value []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.owns(k) {
		return fmt.Errorf("%w: %s", discovery.ErrNotFound, k)
	}
	if err := s.write(k, value, true); err != nil {
		return err
	}
	s.keep(k, bytes.Clone(value))
	return nil
}

// Delete implements discovery.Store.
func (s *Store) Delete(k discovery.Key) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.owns(k) {
		return fmt.Errorf("%w: %s", discovery.ErrNotFound, k)
	}
	if err := s.remove(k); err != nil {
		return err
	}
	s.keep(k, nil)
	return nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *Store) owns(k discovery.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own[k] != nil
}

// keep notes what is stored under a key; nil: nothing.
func (s *Store) keep(k discovery.Key, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == nil {
		delete(s.own, k)
	} else {
		s.own[k] = value
	}
}

// write puts a file in its place, whole. s.writing is held.
func (s *Store) write(k discovery.Key, value []byte, replace bool) error {
	name := fileName(k.Path)
	switch {
	case len(name) > maxFileName:
		return fmt.Errorf("%w: the file name of %s would have %d bytes, at most %d", discovery.ErrInvalid, k, len(name), maxFileName)
	case len(value) > discovery.MaxRecordBytes:
		return fmt.Errorf("%w: record of %d bytes, at most %d", discovery.ErrInvalid, len(value), discovery.MaxRecordBytes)
	}
	return s.locked(k.Bucket, func(dir string) error {
		temporary, target := filepath.Join(dir, fmt.Sprintf("%s%016x", temporaryPrefix, rand.Uint64())), filepath.Join(dir, name)
		defer os.Remove(temporary)
		if err := os.WriteFile(temporary, value, 0o644); err != nil {
			return err
		}
		if replace {
			return os.Rename(temporary, target)
		}
		err := os.Link(temporary, target)
		if errors.Is(err, os.ErrExist) {
			if !s.dead(target) {
				return fmt.Errorf("%w: %s", discovery.ErrExists, k)
			}
			return os.Rename(temporary, target)
		}
		return err
	})
}

// dead tells whether a file's lease is over.
func (s *Store) dead(file string) bool {
	info, err := os.Lstat(file)
	return err == nil && time.Since(info.ModTime()) > s.ttl
}

func (s *Store) remove(k discovery.Key) error {
	return s.locked(k.Bucket, func(dir string) error {
		err := os.Remove(filepath.Join(dir, fileName(k.Path)))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// locked runs body with the lock of a bucket, which Dynamo's processes take too.
func (s *Store) locked(bucket string, body func(dir string) error) error {
	err := s.tryLocked(bucket, s.lockWait, body)
	for _, own := range []error{discovery.ErrExists, discovery.ErrInvalid, discovery.ErrUnavailable} {
		if err == nil || errors.Is(err, own) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", discovery.ErrUnavailable, err)
}

func (s *Store) tryLocked(bucket string, wait time.Duration, body func(dir string) error) error {
	dir := s.dir(bucket)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() // gives the lock back
	for deadline := time.Now().Add(wait); ; time.Sleep(lockRetry) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return body(dir)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%w: the lock of %s is held by another process for %v", discovery.ErrUnavailable, dir, wait)
		}
	}
}

// renew renews the leases of what is stored, and writes again what somebody deleted.
func (s *Store) renew() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	own := make(map[discovery.Key][]byte, len(s.own))
	for k, value := range s.own {
		own[k] = value
	}
	s.mu.Unlock()
	now := time.Now()
	for k, value := range own {
		err := os.Chtimes(filepath.Join(s.dir(k.Bucket), fileName(k.Path)), now, now)
		if errors.Is(err, os.ErrNotExist) {
			_ = s.write(k, value, false) // it is tried again at the next renewal
		}
	}
}

// Watch implements discovery.Store.
func (s *Store) Watch(name, prefix string) (*discovery.View, error) {
	if err := os.MkdirAll(s.dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("%w: %w", discovery.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, discovery.ErrClosed
	}
	b := s.buckets[name]
	if b == nil {
		if err := s.watcher.Add(s.dir(name)); err != nil {
			return nil, fmt.Errorf("%w: inotify: %w", discovery.ErrUnavailable, err)
		}
		b = newBucket(s.dir(name))
		s.buckets[name] = b
	}
	s.scan(name, b)
	v := discovery.NewView(prefix, func(v *discovery.View) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(b.views, v)
		v.Update(nil)
	})
	b.views[v] = struct{}{}
	v.Update(b.shown)
	return v, nil
}

// Close implements discovery.Store.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.stop)
		s.err = s.watcher.Close()
		s.running.Wait()
		s.writing.Lock()
		defer s.writing.Unlock()
		s.mu.Lock()
		s.closed = true
		own := s.own
		s.own = nil
		for _, b := range s.buckets {
			for v := range b.views {
				v.Update(nil)
			}
			clear(b.views)
		}
		s.mu.Unlock()
		for k := range own {
			s.err = errors.Join(s.err, s.remove(k))
		}
	})
	return s.err
}

// run renews, and reads again what changed.
func (s *Store) run() {
	renewal := time.NewTicker(max(s.ttl/3, time.Millisecond))
	defer renewal.Stop()
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	armed := false
	for {
		expiry.Reset(s.untilExpiry())
		select {
		case <-s.stop:
			return
		case <-renewal.C:
			s.renew()
			s.rewatch()
		case e, ok := <-s.watcher.Events:
			if !ok {
				return
			}
			if s.changed(e) && !armed {
				settle.Reset(settleTime)
				armed = true
			}
		case _, ok := <-s.watcher.Errors: // events were lost
			if !ok {
				return
			}
			s.rescan(true)
		case <-settle.C:
			armed = false
			s.rescan(false)
		case <-expiry.C:
			s.rescan(false)
		}
	}
}

// changed notes what an event is about, and tells whether it matters.
func (s *Store) changed(e fsnotify.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.buckets {
		if filepath.Dir(e.Name) == b.dir {
			if _, known := b.files[filepath.Base(e.Name)]; known && e.Op == fsnotify.Chmod {
				return false // a renewal
			}
			delete(b.files, filepath.Base(e.Name))
			return true
		}
	}
	return true // a bucket itself
}

// rewatch watches directories again that were deleted and made anew, and reads them all: inotify may have told of them nothing.
func (s *Store) rewatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.buckets {
		if os.MkdirAll(b.dir, 0o755) == nil {
			_ = s.watcher.Add(b.dir) // it is tried again
		}
		s.scan(name, b)
	}
}

// rescan reads all buckets again; everything of them if nothing that is known can be trusted.
func (s *Store) rescan(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.buckets {
		if all {
			clear(b.files)
		}
		s.scan(name, b)
	}
}

func (s *Store) untilExpiry() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := time.Hour
	for _, b := range s.buckets {
		if !b.expiry.IsZero() {
			next = min(next, time.Until(b.expiry)+time.Millisecond)
		}
	}
	return max(next, time.Millisecond)
}
