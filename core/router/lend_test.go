package router_test

import (
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// peerDump is what another router says that worker 1 holds: a prompt that its engine lost since.
func peerDump(t *testing.T, prompt []uint32) []byte {
	peer := newKit(t, 16, router.DefaultConfig()).workers(1)
	peer.store(1, 0, prompt)
	dump, err := peer.DumpEvents()
	require.NoError(t, err)
	return dump
}

// A dump of a peer says nothing of where in the events it was taken. A followed rank answers by it until its feed has a view of its own, and
// then by that alone; afterwards it takes none.
func TestDumpOfAPeerGivesWayToTheFeed(t *testing.T) {
	payload, current := storedBatch(t, 1)
	stale := tokens(77, 32)
	dump := peerDump(t, stale)
	for name, give := range map[string]func(reply func(...[]byte) error, delimiter []byte){
		"history": func(reply func(...[]byte) error, delimiter []byte) {
			reply(delimiter, nil, make([]byte, 8), payload)
			reply(delimiter, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		},
		"history without its beginning": func(reply func(...[]byte) error, delimiter []byte) {
			reply(delimiter, nil, binary.BigEndian.AppendUint64(nil, 7), payload)
			reply(delimiter, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		},
		"nothing": func(reply func(...[]byte) error, delimiter []byte) {
			reply(delimiter, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			release, asked := make(chan struct{}), make(chan struct{}, 100)
			replay, err := zmq.ListenRouter("tcp://127.0.0.1:0", zmq.Options{}, func(request [][]byte, reply func(...[]byte) error) {
				asked <- struct{}{}
				<-release
				give(reply, request[0])
			})
			require.NoError(t, err)
			defer replay.Close()
			answer := sync.OnceFunc(func() { close(release) })
			defer answer() // or what is asked would keep Close
			pub, err := zmq.ListenPub("tcp://127.0.0.1:0", zmq.Options{})
			require.NoError(t, err)
			defer pub.Close()
			k := newKit(t, 16, router.DefaultConfig())
			require.NoError(t, k.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: pub.Addr()}, Replay: router.Endpoints{Base: replay.Addr()}}))
			require.NoError(t, k.LoadEvents(dump))
			<-asked
			require.EqualValues(t, 2, k.depth(stale)["1/0"])
			k.eventually("connected", func() bool { return k.states()[1] == feed.Recovering }) // it may have asked before
			require.NoError(t, k.LoadEvents(dump), "once more is the same")
			require.EqualValues(t, 2, k.depth(stale)["1/0"])
			answer()
			k.eventually("the feed's own view", func() bool {
				st := k.states()[1]
				return st == feed.Exact || st == feed.Partial
			})
			require.Zero(t, k.depth(stale)["1/0"])
			want := uint32(1)
			if name == "nothing" {
				want = 0
			}
			require.Equal(t, want, k.depth(current)["1/0"])
			require.NoError(t, k.LoadEvents(dump))
			require.Zero(t, k.depth(stale)["1/0"])
			require.EqualValues(t, 1, k.health(1).Counters["unproven_events"])
		})
	}
}

// Without anybody to ask a rank is what its feed heard, from the subscription on.
func TestDumpOfAPeerEndsWithTheSubscription(t *testing.T) {
	stale := tokens(77, 32)
	addr := "tcp://" + servertest.FreeAddress(t)
	k := newKit(t, 16, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: addr}}))
	require.NoError(t, k.LoadEvents(peerDump(t, stale)))
	require.EqualValues(t, 2, k.depth(stale)["1/0"])
	require.Equal(t, feed.Disconnected, k.health(1).State)
	pub, err := zmq.ListenPub(addr, zmq.Options{})
	require.NoError(t, err)
	defer pub.Close()
	k.eventually("subscribed", func() bool { return k.states()[1] == feed.Partial })
	require.Zero(t, k.depth(stale)["1/0"])
}
