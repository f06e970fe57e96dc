package load

import "github.com/dynamo-go/dynamo-go/core/worker"

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

// RemotePrefillComplete is PrefillComplete as another router tells it: it counts only for a request that is booked on the
// slot the other router means, whoever placed it. It tells whether it did.
func (l *Ledger) RemotePrefillComplete(id string, slot worker.Slot, now int64) bool {
	now = l.at(now)
	i, ok := l.on(id, slot)
	if ok {
		l.completePrefill(i, now)
	}
	return ok
}

// RemoteFree is Free as another router tells it, under the rule of RemotePrefillComplete.
func (l *Ledger) RemoteFree(id string, slot worker.Slot, now int64) bool {
	now = l.at(now)
	i, ok := l.on(id, slot)
	if ok {
		l.release(i, now)
	}
	return ok
}

func (l *Ledger) on(id string, slot worker.Slot) (uint32, bool) {
	i, ok := l.find(id)
	return i, ok && l.requests[i].slot == slot
}

// DropOrigin ends all requests that a router placed which is gone, and tells how many they were.
func (l *Ledger) DropOrigin(origin Origin, now int64) int {
	now = l.at(now)
	n := 0
	for i := range l.requests {
		if r := &l.requests[i]; r.live && r.origin == origin {
			l.abandon(uint32(i), now)
			n++
		}
	}
	return n
}
