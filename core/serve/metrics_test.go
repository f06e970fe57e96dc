package serve_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMetricsAreDocumented: those that a server has besides the router's are a table of the page, with their kinds, and nothing else is in it.
func TestMetricsAreDocumented(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, nil)
	parse(t, post(s, `{"prompt": [1], "max_tokens": 1}`))
	router, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/serve.md")
	require.NoError(t, err)
	has, says := map[string]string{}, map[string]string{}
	for line := range strings.Lines(ask(s, "GET", "/metrics", "").text) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[1] == "TYPE" && !strings.Contains(string(router), "`"+fields[2]+"`") {
			has[fields[2]] = fields[3]
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(dynamo_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(page), -1) {
		says[row[1]] = row[2]
	}
	require.Equal(t, has, says)
}
