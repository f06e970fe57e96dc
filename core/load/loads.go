package load

import "github.com/dynamo-go/dynamo-go/core/worker"

// Load is what the bookings of a slot add up to.
type Load struct {
	ActivePrefillTokens int64 // still to compute, decayed by the load model if there is one
	ActiveBlocks        int64 // distinct blocks, by weight, rounded half up
	ActiveRequests      int32
}

// Load gives the load of one slot, at the latest time the ledger was given.
func (l *Ledger) Load(slot worker.Slot) Load {
	if int64(slot) >= int64(len(l.loads)) {
		return Load{}
	}
	load := l.loads[slot]
	if l.tallies[slot].decaying != 0 {
		load.ActivePrefillTokens = l.tallies[slot].prefill.left(l.requests, l.now)
	}
	return load
}

// Loads gives the loads of all slots by slot, at the latest time the ledger was given; slots beyond the end are idle. The
// array belongs to the ledger, so that a decision copies nothing: read it before the next call, and do not write it. It is
// kept up to date call by call; only slots whose prefill decays with time are worked out here.
func (l *Ledger) Loads() []Load {
	if l.decayed < l.now {
		l.decayed = l.now
		for _, slot := range l.decaying {
			l.loads[slot].ActivePrefillTokens = l.tallies[slot].prefill.left(l.requests, l.now)
		}
	}
	return l.loads
}

// Reserve makes Loads reach over all slots below a bound.
func (l *Ledger) Reserve(slots int) {
	if slots > len(l.loads) {
		l.grow(worker.Slot(slots - 1))
	}
}

// RemainingPrefillNanos gives the time that a slot's active prefills should still take, at the latest time the ledger was
// given, or false if one of them was booked without a duration.
func (l *Ledger) RemainingPrefillNanos(slot worker.Slot) (int64, bool) {
	if int64(slot) >= int64(len(l.tallies)) {
		return 0, true
	}
	return l.tallies[slot].prefill.remaining(l.now)
}

// show brings a slot's load up to date after a change of its tally.
func (l *Ledger) show(slot worker.Slot) {
	t := &l.tallies[slot]
	l.loads[slot] = Load{t.prefill.left(l.requests, l.now), wholeBlocks(t.weight), t.requests}
	if decays := t.prefill.decays(l.requests); decays && t.decaying == 0 {
		l.decaying = append(l.decaying, slot)
		t.decaying = uint32(len(l.decaying))
	} else if !decays && t.decaying != 0 {
		last := l.decaying[len(l.decaying)-1]
		l.decaying[t.decaying-1] = last
		l.tallies[last].decaying = t.decaying
		l.decaying = l.decaying[:len(l.decaying)-1]
		t.decaying = 0
	}
}

// grow makes room for a slot.
func (l *Ledger) grow(slot worker.Slot) {
	if more := int(slot) + 1 - len(l.tallies); more > 0 {
		l.tallies = append(l.tallies, make([]tally, more)...)
		l.loads = append(l.loads, make([]Load, more)...)
	}
}
