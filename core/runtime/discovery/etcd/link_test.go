package etcd

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

// link stands between a store and the server, and can be cut.
type link struct {
	url string
	l   net.Listener

	mu     sync.Mutex
	target string
	broken bool
	conns  []net.Conn
	pumps  sync.WaitGroup
}

func newLink(t testing.TB, e *servertest.Etcd) *link {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	k := &link{url: "http://" + l.Addr().String(), l: l, target: strings.TrimPrefix(e.URL, "http://")}
	k.pumps.Go(k.serve)
	t.Cleanup(func() {
		l.Close()
		k.cut()
		k.pumps.Wait()
	})
	return k
}

func (k *link) serve() {
	for {
		c, err := k.l.Accept()
		if err != nil {
			return
		}
		k.mu.Lock()
		broken, target := k.broken, k.target
		k.mu.Unlock()
		var there net.Conn
		if !broken {
			there, err = net.Dial("tcp", target)
		}
		if broken || err != nil {
			c.Close()
			continue
		}
		k.mu.Lock()
		k.conns = append(k.conns, c, there)
		k.mu.Unlock()
		pump := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			to.Close()
			from.Close()
		}
		k.pumps.Go(func() { pump(c, there) })
		k.pumps.Go(func() { pump(there, c) })
	}
}

// cut breaks all connections, and lets none through.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = true
	for _, c := range k.conns {
		c.Close()
	}
	k.conns = nil
}

func (k *link) mend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = false
}

// to leads to another server.
func (k *link) to(target string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.target = target
}

// cancelled is what the server says of a watch that is behind a compaction.
func cancelled(watch, revision int64) *etcdserverpb.WatchResponse {
	return &etcdserverpb.WatchResponse{WatchId: watch, Canceled: true, CompactRevision: revision}
}
