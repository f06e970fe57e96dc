package workload

import "github.com/dynamo-go/dynamo-go/core/block"

const (
	requestUser    = 1_000_000 // the first object that makes the rest of a request unique
	decisionPrefix = 5000      // the first token stream of a shared prefix
	activeSeed     = 21
	decisionSeed   = 33

	// ActivePerWorker is how many requests a worker serves in the steady state.
	ActivePerWorker = 16
	// BlockSize is that of all requests, in tokens.
	BlockSize = 16
	// PromptTokens is the length of a prompt of Decision and Selection, in tokens.
	PromptTokens = 2048
)

// skewed draws a prefix; low numbers are common.
func skewed(rng *RNG) uint64 { return rng.Below(rng.Below(Prefixes) + 1) }

// Active makes requests of 128 blocks, of which 64 are those of a shared prefix.
type Active struct{ rng RNG }

// NewActive starts the sequence of requests.
func NewActive() *Active { return &Active{activeSeed} }

// Request gives the block hashes of the next request, whose second half is that of number k alone.
func (a *Active) Request(k int) []block.Hash {
	hashes := Hashes(Prefix, skewed(&a.rng), PrefixBlocks)
	return append(hashes, Hashes(User, requestUser+uint64(k), 64)...)
}

// Decision makes the prompts of a router: 1,024 tokens of a shared prefix and as many of their own.
type Decision struct {
	rng      RNG
	prefixes [][]block.Token
	next     uint64
}

// NewDecision starts the sequence of prompts.
func NewDecision() *Decision {
	d := &Decision{rng: decisionSeed}
	for p := range uint64(Prefixes) {
		d.prefixes = append(d.prefixes, Tokens(nil, decisionPrefix+p, PromptTokens/2))
	}
	return d
}

// Prefixes are the shared prefixes; prefix p is held by the workers w of which Holds(w, p).
func (d *Decision) Prefixes() [][]block.Token { return d.prefixes }

// Holds tells whether a worker holds a prefix: a quarter of the workers does.
func (d *Decision) Holds(worker, prefix int) bool { return (worker+prefix)%4 == 0 }

// Prompt appends the next prompt, PromptTokens of them.
func (d *Decision) Prompt(dst []block.Token) []block.Token {
	dst = append(dst, d.prefixes[skewed(&d.rng)]...)
	d.next++
	return Tokens(dst, requestUser+d.next-1, PromptTokens/2)
}

// Selection is what worker i holds of a prompt and is busy with when workers are only to be scored.
type Selection struct {
	CachedTokens   int // a multiple of BlockSize
	PrefillTokens  int
	ActiveBlocks   int
	ActiveRequests int
}

// NewSelection gives the state of worker i.
func NewSelection(i int) Selection { return Selection{i % 32 * 64, 16 * i, i % 127, i % 17} }
