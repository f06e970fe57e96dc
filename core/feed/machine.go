package feed

import (
	"fmt"
	"time"
)

// State says how complete a rank's view is; the package comment tells what each state promises.
type State string

// The states.
const (
	Exact        State = "exact"
	Recovering   State = "recovering"
	Partial      State = "partial"
	Disconnected State = "disconnected"
)

// Why a rank is partial: the first word of Status.Reason.
const (
	reasonNoReplay    = "no_replay_endpoint"
	reasonHistoryGone = "history_gone"
	reasonHole        = "hole_not_filled"
	reasonNoAnswer    = "replay_unanswered"
	reasonStore       = "undecodable_store"
	reasonUndecodable = "undecodable"
	reasonPanic       = "panic"
	reasonDoubt       = "answer_not_credible"
)

// phase is what the machine is about.
type phase uint8

const (
	following phase = iota // nothing is asked for
	// Soft phases: live batches apply meanwhile.
	probing   // asked for the next number, to find a lost tail
	restoring // asked from 0, to leave partial
	// Hard phases: live batches wait.
	joining   // nothing applied, asked from 0
	filling   // a hole after last
	verifying // connected again: comparing what was applied
)

func (p phase) hard() bool { return p >= joining }

// damage is what of a batch could not be applied.
type damage uint8

const (
	intact    damage = iota
	lostStore        // a stored event: the view claims too little
	dropped          // a removal or everything: the view was emptied before the rest of the batch
	panicked         // the view was emptied
)

// effects is what the machine orders.
type effects interface {
	apply(*batch) damage // and says what the batch's content was
	reset()              // empty the view
	renew()              // begin a new view: what is applied goes there, out of sight
	commit()             // it takes the place of the old one
	// ask for all from start on, or for the whole state of a local indexer; answers carry the id. It tells whether the
	// request has to wait for its turn: then started follows.
	ask(id int, start uint64, whole bool) (waits bool)
	cancel() // end the current request
	count(counter)
}

// settings of a machine, all set.
type settings struct {
	replay                 bool // there is somebody to ask
	query                  bool // and it is a local indexer, which knows its whole state
	probe                  time.Duration
	timeout                time.Duration // without an answer
	backoffMin, backoffMax time.Duration
	retries                int
	maxCount, maxBytes     int
	jitter                 func() float64
}

// machine decides what is applied and what is asked for. It knows numbers and fingerprints, does no I/O and reads no
// clock: now is a parameter, in any unit that only grows.
//
// Invariants:
//
//	I1  Since the last reset exactly the batches of one run of consecutive numbers that ends with last were applied, in
//	    order; the run begins with 0, or with a local indexer's whole state or a clear, unless partial says otherwise.
//	I2  asked implies phase != following; at most one request is open.
//	I3  the buffer is empty unless phase is hard; all it holds lies beyond last.
//	I4  without connected, phase is following and the buffer empty.
//	I5  renewing implies that phase is hard: whatever ends it lets the new view be seen.
type machine struct {
	settings
	fx effects

	connected bool
	downWhy   string

	hasLast  bool
	last     uint64 // highest number applied
	prints   prints
	partial  string // reason, "" if everything since 0 was applied
	lent     bool   // the view was given by somebody else, until something is known
	renewing bool   // what was applied since the last renew is not to be seen yet
	open     bool   // whatever number comes next begins the run
	// unproven: something was applied from a request that does not overlap what was applied before, or is mixed with live
	// batches, and nothing live since. If the engine restarted just then, that was already the new one's.
	unproven bool

	// publisher is the number of the process whose events were applied, as far as its local indexer told.
	hasPublisher bool
	publisher    uint64

	hasLive  bool
	lastLive uint64 // highest number seen live on this connection

	phase    phase
	asked    bool
	id       int
	queued   bool          // the open request waits for its turn
	whole    bool          // the next request is for the whole state: an answer from next on did not help
	from     uint64        // what the open request asked from
	fromAll  bool          // it asked for the whole state
	activity time.Duration // when the open request was last answered, or made
	retryAt  time.Duration // hard and not asked: when to ask again
	answered bool          // the open request gave something
	first    uint64        // its number, then
	progress bool          // something new
	tries    int           // requests in this recovery
	fails    int           // those without end marker
	stuck    int           // those in a row with end marker and without progress
	verified bool          // verifying: a batch was equal
	vnext    uint64        // verifying: next number to compare, beyond last when all was
	proven   bool          // query: the open request's answer agrees with the live batches applied since the last one
	drained  bool          // a batch that waited was applied in this recovery
	buffer   buffer

	probeAt     time.Duration
	probeWait   time.Duration // grows while there is nothing to find
	restoreAt   time.Duration // 0: no restore is planned
	restoreWait time.Duration

	// claimed: last is what a local indexer's whole state said at claimedAt, and nothing came after that number yet.
	claimed   bool
	claimedAt time.Duration
	doubts    int // claims that the live stream did not reach, in a row

	beganAt time.Duration // the last hard recovery
	hurry   int           // hard recoveries that came soon after another

	hasPanic bool
	panicSeq uint64
}

