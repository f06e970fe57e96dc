package load

import (
	"math"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Origin names the router that placed a request: 0 is this one, others are what replicas call themselves.
type Origin uint64

// maxRemote bounds what other routers may book here: far beyond what a fleet serves at a time, and a bound on what a peer
// that has gone wrong can take.
const maxRemote = 1 << 20

// Placement says where a request is booked, and by whom.
type Placement struct {
	Rank   worker.Rank
	Slot   worker.Slot
	Origin Origin
}

// Placed tells where a request is booked, or false.
func (l *Ledger) Placed(id string) (Placement, bool) {
	i, ok := l.find(id)
	if !ok {
		return Placement{}, false
	}
	r := &l.requests[i]
	return Placement{r.rank, r.slot, r.origin}, true
}

// remotePeriods is how many expiry periods a request of another router lives without progress that is told: it makes some
// that nobody tells (AddOutputBlocks), and its owner tells when it ends, or is known to be gone. It goes by itself only if
// that was lost on the way.
const remotePeriods = 10

// RemotePrefillComplete is PrefillComplete as another router, not 0, tells it: it counts only for a request that this router
// placed, on the slot it means. It tells whether it did.
func (l *Ledger) RemotePrefillComplete(id string, slot worker.Slot, origin Origin, now int64) bool {
	now = l.at(now)
	i, ok := l.of(id, slot, origin)
	if ok {
		l.completePrefill(i, now)
	}
	return ok
}

// RemoteFree is Free as another router tells it, under the rule of RemotePrefillComplete.
func (l *Ledger) RemoteFree(id string, slot worker.Slot, origin Origin, now int64) bool {
	now = l.at(now)
	i, ok := l.of(id, slot, origin)
	if ok {
		l.release(i, now)
	}
	return ok
}

// of gives the request that another router placed on a slot.
func (l *Ledger) of(id string, slot worker.Slot, origin Origin) (uint32, bool) {
	i, ok := l.find(id)
	return i, ok && origin != 0 && l.requests[i].origin == origin && l.requests[i].slot == slot
}

// own gives the request that this router placed.
func (l *Ledger) own(id string) (uint32, bool) {
	i, ok := l.find(id)
	return i, ok && l.requests[i].origin == 0
}

// period is how long a request of an origin lives without progress, and queue where it waits for its end: requests of one
// period stand in the order of their progress.
func (l *Ledger) period(origin Origin) (nanos int64, queue *list) {
	if origin == 0 {
		return l.expiry, &l.deadlines
	}
	if l.expiry > math.MaxInt64/remotePeriods {
		return math.MaxInt64, &l.remoteDeadlines
	}
	return l.expiry * remotePeriods, &l.remoteDeadlines
}

// Departure is a router that is gone, and how much of what it placed is ended already.
type Departure struct {
	origin Origin
	last   int64  // no request that it placed before it left has a later deadline
	next   uint32 // of Ledger.requests
}

// Departed begins to end the requests of a router that is gone: DropOrigin does it. What it places when it is back is not among them.
func (l *Ledger) Departed(origin Origin, now int64) Departure {
	period, _ := l.period(origin)
	return Departure{origin, addSaturating(l.at(now), period), 0}
}

// dropScan is how many requests DropOrigin looks at for each that it may end.
const dropScan = 16

// DropOrigin ends requests that a router placed which is gone, MaxEnds at most, and tells how many, and whether it is to be called again.
func (l *Ledger) DropOrigin(d *Departure, now int64) (n int, more bool) {
	now = l.at(now)
	for looked := 0; int(d.next) < len(l.requests); looked++ {
		if n == l.maxEnds || looked == l.maxEnds*dropScan {
			return n, true
		}
		if r := &l.requests[d.next]; r.live && r.origin == d.origin && r.deadline <= d.last {
			l.abandon(d.next, now)
			n++
		}
		d.next++
	}
	return n, false
}
