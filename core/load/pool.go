package load

import (
	"math/bits"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// Classes of arrays: 8, 16, ... 2^17 hashes; longer ones are left to the collector.
const (
	minClass = 3
	maxClass = 17
	// maxIdle bounds the hashes idle in one class (2 MiB), so that a burst does not hold its memory for ever.
	maxIdle = 1 << 18
)

// hashPool reuses arrays of hashes by size class: booking and freeing allocate nothing once warm.
type hashPool struct {
	idle [maxClass + 1][][]block.Hash
}

func class(n int) int { return max(minClass, bits.Len(uint(max(n, 1)-1))) }

// get returns an empty array with room for n.
func (p *hashPool) get(n int) []block.Hash {
	c := class(n)
	if c > maxClass {
		return make([]block.Hash, 0, n)
	}
	if k := len(p.idle[c]); k > 0 {
		a := p.idle[c][k-1]
		p.idle[c][k-1] = nil
		p.idle[c] = p.idle[c][:k-1]
		return a
	}
	return make([]block.Hash, 0, 1<<c)
}

// put takes an array that get or grow returned, and nobody uses any more.
func (p *hashPool) put(a []block.Hash) {
	c := class(cap(a))
	if c > maxClass || 1<<c != cap(a) || (len(p.idle[c])+1)<<c > maxIdle {
		return
	}
	p.idle[c] = append(p.idle[c], a[:0])
}

// grow returns the array, or a copy of it, with room for extra more.
func (p *hashPool) grow(a []block.Hash, extra int) []block.Hash {
	if len(a)+extra <= cap(a) {
		return a
	}
	b := append(p.get(len(a)+extra), a...)
	p.put(a)
	return b
}

// fit returns the array, or a copy in a smaller one where most of it would be empty.
func (p *hashPool) fit(a []block.Hash) []block.Hash {
	if len(a)*4 >= cap(a) || cap(a) == 1<<minClass {
		return a
	}
	b := append(p.get(len(a)), a...)
	p.put(a)
	return b
}
