// Package tally counts what a router does: how its decisions end and how long they take, and what becomes of each event.
//
// Plain numbers, so that whoever counts needs no metrics library; package metrics shows them. Decisions are counted under
// the router's lock, where a decision is made anyhow, and cost a few additions; Events are counted by every feed at once,
// and are atomic. Neither allocates, reads a clock or grows: what is counted is a fixed set.
package tally

// Snapshot is everything counted so far.
type Snapshot struct {
	Decisions DecisionCounts
	Events    EventCounts
	Hits      Hits
}
