package router

import (
	"encoding/json"
	"math"

	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Explanation tells how a request would be decided now, without deciding it.
type Explanation struct {
	ISLTokens    int          `json:"isl_tokens"`
	BlockSize    int          `json:"block_size"`
	NumBlocks    int          `json:"num_blocks"` // full blocks of the prompt
	Weights      WeightsShown `json:"weights"`    // the configuration with the request's overrides
	TrackPrefill bool         `json:"track_prefill_tokens"`
	AssumeReuse  bool         `json:"assume_kv_reuse"`
	Error        *string      `json:"error"`     // why no rank is eligible; then no row has a cost. Else null
	MustWait     bool         `json:"must_wait"` // it would have to wait (package queue)
	Picks        []RankName   `json:"picks"`     // the ranks with the best chance; one of them, at temperature 0
	Workers      []RankShown  `json:"workers"`   // every rank, by worker id and rank
}

// RankName names a rank.
type RankName struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
}

// WeightsShown are the weights under their configuration names.
type WeightsShown struct {
	OverlapScoreCredit        float64 `json:"overlap_score_credit"`
	OverlapScoreCreditDecay   float64 `json:"overlap_score_credit_decay"`
	PrefillLoadScale          float64 `json:"prefill_load_scale"`
	DecodeActiveRequestWeight float64 `json:"decode_active_request_weight"`
	HostCacheHitWeight        float64 `json:"host_cache_hit_weight"`
	DiskCacheHitWeight        float64 `json:"disk_cache_hit_weight"`
	SharedCacheMultiplier     float64 `json:"shared_cache_multiplier"`
	RouterTemperature         float64 `json:"router_temperature"`
	OverlapScoreMinBlocks     uint32  `json:"overlap_score_min_blocks"`
}

// RankShown is one rank as the decision sees it.
type RankShown struct {
	WorkerID               uint64 `json:"worker_id"`
	DPRank                 uint32 `json:"dp_rank"`
	Excluded               string `json:"excluded"`             // why it is no candidate, or ""
	OverlapBlocks          uint32 `json:"overlap_blocks"`       // on the device
	HostPinnedBlocks       uint32 `json:"host_pinned_blocks"`   // after them
	DiskBlocks             uint32 `json:"disk_blocks"`          // after those, external ones included
	SharedBlocks           uint32 `json:"shared_beyond_blocks"` // of the shared cache, beyond those on the device
	CachedTokens           int64  `json:"cached_tokens"`
	ActivePrefillTokens    int64  `json:"active_prefill_tokens"`
	ActiveBlocks           int64  `json:"active_blocks"`
	ActiveRequests         int64  `json:"active_requests"`
	NewBlocks              int64  `json:"new_blocks"`
	PotentialPrefillTokens int64  `json:"potential_prefill_tokens"`
	PotentialDecodeBlocks  int64  `json:"potential_decode_blocks"`
	TaintWeight            number `json:"taint_weight"`

	// The terms of the cost, in blocks: (prefill_cost + decode_cost + requests_cost) * taint_factor.
	CreditDecay  number  `json:"credit_decay"`  // factor of the device credit of a rank that is behind with its prefill
	Credit       number  `json:"credit_blocks"` // what overlap takes off
	PrefillCost  number  `json:"prefill_cost"`
	DecodeCost   number  `json:"decode_cost"`
	RequestsCost number  `json:"requests_cost"`
	TaintFactor  number  `json:"taint_factor"`
	Cost         *number `json:"cost"`        // null if excluded
	Probability  float64 `json:"probability"` // of being picked
}

// number is a float that JSON can carry: infinities become the largest finite values.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	return json.Marshal(max(-math.MaxFloat64, min(math.MaxFloat64, float64(n))))
}

