package serve_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/mocker"
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

// TestRequestsAreCountedByModel: by those that are served. What clients make up adds no rows, and what is counted adds up.
func TestRequestsAreCountedByModel(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Adapters = []string{`a "quoted" one`, "unknown"} })
	s := start(t, m, nil)
	for i := range 20 {
		require.Equal(t, 404, post(s, fmt.Sprintf(`{"model": "made-up-%d", "prompt": [1]}`, i)).status)
	}
	for model, n := range map[string]int{`mock-8b`: 3, `a \"quoted\" one`: 2, `unknown`: 1} {
		for range n {
			parse(t, post(s, `{"model": "`+model+`", "prompt": [1], "max_tokens": 2}`))
		}
	}
	idle(t, s, m...)
	page := ask(s, "GET", "/metrics", "").text
	require.NotContains(t, page, "made-up")
	for _, row := range []string{
		`dynamo_frontend_requests_total{model="unknown",endpoint="completions",request_type="unary",status="404"} 20`,
		`dynamo_frontend_requests_total{model="unknown",endpoint="completions",request_type="unary",status="200"} 1`,
		`dynamo_frontend_requests_total{model="mock-8b",endpoint="completions",request_type="unary",status="200"} 3`,
		`dynamo_frontend_requests_total{model="a \"quoted\" one",endpoint="completions",request_type="unary",status="200"} 2`,
		`dynamo_frontend_output_tokens_total{model="mock-8b"} 6`,
		`dynamo_frontend_inflight_requests{model="mock-8b"} 0`,
		`dynamo_frontend_inflight_requests{model="unknown"} 0`,
		`dynamo_frontend_request_duration_seconds_bucket{model="mock-8b",le="+Inf"} 3`,
		`dynamo_frontend_request_duration_seconds_count{model="unknown"} 21`,
	} {
		require.Contains(t, page, row+"\n")
	}
}
