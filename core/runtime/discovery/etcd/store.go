package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// maxKey bounds a key's bytes.
const maxKey = 4096

// Store is a discovery.Store.
//
// Invariants, while there is a session and its work is done:
//
//	every record of own is on the server, under the lease, or foreign says that somebody else has its key;
//	every mirror is what the server has under its prefix, but for what is counted as ignored.
type Store struct {
	id      uint64 // of the process and of the lease
	opts    Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running owned.Group
	ended   chan struct{} // closed when nothing runs any more
	kick    chan struct{} // has room for one: there is work for the session
	since   time.Time     // of Open

	mu      sync.Mutex // guards the rest
	closed  bool
	changed chan struct{} // closed, and made anew, when what a call may wait for changes
	own     map[discovery.Key]*record
	gone    map[discovery.Key]struct{} // deleted here, and maybe not yet on the server
	mirrors map[name]*mirror
	settle  *time.Timer // shows what changed
	due     time.Time   // when it does; zero: it does not
	status  Status
	last    error // why there is no session, or what the server refuses
	fatal   bool  // last will not get better by trying
	slow    bool  // a call waited in vain since the last session began
}

var _ discovery.Remote = (*Store)(nil)

// record is one that this process wants stored.
type record struct {
	value   []byte
	written bool
	fresh   bool  // Create waits for it: that somebody else has the key is its error
	replace bool  // what is stored under the lease has to be replaced
	foreign bool  // somebody else has the key
	lost    int64 // the revision that deleted it last
	err     error // Create's
}

// Status tells how a store is.
type Status struct {
	Connected bool
	Err       error  // why it is not, or what the server refuses; before the first connection nil until Options.ConnectTimeout is over
	Sessions  uint64 // connections that were made
	Leases    uint64 // that were granted
	Ignored   uint64 // records that are not shown now: too large, or beyond the limits
	Foreign   uint64 // records of this process whose keys others have
}

// Open joins a deployment, and waits until it has, unless Options.Background is set. Errors: discovery.ErrInvalid (options), discovery.ErrUnreachable.
func Open(o Options) (*Store, error) {
	o, err := o.filled()
	if err != nil {
		return nil, err
	}
	s := &Store{
		id: rand.Uint64()>>1 | 1, opts: o, ended: make(chan struct{}), kick: make(chan struct{}, 1), since: time.Now(), changed: make(chan struct{}),
		own: make(map[discovery.Key]*record), gone: make(map[discovery.Key]struct{}), mirrors: make(map[name]*mirror),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(func() {
		defer close(s.ended)
		s.run()
	})
	if o.Background {
		return s, nil
	}
	err = s.await(o.ConnectTimeout, func() (bool, error) {
		if s.fatal {
			return false, s.unavailable("")
		}
		return s.status.Connected, nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// ID implements discovery.Store.
func (s *Store) ID() uint64 { return s.id }

// Status tells how it is.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	for _, m := range s.mirrors {
		status.Ignored += uint64(m.ignored)
	}
	for _, r := range s.own {
		if r.foreign {
			status.Foreign++
		}
	}
	switch {
	case s.last == nil:
	case status.Connected, status.Sessions > 0, s.fatal:
		status.Err = s.unavailable("")
	case time.Since(s.since) >= s.opts.ConnectTimeout:
		status.Err = s.unavailable(fmt.Sprintf(" could not be reached for %v", s.opts.ConnectTimeout))
	}
	return status
}

// Reach implements discovery.Remote: what is watched has been read, too.
func (s *Store) Reach() (connected bool, err error) {
	status := s.Status()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.mirrors {
		status.Connected = status.Connected && m.loaded
	}
	return status.Connected, status.Err
}

// unavailable says what is the matter. s.mu is held.
func (s *Store) unavailable(what string) error {
	if s.last == nil {
		return fmt.Errorf("%w: etcd at %s%s: no answer", discovery.ErrUnreachable, strings.Join(s.opts.Endpoints, ","), what)
	}
	return fmt.Errorf("%w: etcd at %s%s: %w", discovery.ErrUnreachable, strings.Join(s.opts.Endpoints, ","), what, s.last)
}

// errLater: the server has not got it yet, and the caller does not wait for that.
var errLater = errors.New("later")

// await waits until ok, which is called with s.mu held, is so or gives an error.
func (s *Store) await(wait time.Duration, ok func() (bool, error)) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		s.mu.Lock()
		done, err := ok()
		changed := s.changed
		later := s.opts.Background && (s.slow || !s.status.Connected && s.last != nil)
		closed := s.closed
		s.mu.Unlock()
		switch {
		case err != nil || done:
			return err
		case closed:
			return discovery.ErrClosed
		case later:
			return errLater
		}
		select {
		case <-changed:
		case <-timer.C:
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.opts.Background {
				s.slow = true
				return errLater
			}
			return s.unavailable(fmt.Sprintf(" does not answer within %v", wait))
		}
	}
}

// wait is how long a call may.
func (s *Store) wait() time.Duration {
	if s.opts.Background {
		return backgroundWait
	}
	return s.opts.Wait
}

