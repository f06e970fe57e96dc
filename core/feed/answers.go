package feed

import (
	"fmt"
	"time"
)

// This file is the machine's dealing with a local indexer, which answers a request from a number on with the events since,
// with its whole state if it does not keep them all, or with the newest number if that is before; and one for the whole
// state with that. Events come through replayed and replayEnd.

// answerer tells whether the answer to the request with the given id can be used: a whole state always can, events and
// numbers only if they are of the process that what was applied is of. That is known of a whole state, and of the events of the same process
// since; live batches do not say whose they are, so those that an answer comes after are compared with it (see proven).
func (m *machine) answerer(now time.Duration, id int, publisher uint64, whole bool) bool {
	if !m.asked || id != m.id {
		return false
	}
	if m.hasPublisher && m.publisher != publisher && !whole {
		m.fx.count(countRestarts)
		m.distrust(now)
		return false
	}
	if whole {
		m.hasPublisher, m.publisher = true, publisher
	}
	return true
}

// distrust: what was applied may be another process's than the answer. So its whole state is asked for.
func (m *machine) distrust(now time.Duration) {
	m.hasPublisher = false
	m.begin(now, verifying)
}

// prove compares an event of an answer with the live batch that was applied under its number, if it is remembered. It tells whether the event
// is new, and what was applied before it is known to be the answering process's.
func (m *machine) prove(now time.Duration, b batch) bool {
	switch {
	case m.hasLast && b.seq <= m.last && m.prints.has(b.seq) && !m.prints.like(b):
		m.distrust(now)
		return false
	case m.hasLast && b.seq <= m.last:
		m.proven = m.proven || m.prints.has(b.seq)
		m.fx.count(countDuplicates)
		return false
	case !m.hasPublisher, !m.proven && !b.clears:
		m.distrust(now)
		return false
	}
	m.proven = true
	return true
}

// dumped: the whole state after the number of b answers the request with the given id. It may hold effects of later events
// already: those come again, and blocks of such a rank have one reference each.
//
// It replaces the view at once: nobody sees a part of it.
func (m *machine) dumped(now time.Duration, id int, b batch) {
	if !m.asked || id != m.id {
		return
	}
	m.asked, m.whole = false, false
	m.fx.cancel()
	m.fx.count(countDumps)
	m.progress = !m.hasLast || b.seq > m.last
	if blank := len(b.events) == 0 && b.seq == 0; blank {
		m.blank()
	} else {
		publisher := m.publisher
		m.renew()
		m.hasLast, m.last, m.hasPublisher, m.publisher = true, b.seq, true, publisher
		m.claimed, m.claimedAt = true, now
		m.applied(now, b)
		m.commit()
	}
	m.phase = filling // live batches behind it may have been applied to what it replaced
	if !m.hasLast {
		m.phase = joining
	}
	m.drain(now)
	if !m.hole() {
		m.finish(now)
		return
	}
	m.again(now)
}

// doubt: a whole state said to be after last, but long after it the live stream is still at b, before that. Live messages may
// be slow, but not for ever, and while they count as applied nothing of them shows. It is asked for again, once; then the
// stream is believed.
func (m *machine) doubt(now time.Duration, b batch) {
	if m.doubts++; m.doubts == 1 {
		m.distrust(now)
		return
	}
	last := m.last
	m.stop()
	m.fx.count(countGivenUp)
	m.forget()
	m.partial = fmt.Sprintf("%s: it is after batch %d, the stream at %d", reasonDoubt, last, b.seq)
	m.planRestore(now)
	m.accept(now, b)
}

// blank: an indexer that has seen nothing says the same as one that saw an event 0 without effect. So that number is
// still awaited.
func (m *machine) blank() {
	if m.hasLast || m.lent {
		m.forget()
	}
	m.partial, m.open, m.restoreAt, m.progress = "", false, 0, false
}

// tooNew: the indexer has come no further than newest, which is before what the request with the given id asked from.
func (m *machine) tooNew(now time.Duration, id int, newest uint64) {
	if !m.asked || id != m.id {
		return
	}
	if m.fromAll {
		m.replayFailed(now, id, fmt.Sprintf("newest is %d, to a request for everything", newest))
		return
	}
	m.asked = false
	m.fx.cancel()
	switch {
	case m.phase == filling && m.hole():
		m.again(now)
	case newest+1 < m.next(): // not even what was applied
		m.distrust(now)
	case m.phase == verifying && m.hole():
		m.phase = filling
		m.again(now)
	default:
		m.finish(now)
	}
}
