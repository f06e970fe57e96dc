package router_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// stored is a batch of one block of 16 tokens, and its prompt.
func storedBatch(t *testing.T, name int) (payload []byte, prompt []uint32) {
	prompt = tokens(name, 16)
	payload, err := wire.EncodeBatch(&wire.Batch{TS: 1, Events: []wire.Event{{Kind: event.Stored, Medium: "GPU", BlockSize: 16,
		BlockHashes: []block.EngineHash{block.EngineHash(name)}, TokenIDs: prompt}}})
	require.NoError(t, err)
	return payload, prompt
}

// liars are payloads that claim more than there is, nest without end, or stop anywhere.
func liars(t *testing.T) map[string][]byte {
	all := map[string][]byte{"nested arrays": append([]byte{0x92, 1}, bytes.Repeat([]byte{0x91}, 2<<20)...)}
	good, _ := storedBatch(t, 1)
	for cut := range good {
		all[fmt.Sprintf("cut at %d", cut)] = good[:cut]
	}
	str := func(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }
	stored := append([]byte{0x92, 1, 0x91, 0x9d}, str("BlockStored")...)
	levels := map[string][]byte{
		"batch":         {},
		"time":          {0x93},
		"events":        {0x92, 1},
		"rank":          {0x93, 1, 0x90},
		"event":         {0x92, 1, 0x91},
		"tag":           {0x92, 1, 0x91, 0x92},
		"block hashes":  stored,
		"block hash":    append(stored[:len(stored):len(stored)], 0x91),
		"parent":        append(stored[:len(stored):len(stored)], 0x91, 1),
		"tokens":        append(stored[:len(stored):len(stored)], 0x91, 1, 0xc0),
		"token":         append(stored[:len(stored):len(stored)], 0x91, 1, 0xc0, 0x91),
		"block size":    append(stored[:len(stored):len(stored)], 0x91, 1, 0xc0, 0x90),
		"adapter":       append(stored[:len(stored):len(stored)], 0x91, 1, 0xc0, 0x90, 16),
		"map of fields": {0x92, 1, 0x91, 0x81},
		"field":         append([]byte{0x92, 1, 0x91, 0x82}, str("extra_keys")...),
		"extra key":     append(append([]byte{0x92, 1, 0x91, 0x82}, str("extra_keys")...), 0x91, 0x91),
	}
	for level, before := range levels {
		for kind, head := range map[string][]byte{
			"2^32-1 elements": {0xdd, 0xff, 0xff, 0xff, 0xff}, "2^32-1 pairs": {0xdf, 0xff, 0xff, 0xff, 0xff},
			"2^31 characters": {0xdb, 0x80, 0, 0, 0}, "2^31 bytes": {0xc6, 0x80, 0, 0, 0}, "2^31 of an extension": {0xc9, 0x80, 0, 0, 0, 1},
		} {
			all[level+" of "+kind] = slices.Concat(before, head)
		}
	}
	return all
}

// handled waits for what follows something hostile, which takes milliseconds: ten seconds, as a machine may be busy.
func (k *kit) handled(what string, ok func() bool) {
	k.t.Helper()
	require.Eventually(k.t, ok, 10*time.Second, time.Millisecond, what)
}

// requireMemory checks what the heap grew by at most while f ran.
func requireMemory(t *testing.T, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.HeapSys, before.HeapSys+64<<20)
}

func TestLyingPayloadsHurtNobody(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	pub, err := zmq.ListenPub("tcp://127.0.0.1:0", zmq.Options{})
	require.NoError(t, err)
	defer pub.Close()
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: pub.Addr()}}))
	k.eventually("subscribed", func() bool { return pub.Stats().Subscribers == 1 })
	var seq uint64
	send := func(payload []byte) {
		require.NoError(t, pub.Publish(nil, binary.BigEndian.AppendUint64(nil, seq), payload))
		seq++
	}
	all := liars(t)
	requireMemory(t, func() {
		for i, name := range slices.Sorted(maps.Keys(all)) {
			send(all[name])
			good, prompt := storedBatch(t, i+1)
			send(good)
			k.handled("the good batch after "+name, func() bool { return k.depth(prompt)["1/0"] == 1 })
		}
	})
	row := k.health(1)
	require.Equal(t, feed.Partial, row.State)
	require.EqualValues(t, seq-1, *row.LastSeq)
	require.Zero(t, row.Counters["panics"])
}

// hostilePeer sends its bytes to the first who connects, and is an engine to all later ones.
func hostilePeer(t *testing.T, shaken bool, first []byte) (endpoint string, good []uint32) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	payload, prompt := storedBatch(t, 1)
	var seen atomic.Int32
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	ready := []byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			out := first
			if seen.Add(1) > 1 {
				out = append([]byte{1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 2}, append(binary.BigEndian.AppendUint64(nil, uint64(len(payload))), payload...)...)
				shaken = true
			}
			if shaken {
				out = slices.Concat(greeting, ready, out)
			}
			go func() {
				defer c.Close()
				c.Write(out)
				io.Copy(io.Discard, c)
			}()
		}
	}()
	return "tcp://" + ln.Addr().String(), prompt
}

func TestHostilePeersHurtNobody(t *testing.T) {
	long := func(flags byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{flags | 2}, n) }
	type peer struct {
		shaken bool
		send   []byte
	}
	peers := map[string]peer{
		"HTTP":                     {false, []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")},
		"HTTP after the handshake": {true, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"zeros":                    {false, make([]byte, 1000)},
		"frames without end":       {true, bytes.Repeat([]byte{1, 0}, 1000)},
	}
	for _, bits := range []int{33, 40, 50, 62, 63} {
		peers[fmt.Sprintf("frame of 2^%d", bits)] = peer{true, long(0, 1<<bits)}
		peers[fmt.Sprintf("command of 2^%d", bits)] = peer{true, long(4, 1<<bits)}
		peers[fmt.Sprintf("command of 2^%d in the handshake", bits)] = peer{false, append(append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...), long(4, 1<<bits)...)}
	}
	k := newKit(t, 16, router.DefaultConfig())
	requireMemory(t, func() {
		silent, _ := hostilePeer(t, false, nil)
		require.NoError(t, k.AddWorker(router.Worker{ID: 0, KVEvents: router.Endpoints{Base: silent}}))
		for i, name := range slices.Sorted(maps.Keys(peers)) {
			endpoint, prompt := hostilePeer(t, peers[name].shaken, peers[name].send)
			id := uint64(i + 1)
			require.NoError(t, k.AddWorker(router.Worker{ID: id, KVEvents: router.Endpoints{Base: endpoint}}))
			k.handled("the good batch after "+name, func() bool { return k.depth(prompt)[fmt.Sprintf("%d/0", id)] == 1 })
			k.handled("and it is exact after "+name, func() bool { return k.health(id).State == feed.Exact }) // told a moment later
		}
	})
	require.Equal(t, feed.Disconnected, k.health(0).State)
}
