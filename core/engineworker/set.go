package engineworker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime"
)

// Set is the engines that serve one endpoint, from code and from a file. All methods are safe for concurrent use.
type Set struct {
	at      *runtime.Endpoint
	opts    Options
	ctx     context.Context
	cancel  context.CancelFunc
	running owned.Group // engines that end, and those that wait for their place

	mu      sync.Mutex // guards the rest
	closed  bool
	entries map[uint64]*entry
	ending  map[uint64]<-chan struct{} // of those that left, until their place is free
	file    *fleet.File                // nil: none is watched
}

// entry is an engine of a Set. Its fields change under Set.mu.
type entry struct {
	spec   fleet.Spec
	file   bool    // the file's
	worker *Worker // nil: the one before it has not ended yet, or it could not start
	err    error   // why it could not
	gone   bool
}

// NewSet gives an empty one.
func NewSet(at *runtime.Endpoint, o Options) *Set {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Set{at: at, opts: o, entries: make(map[uint64]*entry), ending: make(map[uint64]<-chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Add makes an engine a worker of the endpoint, and gives its id. Errors: those of Start, fleet.ErrDuplicate.
func (s *Set) Add(spec fleet.Spec) (uint64, error) {
	if err := spec.Normal(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, fleet.ErrClosed
	}
	if old := s.entries[spec.ID]; old != nil {
		return 0, fmt.Errorf("%w: worker %d is %s", fleet.ErrDuplicate, spec.ID, old.spec.URL)
	}
	if len(s.entries) >= fleet.MaxEngines {
		return 0, fmt.Errorf("%w: more than %d engines", fleet.ErrInvalid, fleet.MaxEngines)
	}
	if s.ending[spec.ID] != nil {
		s.begin(spec, false)
		return spec.ID, nil
	}
	w, err := Start(s.at, spec, s.opts)
	if err != nil {
		return 0, err
	}
	s.entries[spec.ID] = &entry{spec: spec, worker: w}
	return spec.ID, nil
}

// Remove ends an engine's part in the endpoint; with grace after the requests that run. It does not wait for that. Errors: fleet.ErrNotFound.
func (s *Set) Remove(id uint64, grace bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	en := s.entries[id]
	if en == nil {
		return fmt.Errorf("%w: worker %d", fleet.ErrNotFound, id)
	}
	s.end(en, grace)
	return nil
}

// end takes an entry out. s.mu is held.
func (s *Set) end(en *entry, grace bool) {
	id, w := en.spec.ID, en.worker
	delete(s.entries, id)
	if en.gone = true; w == nil {
		return
	}
	w.engine.Drain() // nothing new, while it ends
	free := make(chan struct{})
	s.ending[id] = free
	s.running.Go(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.ending[id] == free {
				delete(s.ending, id)
			}
			close(free)
		}()
		w.Close(grace)
	})
}

// Drain says that an engine should get no more requests, or that it should again. Errors: fleet.ErrNotFound.
func (s *Set) Drain(id uint64, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	en := s.entries[id]
	if en == nil {
		return fmt.Errorf("%w: worker %d", fleet.ErrNotFound, id)
	}
	en.drain(on)
	return nil
}

func (en *entry) drain(on bool) {
	if en.spec.Draining = on; en.worker == nil {
		return
	}
	if on {
		en.worker.engine.Drain()
	} else {
		en.worker.engine.Resume()
	}
}

// Watch takes the engines of a file besides, and follows it (fleet.Follow). Again, of the same file, it has no effect. Errors: fleet.ErrInvalid (also: it watches another), and those of reading.
func (s *Set) Watch(path string) error {
	s.mu.Lock()
	closed, watched := s.closed, s.file
	s.mu.Unlock()
	switch {
	case closed:
		return fleet.ErrClosed
	case watched != nil && watched.Status().Path == path:
		return nil
	case watched != nil:
		return fmt.Errorf("%w: %s is watched already", fleet.ErrInvalid, watched.Status().Path)
	}
	file, err := fleet.Follow(s.ctx, path, time.Second, s.opts.Log, s.apply)
	if err != nil {
		return err
	}
	s.mu.Lock()
	kept := !s.closed && s.file == nil
	if kept {
		s.file = file
	}
	s.mu.Unlock()
	if !kept {
		file.Close() // not under mu, which apply wants
		return fleet.ErrClosed
	}
	return nil
}

// apply makes the file's engines those described.
func (s *Set) apply(specs []fleet.Spec) error {
	want := make(map[uint64]fleet.Spec, len(specs))
	for _, spec := range specs {
		if old, twice := want[spec.ID]; twice {
			return fmt.Errorf("%w: worker %d is %s and %s", fleet.ErrDuplicate, spec.ID, old.URL, spec.URL)
		}
		want[spec.ID] = spec
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fleet.ErrClosed
	}
	for id, spec := range want {
		if en := s.entries[id]; en != nil && !en.file {
			return fmt.Errorf("%w: worker %d is %s, which the file has not added", fleet.ErrDuplicate, id, spec.URL)
		}
	}
	for id, en := range s.entries {
		spec, stays := want[id]
		drain := spec.Draining
		spec.Draining = en.spec.Draining
		switch {
		case !en.file:
		case !stays || !reflect.DeepEqual(spec, en.spec):
			s.end(en, true)
		case drain != en.spec.Draining:
			en.drain(drain)
		}
	}
	for id, spec := range want {
		if s.entries[id] == nil {
			s.begin(spec, true)
		}
	}
	return nil
}

// begin starts an engine when its place is free. s.mu is held.
func (s *Set) begin(spec fleet.Spec, file bool) {
	en := &entry{spec: spec, file: file}
	s.entries[spec.ID] = en
	s.running.Go(func() {
		for {
			s.mu.Lock()
			free := s.ending[spec.ID]
			if free == nil {
				break
			}
			s.mu.Unlock()
			<-free
		}
		defer s.mu.Unlock()
		if en.gone || s.closed {
			return
		}
		if en.worker, en.err = Start(s.at, en.spec, s.opts); en.err != nil {
			s.opts.Log.Error("engine", "url", spec.URL, "worker_id", spec.ID, "error", en.err.Error())
		}
	})
}

// State is a Set as it is.
type State struct {
	Engines []Info            `json:"engines"` // by worker id
	File    *fleet.FileStatus `json:"file"`    // null: none is watched
}

// State tells of all engines.
func (s *Set) State() State {
	s.mu.Lock()
	entries := make([]entry, 0, len(s.entries))
	for _, en := range s.entries {
		entries = append(entries, *en)
	}
	file := s.file
	s.mu.Unlock()
	st := State{Engines: make([]Info, 0, len(entries))}
	for i := range entries {
		en := &entries[i]
		if en.worker != nil {
			st.Engines = append(st.Engines, en.worker.Info())
			continue
		}
		why := "it waits until the one before it has ended"
		if en.err != nil {
			why = en.err.Error()
		}
		st.Engines = append(st.Engines, Info{
			WorkerID: en.spec.ID, Endpoint: s.at.Name.String(), URL: en.spec.URL, Error: why, DPStart: en.spec.DPStart, DPSize: max(en.spec.DPSize, 1),
			Status: engine.Status{State: engine.Starting},
		})
	}
	slices.SortFunc(st.Engines, func(a, b Info) int { return cmp.Compare(a.WorkerID, b.WorkerID) })
	if file != nil {
		status := file.Status()
		st.File = &status
	}
	return st
}

// Close ends all engines; requests that run are cut off. It is idempotent.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	file := s.file
	s.mu.Unlock()
	s.cancel()
	if file != nil {
		file.Close() // which may wait for apply, and so for mu
	}
	s.mu.Lock()
	for _, en := range s.entries {
		s.end(en, false)
	}
	s.mu.Unlock()
	s.running.Wait()
}
