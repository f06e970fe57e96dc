package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func compare(peers []peer, samples map[string][]float64) comparison {
	return comparison{row{part: "index", name: "a", unit: "ns", work: "some work", peers: peers}, samples}
}

func TestTheBetterPeerCounts(t *testing.T) {
	c := compare([]peer{crtc, radix, chain}, map[string][]float64{ours: {30, 10, 20}, crtc.name: {60, 50}, radix.name: {40, 70, 90}, chain.name: nil})
	r := c.result("abc", "today")
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"a","unit":"ns","ours":10,"peer":40,"peer_name":"`+radix.name+`","ratio":4,"commit":"abc","date":"today"}`, string(text))
	mine, best, _ := c.judge()
	require.Equal(t, figures{10, 20}, mine)
	require.Equal(t, figures{40, 70}, *best)
}

func TestWithoutPeerThereIsNoRatio(t *testing.T) {
	for _, peers := range [][]peer{nil, {crtc}} {
		c := compare(peers, map[string][]float64{ours: {5}})
		text, err := json.Marshal(c.result("abc", "today"))
		require.NoError(t, err)
		require.JSONEq(t, `{"name":"a","unit":"ns","ours":5,"peer":null,"peer_name":null,"ratio":null,"commit":"abc","date":"today"}`, string(text))
	}
}

func TestRowsOfOtherRunsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	require.NoError(t, mergeFile(path, []result{{Name: "a", Ours: 1}, {Name: "b", Ours: 2}}))
	require.NoError(t, mergeFile(path, []result{{Name: "c", Ours: 3}, {Name: "a", Ours: 4}}))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var got []result
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, []result{{Name: "a", Ours: 4}, {Name: "b", Ours: 2}, {Name: "c", Ours: 3}}, got)

	require.NoError(t, os.WriteFile(path, []byte("not JSON"), 0o600))
	require.ErrorContains(t, mergeFile(path, got), path)
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "not JSON", string(text), "a file that is no result list is not overwritten")
}

func TestDigits(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 1.234567: 1.235, 123456: 123500, 0.00123456: 0.001235, 9999.7: 10000, 57.86: 57.86} {
		require.Equal(t, want, digits(in))
	}
}

func TestHumanFigures(t *testing.T) {
	for _, c := range []struct {
		f    float64
		unit string
		want string
	}{
		{319.4, "ns", "319 ns"}, {2560, "ns", "2.56 us"}, {9_618_044, "ns", "9.62 ms"}, {2e9, "ns", "2 s"},
		{113.8, "ns/block", "114 ns/block"}, {1900, "ns/block", "1.9 us/block"}, {57.9, "B", "57.9 B"}, {0.0712, "B", "0.0712 B"},
	} {
		require.Equal(t, c.want, human(c.f, c.unit))
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	lone := compare(nil, map[string][]float64{ours: {5e6}})
	table(&out, []comparison{compare(shared, map[string][]float64{ours: {100, 150}, crtc.name: {320, 330}}), lone})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, []string{"a", "some work", "100 ns / 150 ns", "320 ns / 330 ns", "3.20", crtc.name}, cells(lines[1]))
	require.Equal(t, []string{"a", "some work", "5 ms / 5 ms", "-", "-", "-"}, cells(lines[2]))
}

func cells(line string) (all []string) {
	for c := range strings.SplitSeq(line, "  ") {
		if c = strings.TrimSpace(c); c != "" {
			all = append(all, c)
		}
	}
	return all
}

func TestRowsAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		require.False(t, seen[r.name], r.name)
		seen[r.name] = true
		require.NotEmpty(t, r.work)
		require.Contains(t, []string{"ns", "ns/block", "ns/token", "B", perSecond}, r.unit)
		if _, ok := scripts[r.situation]; !ok {
			require.Contains(t, prepare, r.situation)
		}
	}
	for situation := range compared {
		require.Contains(t, prepare, situation)
	}
	for situation := range atMost {
		if _, ok := scripts[situation]; !ok {
			require.Contains(t, prepare, situation)
		}
	}
}

// TestEveryRowIsExplained checks that docs/benchmarks.md defines each row, and no row that does not exist.
func TestEveryRowIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/benchmarks.md")
	require.NoError(t, err)
	defined := map[string]bool{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			names, _, _ := strings.Cut(rest, "|")
			for name := range strings.SplitSeq(names, ",") {
				defined[strings.Trim(name, " `")] = true
			}
		}
	}
	for _, r := range rows {
		require.True(t, defined[r.name], "%s is not explained", r.name)
		delete(defined, r.name)
	}
	require.Empty(t, defined)
}

