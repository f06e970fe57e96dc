package feed

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// sglang is SGLang's own publisher, from its wheel, in a process.
type sglang struct {
	t            *testing.T
	in           io.Writer
	out          *bufio.Reader
	live, replay string
}

// freePort gives a port that is free now.
func freePort(t *testing.T) int {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// startSGLang runs the publisher of a release, or skips the test with the one line that declares it.
func startSGLang(t *testing.T, version string) *sglang {
	t.Helper()
	skip := func(why string) {
		fmt.Printf("SKIPPED %s: %s\n", t.Name(), why)
		t.Skip(why)
	}
	py := os.Getenv("DGO_TEST_PYTHON")
	if py == "" {
		py = "python3"
		if exec.Command(py, "-c", "import zmq, msgspec, pydantic").Run() != nil {
			skip("python3 cannot import zmq, msgspec and pydantic, and DGO_TEST_PYTHON is not set")
		}
	}
	cache := os.Getenv("DGO_TEST_CACHE")
	if cache == "" {
		cache = filepath.Join(os.TempDir(), "dynamo-go-test-cache")
	}
	dir, err := filepath.Abs("../../testdata/peers/engine_publisher")
	require.NoError(t, err)
	env := append(os.Environ(), "WIRE_SRC="+cache, "PYTHON="+py)
	get := exec.Command("bash", filepath.Join(dir, "get.sh"), version)
	get.Env = env
	if out, err := get.CombinedOutput(); err != nil {
		t.Logf("%s", out)
		skip("the sglang " + version + " wheel cannot be downloaded")
	}
	p := &sglang{t: t}
	p.live, p.replay = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t)), fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	bind := func(s string) string { return strings.Replace(s, "127.0.0.1", "*", 1) } // the publisher binds wildcards only
	cmd := exec.Command(py, filepath.Join(dir, "pub_sglang.py"), "--interactive", "--version", version,
		"--endpoint", bind(p.live), "--replay", bind(p.replay))
	cmd.Env, cmd.Stderr = env, os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<20)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	p.hear()
	return p
}

func (p *sglang) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return line
}

func (p *sglang) tell(format string, args ...any) string {
	p.t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(p.t, err)
	return p.hear()
}

// state gives the block hashes that a consumer which lost nothing holds.
func (p *sglang) state() []uint64 {
	var s struct{ Live []uint64 }
	require.NoError(p.t, json.Unmarshal([]byte(p.tell("state")), &s))
	slices.Sort(s.Live)
	return s.Live
}

func TestFollowsSGLangPublisher(t *testing.T) {
	for _, version := range []string{"0.5.21", "0.5.23"} { // replay replies without and with a topic
		t.Run(version, func(t *testing.T) {
			p := startSGLang(t, version)
			const batches = 3000
			rng := rand.New(rand.NewPCG(3, 5))
			var lost []string
			for seq := 1; seq < batches; seq++ { // from the first on, the tail included
				if rng.UintN(100) < 3 || seq == batches-1 {
					lost = append(lost, fmt.Sprint(seq))
				}
			}
			p.tell("drop %s", strings.Join(lost, ","))

			var all, live view
			cfg := Config{Rank: worker.Rank{ID: 1}, Endpoint: p.live, Replay: p.replay, BlockSize: 16, Sink: &all, Probe: time.Second}
			f := Start(cfg)
			defer f.Close()
			cfg.Replay, cfg.Sink = "", &live
			g := Start(cfg)
			defer g.Close()
			eventually(t, "joined", f.is(Exact))
			eventually(t, "subscribed", g.is(Partial))

			for done := 0; done < batches; done += 500 {
				p.tell("chain 500 42")
				p.tell("sync")
			}
			want := p.state()
			eventually(t, "the last batch, which was lost live, is found", func() bool {
				s := f.Status()
				return s.State == Exact && s.HasSeq && s.LastSeq == batches-1
			})
			require.Equal(t, want, all.names())
			require.NotEqual(t, want, live.names(), "nothing was lost: the test shows nothing")
			require.Zero(t, all.resets)
			require.NotZero(t, f.Status().Counters["gaps"])
		})
	}
}
