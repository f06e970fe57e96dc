// Package model is the table of package affinity as a list that every call looks through, to be checked by eye and compared
// with.
package model

import (
	"slices"
	"time"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

type session struct {
	id     string
	rank   worker.Rank
	leases []int // request numbers
	since  int64 // without leases
}

// Table is the literal affinity.Table, without a bound. Leases are numbers that the caller gives.
type Table struct {
	TTL      time.Duration
	Mode     affinity.Mode
	sessions []session
}

func (t *Table) expire(now int64) {
	t.sessions = slices.DeleteFunc(t.sessions, func(s session) bool {
		return len(s.leases) == 0 && now-s.since >= t.TTL.Nanoseconds()
	})
}

func (t *Table) find(id string) int {
	return slices.IndexFunc(t.sessions, func(s session) bool { return s.id == id })
}

// Home is affinity.Table.Home.
func (t *Table) Home(id string, now int64) (worker.Rank, bool) {
	t.expire(now)
	if i := t.find(id); i >= 0 {
		return t.sessions[i].rank, true
	}
	return worker.Rank{}, false
}

// Bind is affinity.Table.Bind; lease numbers the lease.
func (t *Table) Bind(id string, rank worker.Rank, lease int, now int64) error {
	t.expire(now)
	i := t.find(id)
	if i >= 0 && t.sessions[i].rank != rank && t.Mode == affinity.Hard {
		t.sessions = slices.Delete(t.sessions, i, i+1)
		return affinity.ErrMoved
	}
	if i < 0 {
		i = len(t.sessions)
		t.sessions = append(t.sessions, session{id: id})
	}
	t.sessions[i].rank = rank
	t.sessions[i].leases = append(t.sessions[i].leases, lease)
	return nil
}

// Release is affinity.Table.Release.
func (t *Table) Release(lease int, now int64) {
	for i := range t.sessions {
		s := &t.sessions[i]
		if at := slices.Index(s.leases, lease); at >= 0 {
			s.leases = slices.Delete(s.leases, at, at+1)
			s.since = now
		}
	}
}

// DropRank is affinity.Table.DropRank.
func (t *Table) DropRank(rank worker.Rank) {
	t.sessions = slices.DeleteFunc(t.sessions, func(s session) bool { return s.rank == rank })
}

// Len is affinity.Table.Len.
func (t *Table) Len(now int64) int {
	t.expire(now)
	return len(t.sessions)
}