func newMachine(s settings, fx effects) *machine {
	return &machine{settings: s, fx: fx, downWhy: "connecting", restoreWait: s.probe,
		buffer: buffer{maxCount: s.maxCount, maxBytes: s.maxBytes}}
}

// state gives the state and its reason.
func (m *machine) state() (State, string) {
	switch {
	case !m.connected:
		return Disconnected, m.downWhy
	case m.phase == joining:
		return Recovering, fmt.Sprintf("replay from %d after joining", m.next())
	case m.phase == filling:
		return Recovering, fmt.Sprintf("batch %d is missing", m.next())
	case m.phase == verifying:
		return Recovering, "comparing with the engine's history"
	case m.partial != "":
		return Partial, m.partial
	}
	return Exact, ""
}

// watch begins to wait for a silence in which the last batch may be lost.
func (m *machine) watch(now time.Duration) {
	const soonest = 16 // parts of probe
	m.probeWait = m.probe / soonest
	m.probeAt = now + m.probeWait
}

func (m *machine) next() uint64 {
	if m.hasLast {
		return m.last + 1
	}
	return 0
}

// forget empties the view and everything known about it.
func (m *machine) forget() {
	m.fx.reset()
	m.fx.count(countResets)
	m.lent, m.renewing = false, false
	m.unlearn()
}

// renew begins a new view; the old one answers until commit.
func (m *machine) renew() {
	m.fx.renew()
	m.lent, m.renewing = false, true
	m.unlearn()
}

func (m *machine) commit() {
	if m.renewing {
		m.renewing = false
		m.fx.commit()
	}
}

func (m *machine) unlearn() {
	m.hasLast, m.open, m.unproven, m.partial, m.restoreAt, m.hasPublisher, m.claimed = false, false, false, "", 0, false, false
	m.prints.clear()
}

// up: the subscription is made.
func (m *machine) up(now time.Duration) {
	m.connected, m.hasLive = true, false
	m.watch(now)
	switch {
	case !m.replay:
		if m.hasLast || m.lent {
			m.forget()
		}
		m.partial, m.open = reasonNoReplay+": what was sent before the subscription is unknown", true
	case m.hasLast && (m.query || m.restoreAt == 0 && !m.unproven):
		m.begin(now, verifying)
	default:
		if m.hasLast {
			m.forget()
		}
		m.partial, m.open, m.restoreAt = "", false, 0
		m.begin(now, joining)
	}
}

// down: the connection broke, or an attempt failed.
func (m *machine) down(why string) {
	m.stop()
	m.buffer.clear()
	m.connected, m.downWhy = false, why
}

// live takes one message of the subscription.
func (m *machine) live(now time.Duration, b batch) {
	if m.hasLive && b.seq <= m.lastLive {
		m.backwards(now, b)
		return
	}
	first := !m.hasLive
	m.hasLive, m.lastLive = true, b.seq
	m.watch(now)
	switch {
	case m.hasLast && b.seq <= m.last:
		switch {
		case m.phase == verifying && b.seq == 0, m.differs(b):
			m.restart(now, b)
		case m.query && first && m.phase == following && !m.prints.same(b):
			m.distrust(now) // a slow message, or another process behind something that keeps the connection up
		case m.claimed && !m.phase.hard() && now >= m.claimedAt+m.timeout:
			m.doubt(now, b)
		default:
			m.fx.count(countDuplicates) // an answer was faster
		}
	case m.phase == joining && !m.hasLast && b.seq == 0:
		m.stop() // seen from its first batch: there is no history to ask for
		m.accept(now, b)
	case m.phase.hard():
		m.wait(b)
	case m.hasLast && b.seq == m.last+1, !m.hasLast && (m.open || b.seq == 0):
		m.accept(now, b)
		m.unproven = false
		if m.partial == "" {
			m.doubts = 0
		}
	case !m.replay:
		m.fx.count(countGaps)
		lost := m.next()
		m.forget()
		m.partial = fmt.Sprintf("%s: batches from %d to %d are lost", reasonNoReplay, lost, b.seq-1)
		m.accept(now, b)
	default:
		m.fx.count(countGaps)
		m.stop()
		m.wait(b)
		m.recover(now)
	}
}

