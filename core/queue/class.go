package queue

import (
	"fmt"
	"math"
)

// Policy orders the requests of a class that have the same strict priority and deadline.
type Policy uint8

// Policies; see the package comment.
const (
	FCFS Policy = iota // first come, first served
	LCFS               // last come, first served
	WSPT               // weighted shortest processing time: what is soonest done, per weight, first
)

var policyNames = [...]string{FCFS: "fcfs", LCFS: "lcfs", WSPT: "wspt"}

func (p Policy) String() string { return policyNames[p] }

// ParsePolicy reads router_queue_policy. Errors: ErrInvalid.
func ParsePolicy(name string) (Policy, error) {
	for p, known := range policyNames {
		if name == known {
			return Policy(p), nil
		}
	}
	return 0, fmt.Errorf("%w: unknown queue policy %q, expected fcfs, lcfs or wspt", ErrInvalid, name)
}

// DefaultMaxBatchedTokens stands for the batch size of a worker that did not give it.
const DefaultMaxBatchedTokens = 10_000_000

// Class configures one class of requests. A nil limit or threshold is none.
type Class struct {
	Name    string
	Policy  Policy
	Quantum int64 // prompt tokens that a round of the round robin gives the class; 1 to MaxTokens

	// A rank is busy above either threshold. Without both, requests of the class never wait.
	PrefillBusyTokens *int64   // prompt tokens of the rank's active requests
	PrefillBusyFrac   *float64 // the same, as a multiple of the rank's max_num_batched_tokens; finite, >= 0

	// Limits on what waits, per worker. The request that crosses one is still taken; zero refuses all.
	RequestLimit     *int64
	ISLTokenLimit    *int64
	CachedTokenLimit *int64
}

// Queues tells whether requests of the class can wait at all.
func (c *Class) Queues() bool { return c.PrefillBusyTokens != nil || c.PrefillBusyFrac != nil }

// Busy tells whether a rank with so many prompt tokens in active requests is busy for this class. maxBatchedTokens is the
// worker's max_num_batched_tokens, 0 if it is not known.
func (c *Class) Busy(activePrefillTokens int64, maxBatchedTokens uint64) bool {
	if maxBatchedTokens == 0 {
		maxBatchedTokens = DefaultMaxBatchedTokens
	}
	return c.PrefillBusyTokens != nil && activePrefillTokens > *c.PrefillBusyTokens ||
		c.PrefillBusyFrac != nil && float64(activePrefillTokens) > *c.PrefillBusyFrac*float64(maxBatchedTokens)
}

// score is the class's policy for a request; higher goes first.
func (c *Class) score(r *Request, now int64) float64 {
	jump := max(r.PriorityJump, 0)
	switch c.Policy {
	case LCFS:
		return jump + float64(now)/1e9
	case WSPT:
		return (1 + jump) / float64(r.cost())
	default:
		return jump - float64(now)/1e9
	}
}

// allowed is a limit per worker times the workers.
func allowed(perWorker int64, workers int) int64 {
	if workers > 0 && perWorker > math.MaxInt64/int64(workers) {
		return math.MaxInt64
	}
	return perWorker * int64(workers)
}
