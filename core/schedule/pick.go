package schedule

import (
	"math/rand/v2"
	"slices"
)

// Pick chooses the position of one of the costs, or -1 if there is none.
//
// At temperature 0 it is the lowest, ties uniformly at random. At T > 0 position i has a chance proportional to
// exp(-n/T), where n is its cost scaled so that the lowest is 0 and the highest is 1; if all are equal, the chances are.
// Infinite costs and NaN take part in neither scale nor choice unless there is nothing else: -Inf wins outright, +Inf
// and then NaN come last. Chances below e^-40 of the best are zero.
func (s *Scores) Pick(temperature float64, rng *rand.Rand) int {
	if soft, ok := newSoftmax(s.Costs, s.least, temperature); ok {
		return soft.draw(s.Costs, rng)
	}
	return s.pickLeast(rng)
}

// Pick is Scores.Pick for any costs, from wherever.
func Pick(costs []float64, temperature float64, rng *rand.Rand) int {
	s := Scores{Costs: costs}
	s.lowest()
	return s.Pick(temperature, rng)
}

// lowest finds the lowest cost.
func (s *Scores) lowest() {
	least, first, ties, from := leading(s.Costs)
	for i := from; i < len(s.Costs); i++ {
		if c := s.Costs[i]; c <= least {
			if c < least || ties == 0 {
				least, first, ties = c, i, 0
			}
			ties++
		}
	}
	s.least, s.first, s.ties = least, first, ties
}

// Probabilities gives the chance of each cost to be picked at a temperature, in dst if it is long enough.
func Probabilities(dst, costs []float64, temperature float64) []float64 {
	dst = slices.Grow(dst[:0], len(costs))[:len(costs)]
	s := Scores{Costs: costs}
	s.lowest()
	soft, ok := newSoftmax(costs, s.least, temperature)
	var total float64
	for i, c := range costs {
		switch {
		case ok:
			dst[i] = soft.weight(c)
		case c == s.least || s.ties == 0:
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

// pickLeast draws once however many ties there are: a reservoir would draw for each.
func (s *Scores) pickLeast(rng *rand.Rand) int {
	switch {
	case len(s.Costs) == 0:
		return -1
	case s.ties == 0:
		return rng.IntN(len(s.Costs))
	case s.ties == 1:
		return s.first
	}
	skip := rng.IntN(s.ties)
	for i, c := range s.Costs[s.first:] {
		if c != s.least {
			continue
		}
		if skip == 0 {
			return s.first + i
		}
		skip--
	}
	return s.first // not reached: ties counts them
}
