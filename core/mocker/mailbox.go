package mocker

import (
	"sync"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// A mailbox carries tokens from the scheduler, which must not wait, to the request's handler, which may. It holds at most
// the tokens of one request.
type mailbox struct {
	ready chan struct{} // holds an item when there is something to take

	mu     sync.Mutex
	tokens []block.Token
	latest progress
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

// generated implements sink.
func (b *mailbox) generated(tokens []block.Token, p progress) {
	b.mu.Lock()
	b.tokens = append(b.tokens, tokens...)
	b.latest = p
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take empties the box.
func (b *mailbox) take() ([]block.Token, progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tokens := b.tokens
	b.tokens = nil
	return tokens, b.latest
}
