package feed

import (
	"fmt"
	"math"
	"time"
)

// This file is the machine's dealing with the replay socket.

// recover begins to fill the hole after last.
func (m *machine) recover(now time.Duration) {
	if m.hasLast {
		m.begin(now, filling)
	} else {
		m.begin(now, joining)
	}
}

func (m *machine) begin(now time.Duration, p phase) {
	m.stop()
	m.phase, m.tries, m.fails, m.stuck, m.drained, m.whole = p, 0, 0, 0, false, false
	if p == verifying {
		m.verified, m.vnext = false, m.prints.from
	}
	if m.query {
		m.vnext = math.MaxUint64 // prove compares
	}
	if p.hard() && m.paced(now) {
		return
	}
	m.ask(now)
}

// paced puts a hard recovery off if many have begun lately: a stream whose numbers jump to and fro begins one with every message.
func (m *machine) paced(now time.Duration) bool {
	const burst = 8 // a reconnect, a restart and some holes
	if now >= m.beganAt+2*m.backoffMax {
		m.hurry = 0
	}
	wait := m.backoff(max(m.hurry-burst, 0))
	if m.hurry >= burst && now < m.beganAt+wait {
		m.retryAt = m.beganAt + wait
		return true
	}
	m.hurry++
	m.beganAt = now
	return false
}

func (m *machine) ask(now time.Duration) {
	m.id++
	if m.tries++; m.tries == 1 && m.phase.hard() {
		m.fx.count(countRecoveries)
	}
	m.asked, m.answered, m.progress, m.activity = true, false, false, now
	m.from, m.fromAll = m.next(), false
	switch {
	case m.query && m.needsAll():
		m.from, m.fromAll = 0, true
	case m.query && m.phase == probing && !m.prints.empty():
		m.from = m.last
	case m.query && !m.prints.empty():
		m.from = m.prints.from
	case m.phase == restoring:
		m.from = 0
	case m.phase == verifying && m.vnext <= m.last:
		m.from = m.vnext
	}
	m.proven = m.prints.empty()
	m.queued = m.fx.ask(m.id, m.from, m.fromAll)
}

// needsAll tells whether nothing but an indexer's whole state will do.
func (m *machine) needsAll() bool {
	switch m.phase {
	case probing:
		return false
	case filling:
		return m.whole || !m.hasLast || !m.hasPublisher
	case verifying:
		return m.whole || !m.hasLast || !m.hasPublisher || m.partial != ""
	}
	return true
}

// waits: the request with the given id waits for its turn, which takes no time of its own.
func (m *machine) waits(id int) {
	if m.asked && id == m.id {
		m.queued = true
	}
}

// progressed: a part of an answer has come.
func (m *machine) progressed(now time.Duration, id int) {
	if m.asked && id == m.id {
		m.activity = now
	}
}

// started: the wait is over.
func (m *machine) started(now time.Duration, id int) {
	if m.asked && id == m.id {
		m.queued, m.activity = false, now
	}
}

// stop ends whatever is asked for; what waits stays.
func (m *machine) stop() {
	m.commit()
	if m.asked {
		m.fx.cancel()
	}
	m.asked, m.queued, m.phase = false, false, following
}

// finish ends a recovery that left no hole.
func (m *machine) finish(now time.Duration) {
	if m.lent {
		m.forget() // it holds nothing
	}
	m.stop()
	m.probeAt = now + m.probeWait
	if m.partial == "" && m.doubts == 0 {
		m.restoreWait = m.probe
	}
}

// replayed takes one batch of the replay with the given id.
func (m *machine) replayed(now time.Duration, id int, b batch) {
	if !m.asked || id != m.id {
		return
	}
	if !m.answered {
		m.answered, m.first = true, b.seq
	}
	m.fx.count(countReplayed)
	if b.queried {
		if !m.prove(now, b) {
			return
		}
		if m.phase == verifying {
			m.phase = filling
		}
	}
	switch m.phase {
	case probing:
		if b.seq < m.next() {
			m.fx.count(countDuplicates)
			return
		}
		m.fx.count(countGaps)
		m.fx.count(countRecoveries)
		m.phase = filling
	case restoring:
		if b.seq != 0 {
			m.partial = historyGone(b.seq)
			m.restoreAt = 0
			m.finish(now)
			return
		}
		m.renew() // what is known answers until the replay has come as far
		m.phase = joining
	case verifying:
		if !m.verify(now, b) {
			return
		}
	}
	m.fill(now, b)
}