func TestTheTreeOfOneThreadHasRowsOfItsOwn(t *testing.T) {
	for _, r := range rows {
		require.Equal(t, strings.HasSuffix(r.name, "_radix"), slices.Contains(r.peers, radix), r.name)
		require.True(t, len(r.peers) == 1 || !slices.Contains(r.peers, radix), r.name)
	}
}

// TestRates: of rates more is better.
func TestRates(t *testing.T) {
	c := comparison{row{unit: perSecond, peers: []peer{nginx, direct}}, map[string][]float64{ours: {100, 300, 200}, nginx.name: {100, 150}, direct.name: {600, 500}}}
	mine, best, name := c.judge()
	require.Equal(t, figures{300, 200}, mine)
	require.Equal(t, figures{600, 500}, *best)
	require.Equal(t, direct.name, name)
	require.Equal(t, 0.5, *c.result("c", "d").Ratio)
}

// TestPeersAreTheVersionsTheirNamesSay checks the names against the places that pin what is built and installed.
func TestPeersAreTheVersionsTheirNamesSay(t *testing.T) {
	cargo, err := os.ReadFile("peers/Cargo.toml")
	require.NoError(t, err)
	script, err := os.ReadFile("../build.sh")
	require.NoError(t, err)
	text := strings.ReplaceAll(string(cargo)+string(script), "{ version = ", "")
	seen := map[peer]bool{}
	for _, r := range rows {
		for _, p := range r.peers {
			if seen[p] = true; p == nginx || p == direct { // the machine's own
				continue
			}
			name, _, _ := strings.Cut(p.name, ",")
			name, version, _ := strings.Cut(name, " ")
			require.True(t, strings.Contains(text, name+` = "=`+version+`"`) || strings.Contains(text, name+"=="+version+"\n"), p.name)
		}
	}
	require.Len(t, seen, 9)
}

func TestChoose(t *testing.T) {
	chosen, err := choose([]string{"decision"}, "^select")
	require.NoError(t, err)
	require.Len(t, chosen, 2)
	chosen, err = choose(nil, "")
	require.NoError(t, err)
	require.Len(t, chosen, len(rows))
	_, err = choose([]string{"nothing"}, "")
	require.ErrorContains(t, err, "index decision")
	_, err = choose(nil, "nothing")
	require.Error(t, err)
	_, err = choose(nil, "(")
	require.Error(t, err)
}

func TestList(t *testing.T) {
	var out, progress bytes.Buffer
	require.NoError(t, run([]string{"--list", "--only", "_64$", "index", "decision"}, &out, &progress))
	require.Equal(t, "decision decide_64\ndecision select_64\n", out.String())
}

func TestServeAnswers(t *testing.T) {
	var out bytes.Buffer
	err := serve(func() map[string]measurement {
		return map[string]measurement{
			"many": func() map[string][]float64 { return map[string][]float64{"x": {1, 2.5}} },
			"one":  func() map[string][]float64 { return one(3, 1e-9) },
			"none": func() map[string][]float64 { return one() },
		}
	}, strings.NewReader("many\none\nnone\nother\n"), &out)
	require.ErrorContains(t, err, `no measurement "other"`)
	lines := bufio.NewReader(&out)
	ready, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", ready)
	for _, c := range []struct {
		measure string
		want    map[string][]float64
	}{{"many", map[string][]float64{"x": {1, 2.5}}}, {"one", map[string][]float64{"": {3, 1e-9}}}, {"none", map[string][]float64{}}} {
		got, err := readAnswer(lines, c.measure)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, bad := range []string{"", "x 1\n", "x 1 y\ndone m\n", "x 1\ndone other\n", "\n\ndone other\n"} {
		_, err = readAnswer(bufio.NewReader(strings.NewReader(bad)), "m")
		require.Error(t, err, bad)
	}
}

func TestHelpNamesTheParts(t *testing.T) {
	var out, progress bytes.Buffer
	require.ErrorIs(t, run([]string{"--help"}, &out, &progress), flag.ErrHelp)
	for _, part := range parts() {
		require.Contains(t, progress.String(), part)
	}
}
