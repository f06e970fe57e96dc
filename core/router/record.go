package router

import (
	"fmt"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/tally"
)

// This file keeps the latest decisions, with what each expected the engine to find in its cache and what the engine says that it found.

// MaxDecisions bounds Config.RecordDecisions: at about 120 bytes each.
const MaxDecisions = 1 << 20

// Decision is a decision that chose a rank, as it is recorded (Config.RecordDecisions).
type Decision struct {
	Number       uint64  `json:"number"`     // from 1 on, in the order of decisions
	At           float64 `json:"at"`         // Unix seconds
	RequestID    *string `json:"request_id"` // null: nothing was booked
	WorkerID     uint64  `json:"worker_id"`
	DPRank       uint32  `json:"dp_rank"`
	PromptTokens int     `json:"prompt_tokens"`

	// PredictedCachedTokens is what the rank holds of the prompt in all tiers, as far as the router knows.
	PredictedCachedTokens int `json:"predicted_cached_tokens"`
	// ActualCachedTokens is what the engine found, if it was reported (ReportCachedTokens); else null.
	ActualCachedTokens *int `json:"actual_cached_tokens"`
}

// record is a ring of decisions. Router.mu guards it.
//
// Invariants: decision n is at (n-1) % most while it is among the latest most; byID has the latest decision of each id that was booked, if the
// ring still has that.
type record struct {
	most   int
	rows   []Decision
	number uint64 // of the latest
	byID   map[string]uint64
	hits   tally.Hits
}

func newRecord(most int) *record { return &record{most: most, byID: make(map[string]uint64)} }

// record keeps a decision for a rank, of which s knows what it holds. r.mu is held.
func (r *Router) record(s *scratch, q *Request, k *rank) {
	d, blocks := r.decided, s.device[k.slot]
	if s.view.Host != nil {
		blocks += s.host[k.slot]
	}
	if s.view.Disk != nil {
		blocks += s.disk[k.slot]
	}
	d.number++
	row := Decision{
		Number: d.number, At: seconds(r.clock()), WorkerID: k.id.ID, DPRank: k.id.DPRank, PromptTokens: s.isl,
		PredictedCachedTokens: min(int(blocks)*r.blockSize, s.isl),
	}
	if q.Book {
		id := strings.Clone(q.ID) // it was lent
		row.RequestID = &id
		d.byID[id] = d.number
	}
	if len(d.rows) < d.most {
		d.rows = append(d.rows, row)
		return
	}
	at := &d.rows[(d.number-1)%uint64(d.most)]
	if at.RequestID != nil && d.byID[*at.RequestID] == at.Number {
		delete(d.byID, *at.RequestID)
	}
	*at = row
}

// ReportCachedTokens says how many tokens of a booked request's prompt its engine found in its cache ("cached_tokens" of a usage), at any time from its
// decision on, also when it was freed. The first report counts, more than the prompt has counts as all of it. It has no effect where decisions are not recorded.
// Errors: ErrInvalidArgument; ErrRequestNotFound: no such request is among the recorded; ErrClosed.
func (r *Router) ReportCachedTokens(id string, tokens int64) error {
	if tokens < 0 {
		return fmt.Errorf("%w: cached_tokens=%d of %.100q, expected 0 or more", ErrInvalidArgument, tokens, id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	d := r.decided
	if d == nil {
		return nil
	}
	number, ok := d.byID[id]
	if !ok {
		return fmt.Errorf("%w: %.100q is not among the decisions that are recorded", ErrRequestNotFound, id)
	}
	row := &d.rows[(number-1)%uint64(d.most)]
	if row.ActualCachedTokens == nil {
		actual := int(min(tokens, int64(row.PromptTokens))) // an engine may have been sent more than what was routed by
		row.ActualCachedTokens = &actual
		d.hits.Count(row.PromptTokens/r.blockSize, row.PredictedCachedTokens/r.blockSize, actual/r.blockSize)
	}
	return nil
}

// copied is how many decisions are copied before others have a turn at the lock.
const copied = 1024

// Decisions gives the recorded decisions with a number above after, oldest first; none where decisions are not recorded
// (Config.RecordDecisions). Errors: ErrClosed.
func (r *Router) Decisions(after uint64) ([]Decision, error) {
	all := []Decision{}
	for more := true; more; {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, ErrClosed
		}
		if more = false; r.decided != nil {
			d := r.decided
			next := max(after, d.number-uint64(len(d.rows))) // the number before the next one
			for ; next < d.number && !more; next++ {
				all = append(all, d.rows[next%uint64(d.most)])
				more = len(all)%copied == 0
			}
			after = next
		}
		r.mu.Unlock()
	}
	return all, nil
}
