package diagnose

import (
	"slices"
	"strings"
	"sync"
)

// maxIdentities is how many identities are remembered of a rank's stores: each sampled prompt is looked for under each.
const maxIdentities = 16

// Intake is what a rank's events were like. The zero value has seen none; it is safe for concurrent use. Events
// that were left out may be told of to a nil one, which does nothing.
//
// A life is what lies between two events after which the rank holds nothing.
type Intake struct {
	mu         sync.Mutex
	progress   Progress
	kept       uint64            // stores of this engine process that were applied
	unusable   map[string]uint64 // while kept is 0: stores that were left out, by reason
	otherSize  uint32            // the last block size that was not the router's
	identities []Identity        // of stores, the latest first
}

// Progress is how far a rank's events have come; all but Held only grow.
type Progress struct {
	Heard   uint64 // events of any kind
	Stored  uint64 // blocks
	Removed uint64 // blocks
	Failed  uint64 // events that were refused
	Lives   uint64
	Held    uint64 // blocks, in this life
}

// Applied tells of an event that was given to the index: stores are whether it is a stored event, stored and removed the
// blocks it changed, and refusal is the counter of the reason why it changed nothing, or "".
func (i *Intake) Applied(stores bool, stored, removed int, refusal string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := &i.progress
	p.Heard++
	p.Stored += uint64(stored)
	p.Removed += uint64(removed)
	p.Held += uint64(stored)
	p.Held -= min(p.Held, uint64(removed))
	if refusal != "" {
		p.Failed++
	}
	switch {
	case !stores:
	case refusal == "":
		i.kept++
		i.unusable = nil
	default:
		i.leaveOut(refusal)
	}
}

// Unusable tells of a stored event that was left out, with the counter of the reason and the block size it has, 0 if that
// is not known.
func (i *Intake) Unusable(reason string, blockSize uint32) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.progress.Heard++
	if reason == wrongBlockSize {
		i.otherSize = blockSize
	}
	i.leaveOut(reason)
}

// leaveOut counts while nothing was kept: some stores of a healthy engine are always left out.
func (i *Intake) leaveOut(reason string) {
	if i.kept > 0 {
		return
	}
	if i.unusable == nil {
		i.unusable = make(map[string]uint64)
	}
	i.unusable[reason]++
}

// Heard tells of an event that nothing else is told of.
func (i *Intake) Heard() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.progress.Heard++
}

// Named tells under which identity a store was applied. The strings are copied.
func (i *Intake) Named(id Identity) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	at := slices.Index(i.identities, id)
	switch {
	case at == 0 || id == Identity{} || !id.fits():
		return
	case at > 0:
		id = i.identities[at]
		i.identities = slices.Delete(i.identities, at, at+1)
	default:
		id = Identity{strings.Clone(id.LoRAName), strings.Clone(id.CacheSalt)}
		if len(i.identities) == maxIdentities {
			i.identities = i.identities[:maxIdentities-1]
		}
	}
	i.identities = slices.Insert(i.identities, 0, id)
}

// Cleared tells that the rank holds nothing any more.
func (i *Intake) Cleared() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.progress.Lives++
	i.progress.Held = 0
}

// Reset tells that the view was emptied: perhaps another engine process publishes now.
func (i *Intake) Reset() {
	i.Cleared()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.kept = 0
}

// Progress tells how far the events have come.
func (i *Intake) Progress() Progress {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.progress
}

// Identities gives those that the stores named, the latest first, and that of the base model last.
func (i *Intake) Identities() []Identity {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append(slices.Clone(i.identities), Identity{})
}
