package mocker

import "github.com/dynamo-go/dynamo-go/core/block"

// A sink receives the tokens of one sequence. It is called by whoever drives the scheduler and must not block.
type sink interface {
	// generated delivers tokens that are due, and how the sequence is doing.
	generated(tokens []block.Token, p progress)
}

// progress is what is known of a sequence once it generates.
type progress struct {
	cached   int   // prompt tokens that were found in the cache
	queue    int64 // ns of the engine's time that it waited to be admitted
	ttft     int64 // and from its arrival to its first token
	finished bool
}

// state is where a sequence is in its life: waiting -> prefill -> decode -> over; over from anywhere when cancelled.
type state uint8

const (
	waiting state = iota
	prefill
	decode
	over
)

// sequence is one request inside the engine.
type sequence struct {
	prompt    []block.Token
	adapter   string             // LoRA adapter; "" is none
	keys      []block.EngineHash // of the full prompt blocks
	chain     *chain             // continues after keys
	maxTokens int
	sink      sink

	state    state
	pages    []int32
	reserved int           // pages it may still take for its output
	cached   int           // prompt tokens found in the cache
	computed int           // tokens whose keys and values are in pages
	tail     []block.Token // the computed tokens after the last full block, once prefill is over
	arrived  int64         // ns, like all times here
	admitted int64
	first    int64  // when the first token was due
	out      int    // tokens generated
	wake     int64  // when the next tokens are delivered
	order    uint64 // of admission: breaks ties between equal times
	heap     int    // position in the scheduler's heap, -1 when not in it
}

// newSequence prepares a request; hashing the prompt here keeps it out of the scheduler.
func newSequence(prompt []block.Token, maxTokens, blockSize int, seed string, s sink) *sequence {
	return newAdapted(prompt, maxTokens, blockSize, seed, "", s)
}

// newAdapted is newSequence with a LoRA adapter, whose blocks are others; "" is none.
func newAdapted(prompt []block.Token, maxTokens, blockSize int, seed, adapter string, s sink) *sequence {
	if adapter != "" {
		seed += "\x00" + adapter
	}
	q := &sequence{prompt: prompt, adapter: adapter, chain: newChain(seed), maxTokens: maxTokens, sink: s, heap: -1}
	full := len(prompt) / blockSize
	q.keys = make([]block.EngineHash, full)
	for i := range q.keys {
		q.keys[i] = q.chain.next(prompt[i*blockSize : (i+1)*blockSize])
	}
	return q
}

// kept counts the tokens that the sequence ever has in pages: the last generated token is never computed.
func (q *sequence) kept() int { return len(q.prompt) + q.maxTokens - 1 }

// token gives the i-th generated token: a function of the prompt, as with greedy sampling.
func (q *sequence) token(i int) block.Token {
	seed := uint64(len(q.prompt))<<32 | uint64(q.prompt[len(q.prompt)-1])
	if n := len(q.keys); n > 0 {
		seed ^= uint64(q.keys[n-1])
	}
	return block.Token(firstWord + splitmix(seed+uint64(i))%(vocabulary-firstWord))
}

// vocabulary bounds generated tokens.
const vocabulary = 32000

// splitmix is Steele's SplitMix64 finaliser.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
