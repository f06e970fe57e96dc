package serve_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/serve"
)

// engineVariable has this binary be an engine: its value is a mocker's configuration.
const engineVariable = "DGO_TEST_ENGINE"

// isEngine runs an engine, if this process is to be one, until its parent dies or kills it.
func isEngine() bool {
	text := os.Getenv(engineVariable)
	if text == "" {
		return false
	}
	cfg := mocker.DefaultConfig()
	err := json.Unmarshal([]byte(text), &cfg)
	var m *mocker.Mocker
	if err == nil {
		m, err = mocker.New(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(m.Info())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// process is an engine that can be killed.
type process struct {
	info  mocker.Info
	cmd   *exec.Cmd
	stdin io.Closer
}

func spawn(t *testing.T, config string) *process {
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), engineVariable+"="+config)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &p.info))
	return p
}

// kill ends it as the kernel does, in the middle of whatever it does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // its status says that it was killed
}

func (p *process) stats(t *testing.T) (s mocker.Stats) {
	r, err := http.Get(p.info.HTTP + "/stats")
	require.NoError(t, err)
	defer r.Body.Close()
	require.NoError(t, json.NewDecoder(r.Body).Decode(&s))
	return s
}

// site is a server before engines of a file.
type site struct {
	t      *testing.T
	server *serve.Server
	path   string
	config string // of engines
	live   []*process
}

// list makes the engines of the file those that live, and one that does not any more.
func (s *site) list(dead *process) {
	type row struct {
		URL      string `json:"url"`
		KVEvents string `json:"kv_events"`
		Replay   string `json:"replay"`
	}
	file := struct {
		Engines []row `json:"engines"`
	}{}
	for _, p := range append(slices.Clone(s.live), dead) {
		if p != nil {
			file.Engines = append(file.Engines, row{p.info.HTTP, p.info.Events, p.info.Replay})
		}
	}
	data, err := json.Marshal(file)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(s.path+".new", data, 0o600))
	require.NoError(s.t, os.Rename(s.path+".new", s.path))
}

// replace kills the engine that is there for longest, and adds one.
func (s *site) replace() (dead *process) {
	dead = s.live[0]
	next := spawn(s.t, s.config)
	s.live = append(slices.Clone(s.live[1:]), next)
	dead.kill()
	s.list(dead)
	return dead
}

// serves tells whether all that live are candidates.
func (s *site) serves() bool {
	up := map[string]bool{}
	for _, e := range s.server.Fleet().Engines() {
		up[e.URL] = e.Candidate
	}
	return !slices.ContainsFunc(s.live, func(p *process) bool { return !up[p.info.HTTP] })
}

// ends counts how requests ended, and what engines said of prompts.
type ends struct {
	served, cut, failed, untyped, unary atomic.Int64
	asked, known                        atomic.Int64 // tokens of prompts, of streams that were served
	mu                                  sync.Mutex
	faults                              []string // of those that failed or were untyped, the first
}

func (e *ends) fault(n *atomic.Int64, format string, args ...any) {
	n.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.faults) < 20 {
		e.faults = append(e.faults, fmt.Sprintf(format, args...))
	}
}

// rate is that of hits since it was asked last.
func (e *ends) rate() float64 {
	n, d := e.known.Swap(0), e.asked.Swap(0)
	return float64(n) / float64(max(d, 1))
}

// stream asks as a client of the API does, and tells apart how it ends.
func (e *ends) stream(client *http.Client, url string, body []byte) {
	r, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		e.fault(&e.failed, "no answer: %v", err)
		return
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		text, _ := io.ReadAll(r.Body)
		e.fault(&e.failed, "status %d: %s", r.StatusCode, text)
		return
	}
	got, told := 0, ""
	lines := bufio.NewReader(r.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			e.fault(&e.untyped, "after %d pieces: %v", got, err)
			return
		}
		data, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
		if !is {
			continue
		}
		if data == "[DONE]" {
			_, _ = io.Copy(io.Discard, lines) // to the end of the answer
			break
		}
		var c completion
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			e.fault(&e.untyped, "after %d pieces: %q: %v", got, data, err)
			return
		}
		switch {
		case c.Error != nil:
			told = c.Error.Code
		case c.Usage != nil:
			e.asked.Add(int64(c.Usage.Prompt))
			e.known.Add(int64(c.Usage.Details.Cached))
		default:
			got++
		}
	}
	switch {
	case told == "":
		e.served.Add(1)
	case got == 0:
		e.fault(&e.failed, "an error before a token: %s", told)
	case told != "engine_failed":
		e.fault(&e.untyped, "after %d pieces: %s", got, told)
	default:
		e.cut.Add(1)
	}
}

// whole asks for an answer in one piece, which no death of an engine spoils.
func (e *ends) whole(client *http.Client, url string, body []byte) {
	r, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		e.fault(&e.failed, "no answer: %v", err)
		return
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		e.fault(&e.failed, "status %d: %.500s %v", r.StatusCode, text, err)
		return
	}
	e.unary.Add(1)
}

