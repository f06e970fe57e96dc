package affinity

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Bounds of a table, Dynamo's.
const (
	MinTTL      = time.Second
	MaxTTL      = 31_536_000 * time.Second // a year
	MaxSessions = 65_536
	MaxIDBytes  = 256
)

// Errors. After ErrMoved the session is forgotten; after the others nothing has changed.
var (
	// ErrInvalid: a value is outside the range that the message gives.
	ErrInvalid = errors.New("invalid session")
	// ErrMoved: the session is tied to another rank, and the mode is Hard. Do not send the request where it was picked;
	// asked again, it is tied anew.
	ErrMoved = errors.New("session is tied to another worker")
	// ErrFull: every session holds a lease. Go on without affinity, or try again when requests have ended.
	ErrFull = errors.New("too many active sessions")
)

// Mode says what becomes of a session whose request was picked another rank.
type Mode uint8

// Modes.
const (
	Hard Mode = iota
	Soft
)

// String gives Dynamo's name.
func (m Mode) String() string {
	if m == Soft {
		return "soft"
	}
	return "hard"
}

// ParseMode reads "hard" or "soft". Errors: ErrInvalid.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "hard":
		return Hard, nil
	case "soft":
		return Soft, nil
	}
	return 0, fmt.Errorf("%w: mode %q must be \"hard\" or \"soft\"", ErrInvalid, s)
}

// session is a tied session. It is in Table.idle, at its deadline, exactly while it has no leases.
type session struct {
	id       string
	tied     *tied
	at       int    // in tied.sessions
	tie      uint64 // tells this session from earlier ones of the same id
	leases   int
	deadline int64 // the first moment at which it is forgotten
}

// tied are the sessions of a rank. When it is gone they are forgotten at once, whoever asks, and taken out of the table one by one.
type tied struct {
	rank     worker.Rank
	gone     bool
	at       int // in Table.gone, if it is gone
	sessions []*session
}

type idle struct {
	deadline int64
	id       string
}

// Lease is what a bound request holds of its session. The zero value is a lease on nothing.
type Lease struct {
	id  string
	tie uint64
}

// Table ties sessions to ranks; see the package comment.
//
// Invariants (checked in the tests): each session is in its rank's tied.sessions at its place; ranks holds exactly the ranks that are not gone and have
// sessions; gone holds exactly those that are gone and have sessions, and left counts these.
type Table struct {
	ttl      int64
	mode     Mode
	ties     uint64 // sessions so far
	sessions map[string]*session
	idle     *btree.BTreeG[idle]
	ranks    map[worker.Rank]*tied
	gone     []*tied
	left     int
}

// New returns an empty table. Errors: ErrInvalid, of a time to live outside [MinTTL, MaxTTL].
func New(ttl time.Duration, mode Mode) (*Table, error) {
	if ttl < MinTTL || ttl > MaxTTL {
		return nil, fmt.Errorf("%w: time to live %v must be in [%v, %v]", ErrInvalid, ttl, MinTTL, MaxTTL)
	}
	less := func(a, b idle) bool {
		if c := cmp.Compare(a.deadline, b.deadline); c != 0 {
			return c < 0
		}
		return a.id < b.id
	}
	return &Table{
		ttl: ttl.Nanoseconds(), mode: mode, sessions: map[string]*session{}, ranks: map[worker.Rank]*tied{},
		idle: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}),
	}, nil
}

// CheckID refuses ids that are too long to be kept. Errors: ErrInvalid.
func CheckID(id string) error {
	if len(id) > MaxIDBytes {
		return fmt.Errorf("%w: id %.32q... has %d bytes, more than %d", ErrInvalid, id, len(id), MaxIDBytes)
	}
	return nil
}

// Home tells which rank a session is tied to, false if to none.
func (t *Table) Home(id string, now int64) (worker.Rank, bool) {
	t.tidy(now)
	if s := t.find(id, now); s != nil {
		return s.tied.rank, true
	}
	return worker.Rank{}, false
}

