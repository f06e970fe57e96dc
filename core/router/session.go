package router

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// wishes gives the constraints of a request with what it wishes for besides: a rank that has its adapter, the rank of its
// session. r.mu is held.
func (r *Router) wishes(s *scratch, q *Request) *schedule.Constraints {
	adapter := r.adapters > 0 && q.LoRAName != ""
	home, tied := r.home(q)
	if !adapter && !tied {
		return &q.Constraints
	}
	s.constraints = q.Constraints
	if adapter {
		s.constraints.Adapter = q.LoRAName
	}
	if tied {
		s.home = schedule.Home{Worker: home.ID, HasDPRank: true, DPRank: home.DPRank}
		s.constraints.Home = &s.home
	}
	return &s.constraints
}

// home gives the rank that a request's session is tied to, false if there is none. r.mu is held.
func (r *Router) home(q *Request) (worker.Rank, bool) {
	if r.sessions == nil || q.SessionID == "" {
		return worker.Rank{}, false
	}
	return r.sessions.Home(q.SessionID, r.now())
}

// onlyHome gives the rank that c wishes for, if nothing but that wish decides; nil otherwise. It saves looking at all ranks,
// for each of the lanes that wait. r.mu is held.
func (r *Router) onlyHome(q *Request, c *schedule.Constraints) *rank {
	if c.Home == nil || c.Adapter != "" || !q.Constraints.Free() || !r.limits.Off() {
		return nil
	}
	w := r.workers[c.Home.Worker]
	if w == nil || w.suspended {
		return nil
	}
	return w.ranks[c.Home.DPRank]
}

// bind ties the session of a request that was just booked to its rank. If it may not go there, the booking is taken back.
// Where there are too many sessions, one more goes without. r.mu is held.
func (r *Router) bind(q *Request, k *rank) error {
	if r.sessions == nil || q.SessionID == "" {
		return nil
	}
	lease, err := r.sessions.Bind(q.SessionID, k.id, r.now())
	switch {
	case errors.Is(err, affinity.ErrFull):
		return nil
	case err != nil:
		_ = r.ledger.Free(q.ID, r.now()) // booked just now: it cannot fail
		return err
	}
	r.leases[q.ID] = lease
	return nil
}

// release ends what a request that is over held of its session. r.mu is held.
func (r *Router) release(id string) {
	if lease, ok := r.leases[id]; ok {
		delete(r.leases, id)
		r.sessions.Release(lease, r.now())
	}
}
