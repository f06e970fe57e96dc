package feed

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page that explains missing hits explains every counter there is, and no other: this package's, those of the decoder's
// verdicts, and the one that the router adds.
func TestDocsListEveryCounter(t *testing.T) {
	there := append(slices.Clone(counterNames[:]), "evicted_blocks")
	verdicts, err := os.ReadFile("../wire/normalize.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`Verdict = "([a-z_]+)"`).FindAllStringSubmatch(string(verdicts), -1) {
		there = append(there, m[1])
	}
	slices.Sort(there)
	there = slices.Compact(there)
	require.Greater(t, len(there), 40)

	page, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Counters\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \| `).FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			listed = append(listed, name[1])
		}
	}
	slices.Sort(listed)
	require.Equal(t, there, listed)
}