// Bind leases a session to a request that was picked a rank, and ties the session to it if it is tied to none or may
// move. Errors: ErrInvalid, ErrMoved, ErrFull; then there is no lease.
func (t *Table) Bind(id string, rank worker.Rank, now int64) (Lease, error) {
	if err := CheckID(id); err != nil {
		return Lease{}, err
	}
	t.tidy(now)
	s := t.find(id, now)
	switch {
	case s == nil:
		if err := t.makeRoom(); err != nil {
			return Lease{}, err
		}
		t.ties++
		s = &session{id: strings.Clone(id), tie: t.ties} // it was lent
		t.sessions[s.id] = s
		t.settle(s, rank)
	case s.tied.rank != rank && t.mode == Hard:
		was := s.tied.rank
		t.forget(s)
		return Lease{}, fmt.Errorf("%w: %q is tied to %v, not %v", ErrMoved, id, was, rank)
	default:
		if s.leases == 0 {
			t.idle.Delete(idle{s.deadline, s.id})
		}
		if s.tied.rank != rank {
			t.unsettle(s)
			t.settle(s, rank)
		}
	}
	s.leases++
	return Lease{s.id, s.tie}, nil
}

// Release ends a lease, once; the last one of a session starts its time to live. Nothing happens if the session was
// forgotten since, also if its id is tied again.
func (t *Table) Release(l Lease, now int64) {
	s := t.sessions[l.id]
	if s == nil || s.tie != l.tie || s.leases == 0 {
		return
	}
	if s.leases--; s.leases == 0 {
		s.deadline = now + min(t.ttl, math.MaxInt64-max(now, 0))
		t.idle.Set(idle{s.deadline, s.id})
	}
}

// DropRank forgets the sessions of a rank that is gone: their next requests are tied anew. It takes no longer for many.
func (t *Table) DropRank(rank worker.Rank) {
	if of := t.ranks[rank]; of != nil {
		of.gone, of.at = true, len(t.gone)
		delete(t.ranks, rank)
		t.gone = append(t.gone, of)
		t.left += len(of.sessions)
	}
}

// Len counts the sessions that are tied at a time.
func (t *Table) Len(now int64) int {
	n := len(t.sessions) - t.left
	t.idle.Scan(func(i idle) bool {
		if i.deadline > now {
			return false
		}
		if !t.sessions[i.id].tied.gone {
			n--
		}
		return true
	})
	return n
}

// find gives a session that is tied at a time; one that is not any more, but still there, it takes out.
func (t *Table) find(id string, now int64) *session {
	s := t.sessions[id]
	if s != nil && (s.tied.gone || s.leases == 0 && s.deadline <= now) {
		t.forget(s)
		return nil
	}
	return s
}

// settle ties a session to a rank.
func (t *Table) settle(s *session, rank worker.Rank) {
	of := t.ranks[rank]
	if of == nil {
		of = &tied{rank: rank}
		t.ranks[rank] = of
	}
	s.tied, s.at = of, len(of.sessions)
	of.sessions = append(of.sessions, s)
}

// unsettle undoes it.
func (t *Table) unsettle(s *session) {
	of := s.tied
	last := of.sessions[len(of.sessions)-1]
	of.sessions[s.at], last.at = last, s.at
	of.sessions[len(of.sessions)-1] = nil
	of.sessions = of.sessions[:len(of.sessions)-1]
	if of.gone {
		t.left--
	}
	switch empty := len(of.sessions) == 0; {
	case empty && of.gone:
		last := t.gone[len(t.gone)-1]
		t.gone[of.at], last.at = last, of.at
		t.gone[len(t.gone)-1] = nil
		t.gone = t.gone[:len(t.gone)-1]
	case empty:
		delete(t.ranks, of.rank)
	}
}

func (t *Table) forget(s *session) {
	if s.leases == 0 {
		t.idle.Delete(idle{s.deadline, s.id})
	}
	t.unsettle(s)
	delete(t.sessions, s.id)
}

// tidied is how many sessions a call takes out that are forgotten, at most of each kind: so no moment at which thousands end holds anybody up.
const tidied = 32

// tidy takes out sessions whose time has come or whose rank is gone.
func (t *Table) tidy(now int64) {
	for range tidied {
		first, ok := t.idle.Min()
		if !ok || first.deadline > now {
			break
		}
		t.forget(t.sessions[first.id])
	}
	for range tidied {
		if !t.forgetGone() {
			return
		}
	}
}

// forgetGone takes out a session whose rank is gone, if there is one.
func (t *Table) forgetGone() bool {
	if len(t.gone) == 0 {
		return false
	}
	of := t.gone[len(t.gone)-1]
	t.forget(of.sessions[len(of.sessions)-1])
	return true
}

func (t *Table) makeRoom() error {
	if len(t.sessions) < MaxSessions { // also if there are any whose rank is gone: tidy took some out
		return nil
	}
	first, ok := t.idle.Min()
	if !ok {
		return fmt.Errorf("%w: %d", ErrFull, len(t.sessions))
	}
	t.forget(t.sessions[first.id])
	return nil
}