func historyGone(first uint64) string {
	return fmt.Sprintf("%s: the engine's oldest batch is %d", reasonHistoryGone, first)
}

// verify compares a batch with what was applied; true if the batch is a new one.
func (m *machine) verify(now time.Duration, b batch) bool {
	switch {
	case b.seq > m.last && m.vnext > m.last:
		m.vnext = math.MaxUint64 // all was compared, and what follows is not
		return true
	case b.seq > m.last && m.verified: // not all was compared: this replay has a hole
		if m.wait(b) {
			m.activity = now
		}
	case b.seq > m.last:
		m.forget() // nothing to compare is left: it may be another process
		m.phase = joining
		return true
	case b.seq < m.vnext:
		m.fx.count(countDuplicates)
	case m.prints.same(b):
		m.verified, m.progress, m.activity, m.vnext = true, true, now, b.seq+1
	default:
		m.restarted(now)
	}
	return false
}

// restarted: the replay shows another engine process. What waits is from it.
func (m *machine) restarted(now time.Duration) {
	m.fx.count(countRestarts)
	m.forget()
	m.begin(now, joining)
}

// fill applies a replayed batch if it is the next, and what waits behind it.
func (m *machine) fill(now time.Duration, b batch) {
	if b.clears && b.seq > m.next() {
		publisher := m.publisher
		m.forget() // an indexer leaves out what a clear undid
		m.hasLast, m.last, m.hasPublisher, m.publisher = true, b.seq-1, true, publisher
	}
	switch {
	case !m.hasLast:
		if b.seq != 0 {
			m.partial = historyGone(b.seq)
		}
	case b.seq <= m.last:
		m.fx.count(countDuplicates)
		return
	case b.seq > m.last+1:
		if m.wait(b) {
			m.activity = now
		}
		return
	}
	m.accept(now, b)
	m.progress, m.activity = true, now
	m.unproven = m.unproven || !m.query && (m.phase == filling || m.tries > 1 || m.drained)
	m.drain(now)
	if m.hasLive && m.last == m.lastLive && m.buffer.empty() {
		m.finish(now) // what follows comes live
	}
}

// drain applies what waits, as far as it continues the run.
func (m *machine) drain(now time.Duration) {
	for !m.buffer.empty() && (m.hasLast || m.buffer.waiting[0].seq == 0) && m.buffer.waiting[0].seq <= m.next() {
		if b := m.buffer.shift(); b.seq == m.next() {
			m.accept(now, b)
			m.drained = true
		} else {
			m.fx.count(countDuplicates)
		}
	}
}

// hole tells whether a batch is known to be missing.
func (m *machine) hole() bool {
	return !m.buffer.empty() || m.hasLive && (!m.hasLast || m.last < m.lastLive)
}

// replayEnd: the end marker of the replay with the given id.
func (m *machine) replayEnd(now time.Duration, id int) {
	if !m.asked || id != m.id {
		return
	}
	m.asked = false
	m.fx.cancel()
	switch m.phase {
	case probing:
		m.finish(now)
		return
	case restoring:
		m.restarted(now) // it has sent nothing yet
		return
	case verifying:
		if m.query && !m.proven {
			m.distrust(now)
			return
		}
		if m.vnext <= m.last {
			if !m.answered {
				m.restarted(now) // it has not come as far as we
				return
			}
			m.again(now)
			return
		}
	}
	m.drain(now)
	if !m.hole() {
		m.finish(now)
		return
	}
	m.again(now)
}

// gone tells whether the last replay began behind the hole: what is lost on the way is never its first batch, so the engine has
// nothing older any more, and other holes before that will not be filled either.
func (m *machine) gone() bool { return !m.query && m.answered && m.first > m.next() }

