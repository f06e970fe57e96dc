package queue

import "sort"

// Profile is a set of classes and the rule that gives a request its class. It does not change once made.
//
// Classes form families: each family has a class for every bucket of uncached prompt lengths. Explicit classes stand
// outside and are asked for by name.
type Profile struct {
	classes []Class

	explicit map[string]int
	families map[string]int
	fallback int     // the default family
	floors   []int64 // of the buckets: least uncached tokens, ascending from 0
	matrix   []int   // class by family and bucket
}

// Single gives the profile without a policy file: one class, "default". A nil threshold means that no request waits;
// otherwise a rank is busy when its prompt tokens exceed threshold times its max_num_batched_tokens.
func Single(threshold *float64, policy Policy) *Profile {
	return &Profile{
		classes: []Class{{Name: "default", Policy: policy, Quantum: 1, PrefillBusyFrac: threshold}},
		floors:  []int64{0},
		matrix:  []int{0},
	}
}

// Classes lists the classes; Request.Class is an index into them. The caller does not change them.
func (p *Profile) Classes() []Class { return p.classes }

// Queues tells whether requests of any class can wait.
func (p *Profile) Queues() bool {
	for i := range p.classes {
		if p.classes[i].Queues() {
			return true
		}
	}
	return false
}

// Classify gives the class of a request that asks for a class or family by name and has so many uncached prompt tokens. A
// name that is not known, also "", means the default family.
func (p *Profile) Classify(requested string, uncachedTokens int64) int {
	if c, ok := p.explicit[requested]; ok {
		return c
	}
	family, ok := p.families[requested]
	if !ok {
		family = p.fallback
	}
	bucket := sort.Search(len(p.floors), func(i int) bool { return p.floors[i] > uncachedTokens }) - 1
	return p.matrix[family*len(p.floors)+max(bucket, 0)]
}