// run asks again and again until stop is closed: one client of twenty in one piece.
func (e *ends) run(client *http.Client, url string, number int, stop <-chan struct{}) {
	rng := rand.New(rand.NewPCG(uint64(number), 1))
	for {
		select {
		case <-stop:
			return
		default:
		}
		prompt := append(idsOf(rng.IntN(48)*1000+1, 480), idsOf(100_000+rng.IntN(1<<20), 32)...)
		body, _ := json.Marshal(map[string]any{
			"prompt": prompt, "max_tokens": 20 + rng.IntN(40), "stream": number%20 > 0, "stream_options": map[string]bool{"include_usage": true},
		})
		if number%20 > 0 {
			e.stream(client, url, body)
		} else {
			e.whole(client, url, body)
		}
	}
}

func idsOf(first, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = first + i
	}
	return ids
}

// spread gives how many requests each engine that lives began since before, the least first.
func (s *site) spread(before map[string]uint64) []int {
	var all []int
	for _, p := range s.live {
		all = append(all, int(p.stats(s.t).Requests-before[p.info.HTTP]))
	}
	slices.Sort(all)
	return all
}

func (s *site) requests() map[string]uint64 {
	all := map[string]uint64{}
	for _, p := range s.live {
		all[p.info.HTTP] = p.stats(s.t).Requests
	}
	return all
}

// TestStreamsWhileEnginesAreKilled: clients of the HTTP endpoint, most of them streaming; again and again one engine's process is killed, and one added.
// No request fails that had no token yet; a stream that is cut off in the middle is told as the API does; afterwards the load is spread and
// prefixes are found as before. With DGO_SOAK_STREAMS_SECONDS, 500 clients for so long and a death each 10 s; else two deaths, as soon as engines are busy.
func TestStreamsWhileEnginesAreKilled(t *testing.T) {
	clients, deaths, between, token := 60, 2, time.Duration(0), 5
	if n, err := strconv.Atoi(os.Getenv("DGO_SOAK_STREAMS_SECONDS")); err == nil && n > 0 {
		clients, deaths, between, token = 500, max(n/10, 1), 10*time.Second, 40
	}
	s := &site{t: t, path: filepath.Join(t.TempDir(), "engines.json")}
	s.config = fmt.Sprintf(`{"inter_token_ms": %d, "coalesce_ms": %d, "prefill_tokens_per_second": 200000, "max_num_seqs": 512, "blocks": 20000}`, token, 2*token)
	for range 4 {
		s.live = append(s.live, spawn(t, s.config))
	}
	s.list(nil)
	var err error
	s.server, err = serve.New(serve.Config{Listen: "127.0.0.1:0", Mode: fleet.KV, File: s.path}, nil)
	require.NoError(t, err)
	t.Cleanup(s.server.Close)
	soon := func(what string, condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, 3*patience, 5*time.Millisecond, what)
	}
	soon("engines serve", s.serves)

	e, stop, url := &ends{}, make(chan struct{}), "http://"+s.server.Address()+"/v1/completions"
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients, MaxIdleConns: clients}}
	var running sync.WaitGroup
	for number := range clients {
		running.Go(func() { e.run(client, url, number, stop) })
	}
	t.Cleanup(client.CloseIdleConnections)
	// round waits for as many answers as there are clients, four times over, and gives the hits of these.
	round := func() float64 {
		e.rate()
		from := e.served.Load()
		soon("answers", func() bool { return e.served.Load() >= from+int64(4*clients) })
		return e.rate()
	}
	round() // they get warm
	before := round()
	for death := range deaths {
		began := time.Now()
		soon("the engine is busy", func() bool { return s.live[0].stats(t).Running > 2 })
		s.replace()
		soon("the new engine serves", s.serves)
		time.Sleep(time.Until(began.Add(between)))
		t.Logf("death %d: %.1f s; hits since %.2f; streams served %d, cut off %d; in one piece %d", death+1, time.Since(began).Seconds(), e.rate(), e.served.Load(), e.cut.Load(), e.unary.Load())
	}
	s.list(nil)
	round() // the newest gets warm
	was := s.requests()
	after := round()
	spread := s.spread(was)
	close(stop)
	running.Wait()
	st := s.server.Status()
	t.Logf("%d clients, %d deaths: streams served %d, cut off in mid-stream %d, in one piece %d, failed before a token %d, untyped %d; retries %d; hits %.2f before, %.2f after; spread %v",
		clients, deaths, e.served.Load(), e.cut.Load(), e.unary.Load(), e.failed.Load(), e.untyped.Load(), st.Retries, before, after, spread)
	require.Empty(t, e.faults)
	require.Positive(t, e.cut.Load(), "engines died in mid-stream")
	require.Greater(t, after, before*0.8)
	require.Less(t, spread[len(spread)-1], spread[0]*4+8, "spread %v", spread)
	idle(t, s.server)
	require.Zero(t, s.server.Status().Disconnected)
}
