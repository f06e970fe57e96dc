package serve

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheLastWordIsAnEventOfItsOwn: in whatever pieces it comes, and however much came before.
func TestTheLastWordIsAnEventOfItsOwn(t *testing.T) {
	for stream, want := range map[string]bool{
		"data: [DONE]\n\n":                         true,
		"data:[DONE]\r\n\r\n":                      true,
		"data: {}\n\ndata: [DONE]":                 true, // the end may be cut off
		"data: {}\n\nevent: end\ndata: [DONE]\n\n": true,
		"data: {}\n\ndata: [DONE]\n\n: bye\n\n":    true,
		"data: {\"text\":\"[DONE]\"}\n\n":          false,
		"data: {}\n\ndata: 1\ndata: [DONE]\n\n":    false,
		"data: {}\n\ndata: [DONE]\ndata: 1\n\n":    false,
		"data: {}\n\ndata: [DONE] now\n\n":         false,
		"data: data: [DONE]\n\n":                   false,
		"[DONE]\n\n":                               false,
		"":                                         false,
	} {
		for _, before := range []int{0, 10, keptTail - 14, keptTail, 10 * keptTail} {
			text := stream
			if before > 0 {
				text = "data: " + strings.Repeat("x", before) + "\n\n" + stream
			}
			for _, size := range []int{1, 7, 500, keptTail + 1, 1 << 20} {
				r := request{s: &Server{}, events: true}
				rest := text
				for len(rest) > size {
					r.see([]byte(rest[:size]))
					rest = rest[size:]
				}
				require.Equal(t, want, r.done([]byte(rest)), "%q after %d in pieces of %d", stream, before, size)
			}
		}
	}
}
