package load

import (
	"math"
	"math/bits"
)

// backlog is the prefill a slot still has to do: its requests that prefill, oldest first. The oldest is the anchor, the one
// the rank is taken to be busy with.
//
// If the anchor has an expected duration, what is done of it is subtracted:
//
//	done = floor(anchor tokens * elapsed / anchor duration), or the anchor's tokens if the duration is 0
//
// where elapsed counts from the moment it became the anchor. If every request of the backlog has a duration, the rank is
// taken to go on at that speed after the anchor, so done is bounded by the whole backlog; else by the anchor's tokens.
// When another request leaves the backlog and it has a duration, the rank must have worked on it too: elapsed is shortened
// by that duration, to not less than 0. Without durations nothing is ever done before it is complete.
type backlog struct {
	order     list
	tokens    int64 // sum
	nanos     int64 // sum of the durations there are
	unmodeled int32 // requests without a duration
	since     int64 // when the first became the anchor
}

func (b *backlog) add(requests []request, i uint32, now int64) {
	r := &requests[i]
	if b.order.first == 0 {
		b.since = now
	}
	b.order.push(requests, byPrefill, i)
	b.tokens += r.prefillTokens
	b.nanos += r.prefillNanos
	if !r.modeled {
		b.unmodeled++
	}
}

func (b *backlog) remove(requests []request, i uint32, now int64) {
	r := &requests[i]
	anchor := b.order.first == i
	b.order.remove(requests, byPrefill, i)
	b.tokens -= r.prefillTokens
	b.nanos -= r.prefillNanos
	if !r.modeled {
		b.unmodeled--
	}
	if anchor {
		b.since = now
	} else {
		b.since = min(addSaturating(b.since, r.prefillNanos), now)
	}
}

// decays tells whether the passing of time changes what is left.
func (b *backlog) decays(requests []request) bool {
	anchor := &requests[b.order.first]
	return anchor.prefillNanos > 0 // also: there is an anchor
}

// left counts the tokens still to do.
func (b *backlog) left(requests []request, now int64) int64 {
	anchor := &requests[b.order.first]
	if !anchor.modeled {
		return b.tokens // also: there is no anchor
	}
	most := b.tokens
	if b.unmodeled > 0 {
		most = anchor.prefillTokens
	}
	done := anchor.prefillTokens
	if anchor.prefillNanos > 0 {
		done = mulDiv(done, b.elapsed(now), anchor.prefillNanos, most)
	}
	return b.tokens - min(done, most)
}

// remaining gives the time that the backlog should still take, or false if a request in it has no duration.
func (b *backlog) remaining(now int64) (nanos int64, ok bool) {
	if b.unmodeled > 0 {
		return 0, false
	}
	if b.order.first == 0 {
		return 0, true
	}
	return max(b.nanos-b.elapsed(now), 0), true
}

// elapsed saturates; since is never after now.
func (b *backlog) elapsed(now int64) int64 {
	if d := now - b.since; d >= 0 {
		return d
	}
	return math.MaxInt64
}

// mulDiv is floor(a*b/c), at most limit, for a, b >= 0 and c > 0.
func mulDiv(a, b, c, limit int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi == 0 {
		return int64(min(lo/uint64(c), uint64(limit)))
	}
	if hi >= uint64(c) {
		return limit
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, uint64(limit)))
}