// Explain tells how a request would be decided now. It books nothing, whatever q.Book says. Errors: ErrInvalidArgument,
// ErrClosed; that no rank is eligible is part of the explanation.
func (r *Router) Explain(q *Request) (Explanation, error) {
	if err := q.check(); err != nil {
		return Explanation{}, err
	}
	t := r.terms(&q.Overrides)
	out := Explanation{
		ISLTokens: len(q.Tokens), BlockSize: r.blockSize, TrackPrefill: t.trackPrefill, AssumeReuse: t.reuse,
		Weights: WeightsShown{t.weights.OverlapCredit, t.weights.CreditDecay, t.weights.PrefillLoadScale,
			t.weights.DecodeActiveRequestWeight, t.weights.HostWeight, t.weights.DiskWeight, t.weights.SharedMultiplier, t.weights.Temperature, t.weights.MinOverlapBlocks},
	}
	err := r.see(&q.Prompt, func(s *scratch) error {
		out.NumBlocks = len(s.hashes)
		var class *queue.Class
		if err := r.eligible(s, q); err != nil {
			why := err.Error()
			out.Error = &why
		} else if r.queue != nil {
			place, wait := r.mustWait(s, q, &t)
			if out.MustWait = wait; !wait {
				class = &r.profile.Classes()[place.Class]
			}
		}
		r.score(s, q, &t)
		out.Workers = r.shown(s, q, class, &t)
		return nil
	})
	out.Picks = picks(out.Workers)
	return out, err
}

// picks are the rows with the best chance.
func picks(rows []RankShown) []RankName {
	names, best := []RankName{}, 0.0
	for i := range rows {
		if row := &rows[i]; row.Probability > best {
			names, best = names[:0], row.Probability
		}
		if rows[i].Probability == best && best > 0 {
			names = append(names, RankName{rows[i].WorkerID, rows[i].DPRank})
		}
	}
	return names
}

// shown gives a row per rank, after score; class as in verdict. r.mu is held.
func (r *Router) shown(s *scratch, q *Request, class *queue.Class, t *terms) []RankShown {
	rows := make([]RankShown, len(r.ranks))
	costs := s.scores.Costs[:len(s.candidates)]
	chances := schedule.Probabilities(nil, costs, t.weights.Temperature)
	req := r.shape(s, t)
	req.Pinned = q.Constraints.HasWorker
	least := int64(math.MaxInt64)
	for _, slot := range s.candidates {
		least = min(least, s.view.Loads[slot].ActivePrefillTokens)
	}
	next := 0 // candidate; they are in the order of the ranks
	for i, k := range r.ranks {
		c := s.view.Candidate(k.slot, &req, &t.weights)
		c.TaintWeight = q.Constraints.TaintWeight(&r.targets[i])
		terms := c.Terms(&req, &t.weights, min(least, c.ActivePrefillTokens))
		rows[i] = RankShown{
			SharedBlocks: c.SharedBeyond,
			WorkerID:     k.id.ID, DPRank: k.id.DPRank, OverlapBlocks: c.DeviceBlocks, HostPinnedBlocks: c.HostBlocks, DiskBlocks: c.DiskBlocks,
			CachedTokens: c.CachedTokens, ActivePrefillTokens: c.ActivePrefillTokens, ActiveBlocks: c.ActiveBlocks,
			ActiveRequests: c.ActiveRequests, NewBlocks: c.NewBlocks, PotentialPrefillTokens: c.PotentialPrefillTokens(&req),
			PotentialDecodeBlocks: c.PotentialDecodeBlocks(), TaintWeight: number(c.TaintWeight),
			CreditDecay: number(terms.Decay), Credit: number(terms.Credit), PrefillCost: number(terms.Prefill),
			DecodeCost: number(terms.Decode), RequestsCost: number(terms.Requests), TaintFactor: number(terms.Taint),
		}
		if next < len(s.candidates) && s.candidates[next] == k.slot {
			cost := number(costs[next])
			rows[i].Cost, rows[i].Probability = &cost, chances[next]
			next++
		} else {
			rows[i].Excluded = string(r.verdict(s, q, class, &r.targets[i]))
		}
	}
	return rows
}

// verdict says why a rank is no candidate; class, if it is not nil, is that for which the busy ones were left out.
func (r *Router) verdict(s *scratch, q *Request, class *queue.Class, t *schedule.Target) schedule.Verdict {
	switch verdict := q.Constraints.Judge(t); {
	case verdict != schedule.Fits:
		return verdict
	case r.limits.Exceeded(t, s.view.Loads[t.Slot]):
		return schedule.Overloaded
	case class != nil && r.busy(s, class, t.Slot):
		return schedule.Busy
	}
	return r.wishes(s, q).JudgeWishes(t)
}
