package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Pick chooses the position of one of the costs, or -1 if there is none.
//
// At temperature 0 it is the lowest, ties uniformly at random. At T > 0 position i has a chance proportional to
// exp(-n/T), where n is its cost scaled so that the lowest is 0 and the highest is 1; if all are equal, the chances are.
// Infinite costs and NaN take part in neither scale nor choice unless there is nothing else: -Inf wins outright, +Inf
// and then NaN come last. Chances below e^-40 of the best are zero.
func Pick(costs []float64, temperature float64, rng *rand.Rand) int {
	if s, ok := newSoftmax(costs, temperature); ok {
		return s.draw(costs, rng)
	}
	return pickLeast(costs, rng)
}

// Probabilities gives the chance of each cost to be picked at a temperature, in dst if it is long enough.
func Probabilities(dst, costs []float64, temperature float64) []float64 {
	dst = slices.Grow(dst[:0], len(costs))[:len(costs)]
	s, ok := newSoftmax(costs, temperature)
	least, _, ties := lowest(costs)
	var total float64
	for i, c := range costs {
		switch {
		case ok:
			dst[i] = s.weight(c)
		case c == least || ties == 0:
			dst[i] = 1
		default:
			dst[i] = 0
		}
		total += dst[i]
	}
	for i := range dst {
		dst[i] /= total
	}
	return dst
}

// lowest finds the lowest cost, where it first occurs, and how often; ties is 0 if there is no number.
func lowest(costs []float64) (least float64, first, ties int) {
	least = math.Inf(1)
	for i, c := range costs {
		if c < least {
			least, first, ties = c, i, 1
		} else if c == least {
			if ties == 0 {
				first = i
			}
			ties++
		}
	}
	return least, first, ties
}

// pickLeast draws once however many ties there are: a reservoir would draw for each.
func pickLeast(costs []float64, rng *rand.Rand) int {
	if len(costs) == 0 {
		return -1
	}
	least, at, ties := lowest(costs)
	if ties == 0 {
		return rng.IntN(len(costs))
	}
	if ties == 1 {
		return at
	}
	for skip := rng.IntN(ties); ; at++ {
		if costs[at] != least {
			continue
		}
		if skip == 0 {
			return at
		}
		skip--
	}
}
