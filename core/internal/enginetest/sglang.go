// Package enginetest runs the engines' own publishers for tests.
package enginetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

// SGLang is SGLang's own publisher, from its wheel, in a process.
type SGLang struct {
	t            *testing.T
	in           io.Writer
	out          *bufio.Reader
	Live, Replay string // its endpoints
}

// StartSGLang runs the publisher of a release, or skips the test with the one line that declares it.
func StartSGLang(t *testing.T, version string) *SGLang {
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
	p := &SGLang{t: t}
	p.Live, p.Replay = "tcp://"+servertest.FreeAddress(t), "tcp://"+servertest.FreeAddress(t)
	bind := func(s string) string { return strings.Replace(s, "127.0.0.1", "*", 1) } // the publisher binds wildcards only
	cmd := exec.Command(py, filepath.Join(dir, "pub_sglang.py"), "--interactive", "--version", version,
		"--endpoint", bind(p.Live), "--replay", bind(p.Replay))
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

func (p *SGLang) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return line
}

// Tell gives the publisher a command and returns its answer.
func (p *SGLang) Tell(format string, args ...any) string {
	p.t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(p.t, err)
	return p.hear()
}

// State gives the block hashes that a consumer which lost nothing holds.
func (p *SGLang) State() []uint64 {
	var s struct{ Live []uint64 }
	require.NoError(p.t, json.Unmarshal([]byte(p.Tell("state")), &s))
	slices.Sort(s.Live)
	return s.Live
}
