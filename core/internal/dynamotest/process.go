// Package dynamotest runs NVIDIA Dynamo's own Python package as a peer in tests. DGO_TEST_DYNAMO names a directory with a virtual environment for each
// release; `./build.sh interop` makes it.
package dynamotest

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed *.py
var scripts embed.FS

// Patience is how long a peer may take for anything.
const Patience = 60 * time.Second

// Releases are those that are installed.
func Releases(t testing.TB) []string {
	dir := os.Getenv("DGO_TEST_DYNAMO")
	require.NotEmpty(t, dir, "DGO_TEST_DYNAMO is not set: use ./build.sh interop")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(dir, e.Name(), "bin", "python")); err == nil {
			names = append(names, e.Name())
		}
	}
	require.NotEmpty(t, names, "no release in %s", dir)
	return names
}

// Process is a peer that runs.
type Process struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	n     int

	mu    sync.Mutex // guards the rest
	lines []map[string]json.RawMessage
	grown chan struct{}
	ended bool
	log   string
}

// Start runs a script of this package with a release, in a deployment; it is killed at the end of the test.
func Start(t testing.TB, release string, d *Deployment, script string, args ...string) *Process {
	path := filepath.Join(t.TempDir(), script)
	text, err := scripts.ReadFile(script)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	python, err := filepath.Abs(filepath.Join(os.Getenv("DGO_TEST_DYNAMO"), release, "bin", "python"))
	require.NoError(t, err)
	p := &Process{t: t, name: release + " " + script, grown: make(chan struct{})}
	p.cmd = exec.Command(python, append([]string{path}, args...)...)
	p.cmd.Env = append(os.Environ(), "DYN_FILE_KV="+d.Dir, "DYN_LOG=warn", "DYN_TCP_RPC_HOST=127.0.0.1", "DYN_EVENT_PLANE_HOST=127.0.0.1")
	p.cmd.Env = append(p.cmd.Env, d.env...)
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	logPath := path + ".log"
	log, err := os.Create(logPath)
	require.NoError(t, err)
	p.cmd.Stderr = log
	require.NoError(t, p.cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.read(stdout)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-done
		_ = p.cmd.Wait()
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(logPath)
			t.Logf("%s says:\n%s%s", p.name, p.log, text[max(0, len(text)-8000):])
		}
	})
	return p
}

func (p *Process) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line map[string]json.RawMessage
		p.mu.Lock()
		if json.Unmarshal(lines.Bytes(), &line) == nil {
			p.lines = append(p.lines, line)
		} else if len(p.log) < 8000 {
			p.log += lines.Text() + "\n"
		}
		close(p.grown)
		p.grown = make(chan struct{})
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	close(p.grown)
	p.grown = make(chan struct{})
}

// Await waits for a line with a key, of the value if one is given, and decodes it into v. It takes the line.
func (p *Process) Await(key, value string, v any) {
	deadline := time.After(Patience)
	for {
		p.mu.Lock()
		grown, ended := p.grown, p.ended
		for i, line := range p.lines {
			if got, ok := line[key]; ok && (value == "" || string(got) == value) {
				p.lines = append(p.lines[:i:i], p.lines[i+1:]...)
				p.mu.Unlock()
				whole, err := json.Marshal(line)
				require.NoError(p.t, err)
				if v != nil {
					require.NoError(p.t, json.Unmarshal(whole, v), "%s", whole)
				}
				return
			}
		}
		p.mu.Unlock()
		if ended {
			require.FailNow(p.t, "the peer ended", "%s: no line with %s=%s", p.name, key, value)
		}
		select {
		case <-grown:
		case <-deadline:
			require.FailNow(p.t, "the peer says nothing", "%s: no line with %s=%s", p.name, key, value)
		}
	}
}

// Ready waits until the peer is, and gives its worker id, if it has one.
func (p *Process) Ready() uint64 {
	var line struct {
		Worker uint64 `json:"worker"`
	}
	p.Await("ready", "", &line)
	return line.Worker
}

// Do sends a command and decodes the answer into v. A failure is one of the test.
func (p *Process) Do(command map[string]any, v any) {
	if failed := p.Try(command, v); failed != "" {
		require.FailNow(p.t, "the peer failed", "%s: %s; it was asked for %.300s", p.name, failed, fmt.Sprint(command))
	}
}

// Try is Do, and gives the peer's failure.
func (p *Process) Try(command map[string]any, v any) (failed string) {
	p.n++
	command["n"] = p.n
	line, err := json.Marshal(command)
	require.NoError(p.t, err)
	_, err = p.stdin.Write(append(line, '\n'))
	require.NoError(p.t, err)
	var answer map[string]json.RawMessage
	p.Await("n", fmt.Sprint(p.n), &answer)
	if f, ok := answer["failed"]; ok {
		return string(f)
	}
	whole, err := json.Marshal(answer)
	require.NoError(p.t, err)
	if v != nil {
		require.NoError(p.t, json.Unmarshal(whole, v), "%s", whole)
	}
	return ""
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }
