package kvrouter

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
)

// overFiles joins a deployment as a process of its own would: its records go three seconds after it ended without a word.
func overFiles(t testing.TB, dir string) *runtime.Runtime {
	store, err := file.Open(dir, file.Options{TTL: 3 * time.Second})
	require.NoError(t, err)
	r := runtime.New(store, runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func synced(t testing.TB, r *runtime.Runtime) *KvRouter {
	config := router.DefaultConfig()
	config.RouterReplicaSync = true
	k := start(t, r, config)
	require.NoError(t, k.WaitForWorkers(context.Background(), 1))
	return k
}

// hears waits until so many routers, itself among them, hear a router.
func hears(t testing.TB, n int, routers ...*KvRouter) {
	for _, k := range routers {
		await(t, "they hear each other", func() bool {
			s, err := k.Router().Stats()
			require.NoError(t, err)
			return s.Replicas.Listeners == n
		})
	}
}

func place(k *KvRouter, id string) error {
	_, err := k.Router().BestWorker(&router.Request{Prompt: router.Prompt{Tokens: []block.Token{1, 2, 3, 4}}, ID: id, Book: true})
	return err
}

const replicaDir = "DGO_TEST_REPLICA_DIR"

// TestReplicaProcess is the router that the test below kills.
func TestReplicaProcess(t *testing.T) {
	dir := os.Getenv(replicaDir)
	if dir == "" {
		return
	}
	k := synced(t, overFiles(t, dir))
	hears(t, 3, k)
	require.NoError(t, place(k, "of the dead"))
	select {}
}

// Routers of one deployment that find each other by a directory, as by Router.Replicate: who owned a request first keeps it, who joins late counts what
// comes, and what a router placed that dies ends with it.
func TestReplicasOverFiles(t *testing.T) {
	dir := t.TempDir()
	newWorker(t, overFiles(t, dir), 7, plainCard)
	a, b := synced(t, overFiles(t, dir)), synced(t, overFiles(t, dir))
	hears(t, 2, a, b)
	agree := func(n int, routers ...*KvRouter) {
		t.Helper()
		for _, k := range routers {
			await(t, "they agree", func() bool { return active(t, k) == n })
		}
	}

	require.NoError(t, place(a, "x"))
	agree(1, a, b)
	require.ErrorIs(t, place(b, "x"), router.ErrDuplicateRequest)
	require.ErrorIs(t, b.Router().Free("x"), router.ErrRequestNotFound)
	require.Equal(t, 1, active(t, a))

	c := synced(t, overFiles(t, dir))
	hears(t, 3, a, b, c)
	require.Zero(t, active(t, c), "what was placed before is not heard")
	require.NoError(t, place(b, "y"))
	agree(2, a, b)
	agree(1, c)
	require.NoError(t, a.Router().Free("x"))
	agree(1, a, b, c)
	require.NoError(t, b.Router().Free("y"))
	agree(0, a, b, c)
	c.Close()
	hears(t, 2, a, b)

	child := exec.Command(os.Args[0], "-test.run=^TestReplicaProcess$")
	child.Env = append(os.Environ(), replicaDir+"="+dir)
	require.NoError(t, child.Start())
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	agree(1, a, b)
	require.ErrorIs(t, place(a, "of the dead"), router.ErrDuplicateRequest)
	require.NoError(t, child.Process.Kill())
	agree(0, a, b)
	require.NoError(t, place(a, "of the dead"))
}
