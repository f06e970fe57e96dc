package publish

// ring keeps the payloads of the latest steps, each at the place its sequence number gives.
//
// Invariant: step s, for next-len(steps) <= s < next, is at steps[s % limit].
type ring struct {
	limit int
	next  uint64
	steps [][]byte
}

// push keeps one more payload and tells its sequence number.
func (r *ring) push(payload []byte) uint64 {
	seq := r.next
	if len(r.steps) < r.limit {
		r.steps = append(r.steps, payload)
	} else {
		r.steps[seq%uint64(r.limit)] = payload
	}
	r.next++
	return seq
}

// since gives the kept payloads from start on, and the sequence number of the first of them.
func (r *ring) since(start uint64) (first uint64, payloads [][]byte) {
	first = max(start, r.next-uint64(len(r.steps)))
	if first >= r.next {
		return r.next, nil
	}
	payloads = make([][]byte, 0, r.next-first)
	for s := first; s < r.next; s++ {
		payloads = append(payloads, r.steps[s%uint64(r.limit)])
	}
	return first, payloads
}
