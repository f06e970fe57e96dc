package tally

// Hits compares what decisions expected of caches with what engines found there, over the requests of which an engine told. Like Decisions it is
// guarded by who counts.
type Hits struct {
	Requests  uint64
	Blocks    uint64 // full ones of the prompts
	Predicted uint64 // of Blocks, those that the chosen rank was known to hold
	Actual    uint64 // of Blocks, those that its engine found
}

// Count counts a request.
func (h *Hits) Count(blocks, predicted, actual int) {
	h.Requests++
	h.Blocks += uint64(blocks)
	h.Predicted += uint64(predicted)
	h.Actual += uint64(actual)
}
