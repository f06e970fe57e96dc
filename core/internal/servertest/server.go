// Package servertest runs the servers that a deployment may have, etcd and nats-server, in tests: on loopback, on free ports, in directories that are the
// test's. `./build.sh servers` builds them; a test that finds none has them built.
package servertest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is how long a server may take to start or to end.
const Patience = 60 * time.Second

// modules are where the servers come from, by name; servers/go.mod has their versions.
var modules = map[string]string{
	"etcd":        "go.etcd.io/etcd/server/v3",
	"nats-server": "github.com/nats-io/nats-server/v2",
}

var building sync.Mutex

// Binary gives the path of a server's program: "etcd" or "nats-server".
func Binary(t testing.TB, name string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	root, err := os.Getwd()
	require.NoError(t, err)
	for ; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "servers", "go.mod")); err == nil {
			break
		}
		require.NotEqual(t, root, filepath.Dir(root), "the project's directory is not above")
	}
	path := filepath.Join(root, "build", "servers", name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	other := fmt.Sprintf("%s.%d", path, os.Getpid()) // another package's test may do the same
	build := exec.Command("go", "-C", filepath.Join(root, "servers"), "build", "-trimpath", "-ldflags=-s -w", "-o", other, modules[name])
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(other, path))
	return path
}

// Ports below those that systems give to connections.
const (
	firstPort = 16384
	ports     = 16384
)

var given sync.Map // the marks of this process, by port

// FreePort gives a port of loopback that nobody listens on now, to one process and once. It is none that the system would give to a connection before
// the server has it, or while the server is away.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(ports)
		mark, err := net.Listen("unix", fmt.Sprintf("@dynamo-go-test-port-%d", port)) // the tests of other packages run meanwhile
		if err != nil {
			continue
		}
		given.Store(port, mark) // until the process ends
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	require.FailNow(t, "no port is free")
	return 0
}

// FreeAddress is that of a FreePort: for who is to be found again where it was, or not to be found.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}

// Server is a server's process. It is killed at the end of the test.
type Server struct {
	t    testing.TB
	args []string
	up   func() error

	cmd  *exec.Cmd
	done chan struct{}
	log  *lockedBuffer
}

// Start runs a program and waits until up says that it serves.
func Start(t testing.TB, up func() error, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, args: args, up: up, log: &lockedBuffer{}}
	s.Start()
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("%v says:\n%s", args, s.log)
		}
	})
	return s
}

// Start runs it again, after Stop or Kill, and waits until it serves.
func (s *Server) Start() {
	s.t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(s.t, s.cmd.Start())
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		_ = cmd.Wait()
	}(s.cmd, s.done)
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		err := s.up()
		if err == nil {
			return
		}
		select {
		case <-s.done:
			require.FailNow(s.t, "the server ended", "%v:\n%s", s.args, s.log)
		default:
		}
		require.True(s.t, time.Now().Before(deadline), "%v does not serve: %v\n%s", s.args, err, s.log)
	}
}

// Stop asks it to end, and waits until it has.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Kill ends it at once.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Signal sends a signal: SIGSTOP has it hang.
func (s *Server) Signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

func (s *Server) end(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.done:
	case <-time.After(Patience):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// Dials tells whether something listens on an address.
func Dials(address string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write keeps the last of what a server says.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<16 {
		l.b.Reset()
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
