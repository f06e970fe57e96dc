package block

import "slices"

// Object is one multimodal object of a prompt: its hash, and the half-open token ranges its placeholders take.
type Object struct {
	Hash   uint64
	Ranges [][2]int
}

// ByBlock gives, for each block of a prompt (a partial last one included), the hashes of the objects that overlap it,
// each once, in the order of the objects: what Identity.MM holds. Empty ranges and those beyond the prompt overlap
// nothing. A block size below 1 has no blocks.
func ByBlock(objects []Object, tokens, blockSize int) [][]uint64 {
	if blockSize < 1 || tokens < 1 {
		return nil
	}
	mm := make([][]uint64, (tokens+blockSize-1)/blockSize)
	for _, o := range objects {
		for _, r := range o.Ranges {
			start, end := max(r[0], 0), min(r[1], tokens)
			for b := start / blockSize; start < end && b <= (end-1)/blockSize; b++ {
				if !slices.Contains(mm[b], o.Hash) {
					mm[b] = append(mm[b], o.Hash)
				}
			}
		}
	}
	return mm
}
