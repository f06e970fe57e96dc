package diagnose

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// places is how many prompts of a rank are looked after at a time.
	places = 8
	// replaceEvery is how many further prompts pass before one takes the place of a sample that has become useless.
	replaceEvery = 64
	// grace is how long after the end of its request a prompt must be known: events take milliseconds.
	grace = 2 * time.Second
	// patience is the same for a request that is not booked, whose end nobody tells: it may wait in the engine.
	patience = 60 * time.Second
	// turnover: a sample is useless if more than a part of turnover of what the rank held when it was taken has gone since.
	turnover = 4
)

// Request is a prompt that hit nothing on the rank chosen for it. Everything is borrowed for the call.
type Request struct {
	ID       string
	Booked   bool // Ended will be called with ID
	Identity Identity
	Tokens   []uint32 // the first block's
}

// Sample is a request that is looked after.
type Sample struct {
	Tokens   []uint32
	Identity Identity

	id      string
	booked  bool
	since   int64 // when it was sent or, once it has ended, when that was
	ended   bool
	present Progress // then
}

// ready tells whether the engine must have stored the sample by now.
func (s *Sample) ready(now int64) bool {
	if s.booked {
		return s.ended && now-s.since >= int64(grace)
	}
	return now-s.since >= int64(patience)
}

// useless tells whether the rank may have lost the sample since.
func (s *Sample) useless(p Progress) bool {
	return p.Lives != s.present.Lives || p.Removed-s.present.Removed > s.present.Held/turnover
}

// class is a kind of request by its identity: what holds for one says little about the others.
type class uint8

const (
	withLoRA class = 1 << iota
	withSalt
	classes class = 1 << iota
)

func classOf(id Identity) (c class) {
	if id.LoRAName != "" {
		c |= withLoRA
	}
	if id.CacheSalt != "" {
		c |= withSalt
	}
	return c
}

// outcomes are the samples of a class that were not stored as they were asked for, since one that was.
type outcomes struct {
	nothing, otherSalt, otherLoRA uint64
	lora                          string // the adapter under which the last one was
	stored                        uint64 // blocks that the rank stored while the samples were looked after, the most of any
}

func (o *outcomes) total() uint64 { return o.nothing + o.otherSalt + o.otherLoRA }

// Watch looks after some of the prompts that were sent to a rank. The zero value has seen none. It is safe for concurrent
// use.
type Watch struct {
	full   atomic.Bool   // samples are as many as there may be
	passed atomic.Uint64 // prompts that came since
	active atomic.Int32  // samples whose end will be told
	doubt  atomic.Bool   // there are outcomes

	mu       sync.Mutex
	samples  []Sample
	judged   [classes]outcomes
	lives    uint64 // of the rank when it was last judged
	silent   int    // samples that are ready and since which no event came, when it was last judged
	silentAt int64  // when the first of them ended or was sent
}

// Hit tells of a prompt that hit something on the rank.
func (w *Watch) Hit(id Identity) {
	if !w.doubt.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clearClass(classOf(id))
}

func (w *Watch) clearClass(c class) {
	w.judged[c] = outcomes{}
	w.doubt.Store(w.judged != [classes]outcomes{})
}

// Wants tells whether Miss would look at a prompt; it is all that most prompts cost.
func (w *Watch) Wants() bool { return !w.full.Load() || w.passed.Add(1)%replaceEvery == 0 }

// Miss tells, at a time in nanoseconds, of a prompt that hit nothing on the rank, and whether it is looked after now.
func (w *Watch) Miss(now int64, q *Request, present Progress) (taken bool) {
	if !q.Identity.fits() || len(q.ID) > maxName {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == places {
		w.samples = slices.DeleteFunc(w.samples, func(s Sample) bool { return s.useless(present) })
	}
	if len(w.samples) == places {
		return false
	}
	w.samples = append(w.samples, Sample{
		Tokens: slices.Clone(q.Tokens), Identity: Identity{strings.Clone(q.Identity.LoRAName), strings.Clone(q.Identity.CacheSalt)},
		id: strings.Clone(q.ID), booked: q.Booked, since: now, present: present,
	})
	w.count()
	return true
}

// count makes what is read without the lock agree with the samples. w.mu is held.
func (w *Watch) count() {
	active := int32(0)
	for i := range w.samples {
		if w.samples[i].booked && !w.samples[i].ended {
			active++
		}
	}
	w.active.Store(active)
	w.full.Store(len(w.samples) == places)
}

// Ended tells that a booked request ended.
func (w *Watch) Ended(id string, now int64) {
	if w.active.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.count()
	for i := range w.samples {
		if s := &w.samples[i]; s.booked && !s.ended && s.id == id {
			s.ended, s.since = true, now
		}
	}
}

// View is what a look at a rank needs to know of it.
type View struct {
	Now        int64 // on the clock of Miss
	Progress   Progress
	Identities []Identity // of the rank's stores
	Complete   bool       // everything that the engine reported was applied
	Waiting    bool       // events may have come that are not applied yet

	// Holds tells whether the rank holds the first block of a sample under an identity, in any tier.
	Holds func(s *Sample, id Identity) bool
}

// Look judges the samples whose time has come. Of two that look at a time, each judges samples of its own.
func (w *Watch) Look(v *View) {
	for _, s := range w.take(v) {
		w.judge(&s, v)
	}
}

// take takes the samples to judge. Those since which the rank was silent stay.
func (w *Watch) take(v *View) (due []Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lives != v.Progress.Lives { // what was said of another life
		w.lives, w.judged = v.Progress.Lives, [classes]outcomes{}
		w.doubt.Store(false)
	}
	w.silent = 0
	kept := w.samples[:0]
	for _, s := range w.samples {
		switch {
		case s.useless(v.Progress):
		case !s.ready(v.Now):
			kept = append(kept, s)
		case s.present.Heard == v.Progress.Heard:
			kept = append(kept, s)
			if v.Waiting {
				break
			}
			if w.silent++; w.silent == 1 {
				w.silentAt = s.since
			}
		case s.present.Stored != v.Progress.Stored:
			due = append(due, s)
		}
	}
	clear(w.samples[len(kept):])
	w.samples = kept
	w.count()
	return due
}

func (w *Watch) judge(s *Sample, v *View) {
	found := v.Holds(s, s.Identity)
	var other Identity
	var elsewhere bool
	if !found {
		other, elsewhere = s.elsewhere(v)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lives != v.Progress.Lives {
		return
	}
	o := &w.judged[classOf(s.Identity)]
	switch {
	case found:
		w.clearClass(classOf(s.Identity))
		return
	case elsewhere && other.LoRAName != s.Identity.LoRAName:
		o.otherLoRA++
		o.lora = other.LoRAName
	case elsewhere:
		o.otherSalt++
	case v.Complete && v.Progress.Failed == s.present.Failed:
		o.nothing++
	default:
		return // it may be in what was missed
	}
	o.stored = max(o.stored, v.Progress.Stored-s.present.Stored)
	w.doubt.Store(true)
}

// elsewhere looks for a sample under the identities of the rank's stores, first those that differ in the salt only.
func (s *Sample) elsewhere(v *View) (Identity, bool) {
	for _, sameLoRA := range [...]bool{true, false} {
		for _, id := range v.Identities {
			if id != s.Identity && (id.LoRAName == s.Identity.LoRAName) == sameLoRA && v.Holds(s, id) {
				return id, true
			}
		}
	}
	return Identity{}, false
}
