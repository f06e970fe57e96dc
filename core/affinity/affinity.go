package affinity

import (
	"cmp"
	"errors"
	"fmt"
	"math"
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
	rank     worker.Rank
	tie      uint64 // tells this session from earlier ones of the same id
	leases   int
	deadline int64 // the first moment at which it is forgotten
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
type Table struct {
	ttl      int64
	mode     Mode
	ties     uint64 // sessions so far
	sessions map[string]session
	idle     *btree.BTreeG[idle]
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
		ttl: ttl.Nanoseconds(), mode: mode, sessions: map[string]session{},
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
	t.expire(now)
	s, ok := t.sessions[id]
	return s.rank, ok
}

// Bind leases a session to a request that was picked a rank, and ties the session to it if it is tied to none or may
// move. Errors: ErrInvalid, ErrMoved, ErrFull; then there is no lease.
func (t *Table) Bind(id string, rank worker.Rank, now int64) (Lease, error) {
	if err := CheckID(id); err != nil {
		return Lease{}, err
	}
	t.expire(now)
	s, ok := t.sessions[id]
	switch {
	case !ok:
		if err := t.makeRoom(); err != nil {
			return Lease{}, err
		}
		t.ties++
		s.tie = t.ties
	case s.rank != rank && t.mode == Hard:
		t.forget(id, s)
		return Lease{}, fmt.Errorf("%w: %q is tied to %v, not %v", ErrMoved, id, s.rank, rank)
	case s.leases == 0:
		t.idle.Delete(idle{s.deadline, id})
	}
	s.rank = rank
	s.leases++
	t.sessions[id] = s
	return Lease{id, s.tie}, nil
}

// Release ends a lease, once; the last one of a session starts its time to live. Nothing happens if the session was
// forgotten since, also if its id is tied again.
func (t *Table) Release(l Lease, now int64) {
	s, ok := t.sessions[l.id]
	if !ok || s.tie != l.tie || s.leases == 0 {
		return
	}
	if s.leases--; s.leases == 0 {
		s.deadline = now + min(t.ttl, math.MaxInt64-max(now, 0))
		t.idle.Set(idle{s.deadline, l.id})
	}
	t.sessions[l.id] = s
}

// DropRank forgets the sessions of a rank that is gone: their next requests are tied anew.
func (t *Table) DropRank(rank worker.Rank) {
	for id, s := range t.sessions {
		if s.rank == rank {
			t.forget(id, s)
		}
	}
}

// Len counts the sessions that are tied at a time.
func (t *Table) Len(now int64) int {
	t.expire(now)
	return len(t.sessions)
}

func (t *Table) forget(id string, s session) {
	if s.leases == 0 {
		t.idle.Delete(idle{s.deadline, id})
	}
	delete(t.sessions, id)
}

// expire forgets the sessions whose time has come.
func (t *Table) expire(now int64) {
	for {
		first, ok := t.idle.Min()
		if !ok || first.deadline > now {
			return
		}
		t.idle.PopMin()
		delete(t.sessions, first.id)
	}
}

func (t *Table) makeRoom() error {
	if len(t.sessions) < MaxSessions {
		return nil
	}
	first, ok := t.idle.PopMin()
	if !ok {
		return fmt.Errorf("%w: %d", ErrFull, len(t.sessions))
	}
	delete(t.sessions, first.id)
	return nil
}
