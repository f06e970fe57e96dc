package dynamotest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

// Cut stands between the publishers of KV events and those who subscribe to them: what is published while it is closed is lost.
type Cut struct {
	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// interpose waits for so many publishers in a directory, and rewrites their records.
func interpose(t testing.TB, store string, publishers int) *Cut {
	c := &Cut{conns: map[net.Conn]struct{}{}}
	var paths []string
	for deadline := time.Now().Add(Patience); len(paths) < publishers; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "there are %d of %d publishers", len(paths), publishers)
		var err error
		paths, err = filepath.Glob(filepath.Join(store, "v1", "event_channels", "*kv%2Devents*"))
		require.NoError(t, err)
	}
	for _, path := range paths {
		record, err := os.ReadFile(path)
		require.NoError(t, err)
		var r struct {
			Transport struct{ Config struct{ Endpoint string } }
		}
		require.NoError(t, json.Unmarshal(record, &r))
		address := c.listen(t, strings.TrimPrefix(r.Transport.Config.Endpoint, "tcp://"))
		other := filepath.Join(store, "rewritten")
		require.NoError(t, os.WriteFile(other, bytes.ReplaceAll(record, []byte(r.Transport.Config.Endpoint), []byte("tcp://"+address)), 0o644))
		require.NoError(t, os.Rename(other, path))
	}
	return c
}

// interposeEtcd is interpose where the records are in etcd.
func interposeEtcd(t testing.TB, e *servertest.Etcd, publishers int) *Cut {
	c := &Cut{conns: map[net.Conn]struct{}{}}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.URL}})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var found []*mvccpb.KeyValue
	for len(found) < publishers {
		time.Sleep(5 * time.Millisecond)
		answer, err := client.Get(ctx, "v1/event_channels/", clientv3.WithPrefix())
		require.NoError(t, err, "there are %d of %d publishers", len(found), publishers)
		found = found[:0]
		for _, kv := range answer.Kvs {
			if strings.Contains(string(kv.Key), "/topic/kv-events/") {
				found = append(found, kv)
			}
		}
	}
	for _, kv := range found {
		var r struct {
			Transport struct{ Config struct{ Endpoint string } }
		}
		require.NoError(t, json.Unmarshal(kv.Value, &r))
		there := r.Transport.Config.Endpoint
		address := "tcp://" + c.listen(t, strings.TrimPrefix(there, "tcp://"))
		_, err := client.Put(ctx, string(kv.Key), strings.ReplaceAll(string(kv.Value), there, address), clientv3.WithIgnoreLease())
		require.NoError(t, err)
	}
	return c
}

// listen gives an address that leads to another.
func (c *Cut) listen(t testing.TB, target string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go c.serve(l, target)
	return l.Addr().String()
}

// Close breaks all connections, and lets none through.
func (c *Cut) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.conns {
		conn.Close()
	}
}

// Open lets connections through again.
func (c *Cut) Open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = false
}

func (c *Cut) serve(l net.Listener, target string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("tcp", target)
		if err != nil || !c.add(conn, there) {
			conn.Close()
			continue
		}
		pump := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			to.Close()
			from.Close()
		}
		go pump(conn, there)
		go pump(there, conn)
	}
}

func (c *Cut) add(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		if c.closed {
			conn.Close()
		} else {
			c.conns[conn] = struct{}{}
		}
	}
	return !c.closed
}