// tell wakes calls that wait. s.mu is held.
func (s *Store) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// wake has the session look for work.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func check(k discovery.Key, value []byte) error {
	if n := len(k.String()); n > maxKey {
		return fmt.Errorf("%w: a key of %d bytes, at most %d", discovery.ErrInvalid, n, maxKey)
	}
	if len(value) > discovery.MaxRecordBytes {
		return fmt.Errorf("%w: record of %d bytes, at most %d", discovery.ErrInvalid, len(value), discovery.MaxRecordBytes)
	}
	return nil
}

// Create implements discovery.Store.
func (s *Store) Create(k discovery.Key, value []byte) error {
	if err := check(k, value); err != nil {
		return err
	}
	r := &record{value: bytes.Clone(value), fresh: true}
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return discovery.ErrClosed
	case s.own[k] != nil:
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", discovery.ErrExists, k)
	}
	s.own[k] = r
	delete(s.gone, k)
	s.mu.Unlock()
	s.wake()
	err := s.await(s.wait(), func() (bool, error) { return r.written, r.err })
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
	case r.err != nil:
		err = r.err
	case errors.Is(err, errLater):
		r.fresh = false
		return nil
	case s.own[k] == r: // the server may have it nevertheless
		delete(s.own, k)
		s.gone[k] = struct{}{}
		s.wake()
	}
	return err
}

// Replace implements discovery.Store.
func (s *Store) Replace(k discovery.Key, value []byte) error {
	if err := check(k, value); err != nil {
		return err
	}
	s.mu.Lock()
	r := s.own[k]
	switch {
	case s.closed:
		s.mu.Unlock()
		return discovery.ErrClosed
	case r == nil:
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", discovery.ErrNotFound, k)
	}
	old := r.value
	r.value, r.written, r.replace = bytes.Clone(value), false, true
	s.mu.Unlock()
	s.wake()
	err := s.await(s.wait(), func() (bool, error) { return r.written, nil })
	if errors.Is(err, errLater) {
		return nil
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !r.written {
			r.value = old // and it is written again: the server may have the other
		}
	}
	return err
}

// Delete implements discovery.Store. What the server cannot be told is deleted as soon as it can be.
func (s *Store) Delete(k discovery.Key) error {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return discovery.ErrClosed
	case s.own[k] == nil:
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", discovery.ErrNotFound, k)
	}
	foreign := s.own[k].foreign
	delete(s.own, k)
	if !foreign {
		s.gone[k] = struct{}{}
	}
	s.mu.Unlock()
	s.wake()
	err := s.await(s.wait(), func() (bool, error) {
		_, waits := s.gone[k]
		return !waits, nil
	})
	if errors.Is(err, errLater) {
		return nil
	}
	return err
}

// Watch implements discovery.Store.
func (s *Store) Watch(bucket, prefix string) (*discovery.View, error) {
	n := name{bucket, prefix}
	if err := check(discovery.Key{Bucket: bucket, Path: prefix}, nil); err != nil {
		return nil, err
	}
	v := discovery.NewView(prefix, func(v *discovery.View) { s.forget(n, v) })
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, discovery.ErrClosed
	}
	m := s.mirrors[n]
	if m == nil {
		m = newMirror(n)
		s.mirrors[n] = m
	}
	m.views[v] = struct{}{}
	v.Update(m.entries)
	s.mu.Unlock()
	s.wake()
	err := s.await(s.wait(), func() (bool, error) {
		if m.err != nil && !s.opts.Background {
			return false, fmt.Errorf("%w: %w", discovery.ErrUnreachable, m.err)
		}
		return m.loaded, nil
	})
	if err != nil && !errors.Is(err, errLater) {
		v.Close()
		return nil, err
	}
	return v, nil
}

// forget ends a view, and the mirror that was only for it.
func (s *Store) forget(n name, v *discovery.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mirrors[n]; m != nil {
		if _, there := m.views[v]; there {
			delete(m.views, v)
			if len(m.views) == 0 {
				delete(s.mirrors, n)
				s.wake()
			}
		}
	}
	v.Update(nil)
}

// Close implements discovery.Store. The server deletes everything with the lease; if it cannot be told, when the lease is over.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		if s.settle != nil {
			s.settle.Stop()
		}
		for _, m := range s.mirrors {
			for v := range m.views {
				v.Update(nil)
			}
		}
		s.tell()
	}
	s.mu.Unlock()
	s.cancel()
	var giveUp <-chan time.Time // never
	if s.opts.Background {
		giveUp = time.After(backgroundWait) // it goes on for closeTimeout at most
	}
	select {
	case <-s.ended:
	case <-giveUp:
	}
	return nil
}

// showIn has what changed in mirrors shown after a while, together with what changes meanwhile. s.mu is held.
func (s *Store) showIn(d time.Duration) {
	if s.closed {
		return
	}
	if s.settle == nil {
		s.settle = time.AfterFunc(d, owned.Guarded(s.show))
	} else if s.due.IsZero() || time.Now().Add(d).Before(s.due) {
		s.settle.Reset(d)
	} else {
		return
	}
	s.due = time.Now().Add(d)
}

// show shows views what changed, and takes away what was held for long enough.
func (s *Store) show() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.due = time.Time{}
	now := time.Now()
	for _, m := range s.mirrors {
		if next := m.release(now); !next.IsZero() {
			s.showIn(next.Sub(now))
		}
		m.show()
	}
}
