// Package schedule scores worker ranks for a request and picks one: pure functions over arrays of overlap and load.
//
// A decision has three steps, each of which stands alone: Eligible filters the registered ranks by the request's
// constraints, Scores.Compute gives the candidates that are left their costs, Scores.Pick takes one. The cost is Dynamo
// 1.6.1's, lower is better:
//
//	credit  = OverlapCredit*d*device + HostWeight*host + DiskWeight*disk + SharedMultiplier*shared
//	d       = 1 / (1 + CreditDecay * (prefill tokens above the least loaded candidate, in prompts of this length))
//	prefill = max(0, (active prefill tokens + max(prompt, cached)) / block size - credit)
//	decode  = active blocks + new blocks
//	cost    = PrefillLoadScale*prefill + decode + DecodeActiveRequestWeight*requests
//	cost    = max(0, decode - credit) + DecodeActiveRequestWeight*requests    without prefill tracking, but for prefill pools
//	cost    = cost * exp(-tanh(sum of the preferred taints that match))
//
// Without prefill tracking prefill is 0 (branch D, the second cost, has no such term), and d is 1. With OverlapCredit 0
// nothing is credited, whatever the tier, as in Dynamo, where that setting means: do not look at caches. Dynamo has no
// MinOverlapBlocks: where a rank's own tiers hold fewer blocks than that, they are credited as none.
//
// At temperature 0 the cheapest wins, ties uniformly at random; above, the pick is a softmax over costs scaled to [0,1].
// Costs are never NaN or negative for valid weights, but may overflow to infinity; Pick takes any floats. The same
// sequence of calls with an equally seeded generator picks the same. Nothing here allocates but what the caller's
// buffers are too short for.
//
// The arithmetic of potential loads is that of the cost: Candidate.PotentialPrefillTokens and PotentialDecodeBlocks.
// Package schedule/model is the formula written out; costs equal it bit for bit.
package schedule