// again plans the next request after an end marker that left a hole.
func (m *machine) again(now time.Duration) {
	if m.progress {
		m.stuck = 0
		m.retryAt = now + m.backoff(0)
		return
	}
	m.whole = m.query // what its history lacks, its state does not
	retries := m.retries
	if m.gone() {
		retries = min(retries, 1)
	}
	if m.stuck++; m.stuck > retries {
		if m.query && m.hasLast && m.buffer.empty() { // the later live batches are none to the indexer
			m.lastLive = m.last
			m.finish(now)
			return
		}
		m.giveUp(now, fmt.Sprintf("%s: batch %d, asked for %d times", reasonHole, m.next(), m.stuck), false)
		return
	}
	m.retryAt = now + m.backoff(m.stuck)
}

// replayFailed: the replay with the given id ended without its marker.
func (m *machine) replayFailed(now time.Duration, id int, why string) {
	if !m.asked || id != m.id {
		return
	}
	m.asked = false
	m.fx.cancel()
	m.fx.count(countReplayFailures)
	switch m.phase {
	case restoring:
		m.planRestore(now)
		m.finish(now)
		return
	case probing:
		m.finish(now)
		return
	}
	if m.fails++; m.fails > m.retries {
		if m.phase == filling && !m.hole() {
			m.finish(now) // a lost tail: as far as it is known, it was filled
			return
		}
		m.giveUp(now, fmt.Sprintf("%s: batch %d, asked for %d times: %s", reasonNoAnswer, m.next(), m.fails, why), true)
		return
	}
	m.retryAt = now + m.backoff(m.fails)
}

func (m *machine) planRestore(now time.Duration) {
	const rarest = 64 // in probe periods; a replay from 0 stalls the engine's publisher for a third of a second
	m.restoreAt = now + m.restoreWait
	m.restoreWait = min(2*m.restoreWait, rarest*m.probe)
}

// giveUp drops what was learnt before the hole. If the socket does not answer, other holes that wait are not asked for
// either.
func (m *machine) giveUp(now time.Duration, reason string, noAnswer bool) {
	m.stop()
	m.fx.count(countGivenUp)
	for m.gone() && !noAnswer && !m.buffer.empty() && m.buffer.waiting[0].seq < m.first {
		m.buffer.shift()
	}
	m.forget()
	m.partial, m.open = reason, true
	if noAnswer || m.query {
		m.planRestore(now)
	}
	if noAnswer {
		m.buffer.keepLastRun()
	}
	if !m.buffer.empty() {
		m.unproven = true // what waits may be from the connection and from requests
		m.accept(now, m.buffer.shift())
		m.drain(now)
	}
	switch {
	case !m.hole():
		m.finish(now)
	case noAnswer: // the newest did not fit into the buffer
		plan := m.restoreAt
		m.forget()
		m.partial, m.open, m.restoreAt = reason, true, plan
	case m.hasLast:
		m.begin(now, filling)
	}
}

// backoff is the wait before attempt n, a random part of up to half of it taken off.
func (m *machine) backoff(n int) time.Duration {
	d := m.backoffMax
	if n < 20 && m.backoffMin<<n < d {
		d = m.backoffMin << n
	}
	return d - time.Duration(m.jitter()*float64(d)/2)
}

// tick does what is due.
func (m *machine) tick(now time.Duration) {
	if m.asked && m.queued {
		return
	}
	if m.asked && now >= m.activity+m.timeout {
		m.replayFailed(now, m.id, fmt.Sprintf("nothing new for %v", m.timeout))
		return
	}
	if m.phase.hard() && !m.asked && now >= m.retryAt {
		if m.tries == 0 && m.paced(now) {
			return
		}
		m.ask(now)
		return
	}
	if !m.replay || !m.connected || m.phase != following {
		return
	}
	if m.restoreAt != 0 && now >= m.restoreAt {
		m.begin(now, restoring)
	} else if now >= m.probeAt {
		m.fx.count(countProbes)
		m.probeWait = min(2*m.probeWait, m.probe)
		m.begin(now, probing)
	}
}

// deadline is when tick has something to do; false if never.
func (m *machine) deadline() (time.Duration, bool) {
	switch {
	case m.asked:
		return m.activity + m.timeout, !m.queued
	case m.phase.hard():
		return m.retryAt, true
	case !m.replay || !m.connected:
		return 0, false
	case m.restoreAt != 0:
		return min(m.restoreAt, m.probeAt), true
	}
	return m.probeAt, true
}
