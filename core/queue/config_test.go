package queue_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/queue"
)

const fullConfig = `
default_policy_family: standard
uncached_isl_buckets:
  - {min_tokens: 0, bucket: all}
policy_classes:
  - {name: root-default, policy_family: standard, cache_bucket: all, queue_policy: wspt, quantum: 8, prefill_busy_threshold: 100}
  - {name: vip, quantum: 0x10}
models:
  exact-model:
    default_policy_family: latency
    uncached_isl_buckets: [{min_tokens: 0, bucket: cached}, {min_tokens: 32, bucket: uncached}]
    policy_classes:
      - {name: model-cached, policy_family: latency, cache_bucket: cached, quantum: 2, request_queue_limit_per_worker: 0}
      - {name: model-uncached, policy_family: latency, cache_bucket: uncached, quantum: 4, prefill_busy_threshold_frac: 0}
`

func TestAModelsProfileReplacesTheOneForAll(t *testing.T) {
	c, err := queue.ParseConfig([]byte(fullConfig))
	require.NoError(t, err)
	own := c.Profile("exact-model")
	require.Equal(t, []queue.Class{
		{Name: "model-cached", Quantum: 2, RequestLimit: ptr(int64(0))},
		{Name: "model-uncached", Quantum: 4, PrefillBusyFrac: ptr(0.0)},
	}, own.Classes())
	require.True(t, own.Queues())
	require.Equal(t, 0, own.Classify("", 0))
	require.Equal(t, 0, own.Classify("latency", 31))
	require.Equal(t, 1, own.Classify("latency", 32))
	require.Equal(t, 1, own.Classify("unknown", 1<<60), "the default family")
	require.Equal(t, 0, own.Classify("vip", 0), "a class of another profile")

	all := c.Profile("other")
	require.Equal(t, []queue.Class{
		{Name: "root-default", Policy: queue.WSPT, Quantum: 8, PrefillBusyTokens: ptr(int64(100))},
		{Name: "vip", Quantum: 16},
	}, all.Classes())
	require.Equal(t, 1, all.Classify("vip", 5), "an explicit class")
	require.Equal(t, 0, all.Classify("root-default", 5), "a class of a family is not asked for by its name")
}

func TestAProfileForSomeModelsOnly(t *testing.T) {
	c, err := queue.ParseConfig([]byte("models: {m: " + oneClass + "}"))
	require.NoError(t, err)
	require.NotNil(t, c.Profile("m"))
	require.Nil(t, c.Profile("n"))
}

func TestSingleProfile(t *testing.T) {
	require.False(t, queue.Single(nil, queue.LCFS).Queues())
	p := queue.Single(ptr(1.5), queue.LCFS)
	require.Equal(t, []queue.Class{{Name: "default", Policy: queue.LCFS, Quantum: 1, PrefillBusyFrac: ptr(1.5)}}, p.Classes())
	require.Zero(t, p.Classify("anything", 1<<40))
}

const oneClass = `{default_policy_family: f, uncached_isl_buckets: [{min_tokens: 0, bucket: b}],
  policy_classes: [{name: c, policy_family: f, cache_bucket: b, quantum: 1}]}`

func TestAliasesAreRead(t *testing.T) {
	p := profile(t, `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: b}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: b, quantum: &q 7}
  - {name: d, quantum: *q, queue_policy: ~}
`)
	require.Equal(t, int64(7), p.Classes()[1].Quantum)
}

