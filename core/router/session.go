package router

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// wishes gives the constraints of a request with what it wishes for besides: a rank that has its adapter, the rank of its
// session. r.mu is held.
func (r *Router) wishes(s *scratch, q *Request) *schedule.Constraints {
	adapter := r.adapters && q.LoRAName != ""
	session := r.sessions != nil && q.SessionID != ""
	if !adapter && !session {
		return &q.Constraints
	}
	s.constraints = q.Constraints
	if adapter {
		s.constraints.Adapter = q.LoRAName
	}
	if session {
		if home, ok := r.sessions.Home(q.SessionID, r.now()); ok {
			s.home = schedule.Home{Worker: home.ID, HasDPRank: true, DPRank: home.DPRank}
			s.constraints.Home = &s.home
		}
	}
	return &s.constraints
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
