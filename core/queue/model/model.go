// Package model is the queue of package queue as slices and loops, to be checked by eye and compared with.
package model

import (
	"math"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/queue"
)

type item struct {
	queue.Request
	id     int
	number int
	score  float64
}

// before is the order within a class.
func before(a, b *item) bool {
	due := func(x *item) int64 {
		if x.Deadline == 0 {
			return math.MaxInt64
		}
		return x.Deadline
	}
	if a.StrictPriority != b.StrictPriority {
		return a.StrictPriority > b.StrictPriority
	}
	if due(a) != due(b) {
		return due(a) < due(b)
	}
	if a.score != b.score {
		return a.score > b.score
	}
	return a.number < b.number
}

type class struct {
	queue.Class
	items   []*item // in order
	deficit int64
	stats   queue.Stats
}

// Queue has the semantics of queue.Queue. Items are named by ids of the caller. Every Next asks every lane.
type Queue struct {
	classes []*class
	max     int
	number  int
	next    int
	carry   int
}

// New returns an empty queue.
func New(p *queue.Profile, maxRequests int) *Queue {
	q := &Queue{max: maxRequests, carry: -1}
	for _, c := range p.Classes() {
		q.classes = append(q.classes, &class{Class: c})
	}
	return q
}

// Len tells how many requests wait.
func (q *Queue) Len() int {
	n := 0
	for _, c := range q.classes {
		n += len(c.items)
	}
	return n
}

// Stats gives the counters of a class.
func (q *Queue) Stats(at int) queue.Stats {
	c := q.classes[at]
	s := c.stats
	for _, it := range c.items {
		s.Requests++
		s.ISLTokens += it.ISLTokens
		s.CachedTokens += it.CachedTokens
	}
	return s
}

// MustWait tells whether a new request has to be pushed.
func (q *Queue) MustWait(at, workers int, allBusy func() bool) bool {
	c := q.classes[at]
	return workers > 0 && c.Queues() && (len(c.items) > 0 || allBusy())
}

// Push lets a request wait.
func (q *Queue) Push(now int64, workers int, r queue.Request, id int) error {
	if err := r.Check(); err != nil {
		return err
	}
	r.CachedTokens = min(r.CachedTokens, r.ISLTokens)
	c := q.classes[r.Class]
	c.stats.Pushed++
	if r.Deadline != 0 && r.Deadline <= now {
		c.stats.DeadlinePassed++
		return queue.ErrDeadline
	}
	held := q.Stats(r.Class)
	full := func(limit *int64, current int64) bool { return limit != nil && current >= *limit*int64(workers) }
	if full(c.RequestLimit, held.Requests) || full(c.ISLTokenLimit, held.ISLTokens) ||
		full(c.CachedTokenLimit, held.CachedTokens) || q.Len() >= q.max {
		c.stats.LimitRefused++
		return queue.ErrQueueLimit
	}
	it := &item{Request: r, id: id, number: q.number}
	q.number++
	seconds := float64(now) / 1e9
	switch jump := math.Max(r.PriorityJump, 0); c.Policy {
	case queue.FCFS:
		it.score = jump - seconds
	case queue.LCFS:
		it.score = jump + seconds
	case queue.WSPT:
		it.score = (1 + jump) / float64(cost(it))
	}
	c.items = append(c.items, it)
	slices.SortFunc(c.items, func(a, b *item) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	return nil
}

func cost(it *item) int64 { return max(it.ISLTokens-it.CachedTokens, 1) }

// Remove takes a request out.
func (q *Queue) Remove(id int) bool {
	for _, c := range q.classes {
		for i, it := range c.items {
			if it.id == id {
				c.items = slices.Delete(c.items, i, i+1)
				if len(c.items) == 0 {
					c.deficit = 0
				}
				return true
			}
		}
	}
	return false
}

// Expired takes out the request with the earliest deadline, if it has come; -1 otherwise.
func (q *Queue) Expired(now int64) int {
	var first *item
	for _, c := range q.classes {
		for _, it := range c.items {
			if it.Deadline != 0 && it.Deadline <= now && (first == nil || it.Deadline < first.Deadline ||
				it.Deadline == first.Deadline && it.number < first.number) {
				first = it
			}
		}
	}
	if first == nil {
		return -1
	}
	q.Remove(first.id)
	q.classes[first.Class].stats.DeadlinePassed++
	return first.id
}

// candidate gives the first item of the class that leads its lane and fits.
func (c *class) candidate(fits func(*queue.Request) bool) *item {
	led := map[string]bool{}
	for _, it := range c.items {
		if !led[it.Lane] && fits(&it.Request) {
			return it
		}
		led[it.Lane] = true
	}
	return nil
}

// Next takes out the request that goes next among those that fit; -1 if none does. It plays the round robin round by round.
func (q *Queue) Next(fits func(*queue.Request) bool) int {
	n := len(q.classes)
	affordable := func(at int) *item {
		if it := q.classes[at].candidate(fits); it != nil && cost(it) <= q.classes[at].deficit {
			return it
		}
		return nil
	}
	if q.carry >= 0 {
		if it := affordable(q.carry); it != nil {
			return q.serve(it)
		}
	}
	waiting := false
	for i := range n {
		at := (q.next + i) % n
		c := q.classes[at]
		if c.candidate(fits) == nil {
			continue
		}
		waiting = true
		if affordable(at) == nil {
			c.deficit += c.Quantum
		}
		if it := affordable(at); it != nil {
			return q.serve(it)
		}
	}
	for waiting {
		for _, c := range q.classes {
			if c.candidate(fits) != nil {
				c.deficit += c.Quantum
			}
		}
		for i := range n {
			if it := affordable((q.next + i) % n); it != nil {
				return q.serve(it)
			}
		}
	}
	q.carry = -1
	return -1
}

func (q *Queue) serve(it *item) int {
	c := q.classes[it.Class]
	c.deficit -= cost(it)
	q.Remove(it.id)
	q.next, q.carry = (it.Class+1)%len(q.classes), -1
	if c.deficit > 0 {
		q.carry = it.Class
	}
	return it.id
}