func TestBadPolicyFilesAreRefused(t *testing.T) {
	with := func(class string) string {
		return fmt.Sprintf("default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\n"+
			"policy_classes: [{name: c, policy_family: f, cache_bucket: b, quantum: 1}, %s]", class)
	}
	buckets := func(list string) string {
		return strings.Replace(oneClass, "[{min_tokens: 0, bucket: b}]", list, 1)
	}
	for name, c := range map[string]struct{ yaml, says string }{
		"nothing":              {"", "not YAML"},
		"only a comment":       {"# hi", "not YAML"},
		"null":                 {"~", "expected a mapping"},
		"no profile":           {"{}", "no profile"},
		"no YAML":              {"a: [", "not YAML"},
		"two documents":        {oneClass + "\n---\n{}", "more than one document"},
		"a list":               {"[1]", "expected a mapping"},
		"a section of another": {"worker_selection: {}", `unknown key "worker_selection"; known: default_policy_family, uncached_isl_buckets, policy_classes, models`},
		"key twice":            {"models: {}\nmodels: {}", "twice"},
		"a number as key":      {"1: 2", "expected text"},
		"a profile in part":    {"default_policy_family: f", "uncached_isl_buckets is missing"},
		"unknown in class":     {with("{name: d, quantum: 1, quanta: 2}"), `policy_classes[1] (line 3): unknown key "quanta"; known: name,`},
		"merge key":            {"x: &x {}\n<<: *x", "unknown key"},
		"no quantum":           {with("{name: d}"), "quantum is missing"},
		"no name":              {with("{quantum: 1}"), "policy_classes[1].name is missing"},
		"quantum 0":            {with("{name: d, quantum: 0}"), `"0", expected a whole number from 1`},
		"quantum text":         {with("{name: d, quantum: '1'}"), "whole number"},
		"quantum huge":         {with("{name: d, quantum: 1e99}"), "whole number"},
		"quantum a list":       {with("{name: d, quantum: [1]}"), "whole number"},
		"negative limit":       {with("{name: d, quantum: 1, request_queue_limit_per_worker: -1}"), "whole number"},
		"frac infinite":        {with("{name: d, quantum: 1, prefill_busy_threshold_frac: .inf}"), "finite number"},
		"frac NaN":             {with("{name: d, quantum: 1, prefill_busy_threshold_frac: .nan}"), "finite number"},
		"frac negative":        {with("{name: d, quantum: 1, prefill_busy_threshold_frac: -0.5}"), "finite number"},
		"lcfs":                 {with("{name: d, quantum: 1, queue_policy: lcfs}"), "expected fcfs or wspt"},
		"odd policy":           {with("{name: d, quantum: 1, queue_policy: sjf}"), "expected fcfs or wspt"},
		"odd name":             {with("{name: 'd e', quantum: 1}"), "must match"},
		"empty name":           {with("{name: '', quantum: 1}"), "must match"},
		"name twice":           {with("{name: c, quantum: 1}"), "twice"},
		"half placed":          {with("{name: d, quantum: 1, policy_family: f}"), "both policy_family and cache_bucket"},
		"unknown bucket":       {with("{name: d, quantum: 1, policy_family: f, cache_bucket: x}"), `unknown bucket "x"; known: [b]`},
		"cell twice":           {with("{name: d, quantum: 1, policy_family: f, cache_bucket: b}"), "a second class"},
		"name of a family":     {with("{name: f, quantum: 1}"), "both a class and a family"},
		"unknown family":       {strings.Replace(oneClass, "default_policy_family: f", "default_policy_family: g", 1), "no class's policy_family"},
		"a hole in the matrix": {buckets("[{min_tokens: 0, bucket: b}, {min_tokens: 1, bucket: d}]"), `no class for family "f" and bucket "d"`},
		"buckets not from 0":   {buckets("[{min_tokens: 1, bucket: b}]"), "expected 0 in the first"},
		"buckets not rising":   {buckets("[{min_tokens: 0, bucket: b}, {min_tokens: 0, bucket: d}]"), "expected more than"},
		"bucket twice":         {buckets("[{min_tokens: 0, bucket: b}, {min_tokens: 1, bucket: b}]"), "twice"},
		"no buckets":           {buckets("[]"), "expected a list of 1 to"},
		"no classes":           {"default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\npolicy_classes: []", "expected a list of 1 to"},
		"a nameless model":     {"models: {'': " + oneClass + "}", "name is empty"},
		"a null model":         {"models: {m: }", "no profile"},
		"in a model":           {"models: {m: {quantum: 1}}", "models.m (line 1): unknown key"},
		"a cycle":              {"models: &m {x: *m}", "models.x"},
	} {
		_, err := queue.ParseConfig([]byte(c.yaml))
		require.ErrorIs(t, err, queue.ErrInvalid, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

func TestHostilePolicyFilesAreBounded(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, yaml := range map[string]string{
		"too long":      strings.Repeat(" ", queue.MaxConfigBytes+1),
		"deep lists":    strings.Repeat("[", queue.MaxConfigBytes/2),
		"deep mappings": strings.Repeat("a: {", queue.MaxConfigBytes/8),
		"indented":      many(1400, "%[1]*[1]d:\n"),
		"classes":       strings.Replace(oneClass, "}]}", "}"+many(1024, ", {name: c%d, quantum: 1}")+"]}", 1),
		"buckets":       strings.Replace(oneClass, "[{min", "["+many(1025, "{min_tokens: %[1]d, bucket: b%[1]d}, ")+"{min", 1),
		"models":        "models:\n" + many(1025, "  m%d: {}\n"),
		"billion laughs": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\nmodels: {x: *d}",
	} {
		_, err := queue.ParseConfig([]byte(yaml))
		require.ErrorIs(t, err, queue.ErrInvalid, name)
		require.Less(t, len(err.Error()), 4096, name)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte("models: {m: " + oneClass + "}"))
	f.Add([]byte("default_policy_family: &a f\nuncached_isl_buckets: [&b {min_tokens: 0, bucket: *a}, *b]\npolicy_classes: [*b]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := queue.ParseConfig(data)
		if err != nil {
			require.ErrorIs(t, err, queue.ErrInvalid)
			return
		}
		for _, model := range []string{"", "m", "exact-model"} {
			p := c.Profile(model)
			if p == nil {
				continue
			}
			for _, uncached := range []int64{0, 1, 31, 32, 1 << 60} {
				at := p.Classify("f", uncached)
				require.Positive(t, p.Classes()[at].Quantum)
			}
			queue.New[int](p, 0)
		}
	})
}
