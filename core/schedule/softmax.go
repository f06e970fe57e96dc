package schedule

import (
	"math"
	"math/rand/v2"
)

// softmax maps costs to weights: 1 for the lowest, exp(-1/T) for the highest finite one.
type softmax struct {
	least       float64 // halved if halve
	span        float64 // > 0, finite
	temperature float64
	halve       bool // the range of the costs overflows: work with halves
}

// newSoftmax fails where the choice is not a softmax: temperature 0, no finite range, or all costs equal.
func newSoftmax(costs []float64, least, temperature float64) (softmax, bool) {
	if !(temperature > 0) {
		return softmax{}, false
	}
	most := math.Inf(-1)
	for _, c := range costs {
		if c > most {
			most = c
		}
	}
	if most > math.MaxFloat64 {
		most = math.Inf(-1)
		for _, c := range costs {
			if c > most && c <= math.MaxFloat64 {
				most = c
			}
		}
	}
	if !(least < most) || math.IsInf(least, 0) {
		return softmax{}, false
	}
	s := softmax{least: least, span: most - least, temperature: temperature}
	if math.IsInf(s.span, 0) {
		s = softmax{least: least / 2, span: most/2 - least/2, temperature: temperature, halve: true}
	}
	return s, true
}

// weight divides by the span before the temperature: their product could overflow, or vanish.
func (s *softmax) weight(cost float64) float64 {
	if s.halve {
		cost /= 2
	}
	return expNegative((cost - s.least) / s.span / s.temperature)
}

// draw picks a position by weight. The lowest cost has weight 1, so a position drawn at random and taken with the chance
// of its weight has the right distribution, whatever was refused before: a few tries settle nearly every draw at usual
// temperatures, without a look at the other candidates. Cold ones, where the tries fail, are drawn by sums.
func (s *softmax) draw(costs []float64, rng *rand.Rand) int {
	for range min(len(costs)/8, 64) {
		i := rng.IntN(len(costs))
		if rng.Float64() < s.weight(costs[i]) {
			return i
		}
	}
	return s.drawBySums(costs, rng)
}

// drawBySums picks by cumulated weights. Weights are summed by chunks on the stack, and only the chunk where the draw falls
// is computed again: no allocation, and nearly no second pass.
func (s *softmax) drawBySums(costs []float64, rng *rand.Rand) int {
	const chunks = 64
	var sums [chunks]float64
	size := (len(costs) + chunks - 1) / chunks
	var total float64
	last := 0 // the last position that can be drawn, for a draw that rounding carries past all sums
	for i, chunk := 0, 0; i < len(costs); chunk++ {
		var sum float64
		for end := min(i+size, len(costs)); i < end; i++ {
			w := s.weight(costs[i])
			if w > 0 {
				last = i
			}
			sum += w
		}
		sums[chunk] = sum
		total += sum
	}
	u := rng.Float64() * total
	for chunk, whole := range sums {
		if u >= whole {
			u -= whole
			continue
		}
		var sum float64
		for i := chunk * size; i < min((chunk+1)*size, len(costs)); i++ {
			if sum += s.weight(costs[i]); u < sum {
				return i
			}
		}
		break
	}
	return last
}

// expNegative is exp(-x) for x >= 0, to 1e-8 of its value; 0 beyond 40 and for NaN. math.Exp takes several times as
// long, and it is the whole cost of a pick at a temperature.
func expNegative(x float64) float64 {
	if !(x <= 40) {
		return 0
	}
	k := int(x*math.Log2E + 0.5)
	r := float64(k)*math.Ln2 - x // |r| <= ln(2)/2, so the eighth term is below 1e-8
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120+r*(1.0/720+r*(1.0/5040)))))))
	return p * math.Float64frombits(uint64(1023-k)<<52)
}