// wait tells whether the batch is kept and was not before.
func (m *machine) wait(b batch) bool {
	n := len(m.buffer.waiting)
	if !m.buffer.add(b) {
		m.fx.count(countOverflow)
	}
	return len(m.buffer.waiting) > n
}

// backwards: the number went back on one connection, which TCP does not do. Either a message came twice, or the
// engine restarted behind something that keeps the connection up.
func (m *machine) backwards(now time.Duration, b batch) {
	if b.seq == 0 || m.differs(b) && !m.buffer.has(b) {
		m.restart(now, b)
		return
	}
	m.fx.count(countDuplicates)
	if m.query {
		m.lastLive = b.seq // if it is another process, its numbers count from now on
	}
	if m.replay && m.phase == following {
		m.distrust(now)
	}
}

// differs tells whether another batch than b was applied under its number. What a local indexer gave has no fingerprints:
// there it is not known.
func (m *machine) differs(b batch) bool {
	return !m.prints.same(b) && (!m.query || m.prints.has(b.seq))
}

// restart: b is from another engine process than what was applied.
func (m *machine) restart(now time.Duration, b batch) {
	m.stop()
	m.buffer.clear()
	m.forget()
	m.fx.count(countRestarts)
	m.hasLive, m.lastLive = true, b.seq
	switch {
	case b.seq == 0:
		m.accept(now, b)
	case m.replay:
		m.wait(b)
		m.begin(now, joining)
	default:
		m.partial = reasonNoReplay + ": the engine restarted and its first batches are lost"
		m.accept(now, b)
	}
}

// accept applies the batch that continues the run, or begins it.
func (m *machine) accept(now time.Duration, b batch) {
	m.learn()
	if !m.hasLast && b.seq == 0 {
		m.partial, m.restoreAt = "", 0
	}
	m.open = false
	m.hasLast, m.last, m.claimed = true, b.seq, false
	m.prints.add(b)
	m.applied(now, b)
}

// lend tells whether a view may be given that is only somebody else's word: while nothing is known and everything was asked for, or will be.
func (m *machine) lend() bool {
	ok := !m.hasLast && m.partial == "" && (!m.connected || m.phase == joining)
	m.lent = m.lent || ok
	return ok
}

// learn is called before anything is applied: what was lent gives way.
func (m *machine) learn() {
	switch {
	case m.lent && m.phase.hard(): // once all is there
		m.fx.renew()
		m.renewing = true
	case m.lent:
		m.fx.reset()
	}
	m.lent = false
}

// applied applies a batch and draws the consequences of what could not be.
func (m *machine) applied(now time.Duration, b batch) {
	damage := m.fx.apply(&b)
	if m.query && !b.queried {
		m.prints.became(b)
	}
	if m.query && damage != intact && m.restoreAt == 0 {
		m.planRestore(now) // the indexer knows what it meant
	}
	switch damage {
	case lostStore:
		if m.partial == "" {
			m.partial = fmt.Sprintf("%s: in batch %d", reasonStore, b.seq)
		}
	case dropped:
		m.partial = fmt.Sprintf("%s: removal or batch %d", reasonUndecodable, b.seq)
	case panicked:
		m.partial = fmt.Sprintf("%s: in batch %d", reasonPanic, b.seq)
		if m.replay && !(m.hasPanic && m.panicSeq == b.seq) {
			m.restoreAt = now + m.backoffMin
		}
		m.hasPanic, m.panicSeq = true, b.seq
	}
}

// resync starts anew after a fault of ours.
func (m *machine) resync(now time.Duration) {
	m.stop()
	m.buffer.clear()
	m.forget()
	m.partial, m.open = reasonPanic+": in the feed", true
	if m.replay {
		m.restoreAt = now + m.backoffMax
	}
}
