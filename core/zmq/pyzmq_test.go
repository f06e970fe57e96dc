package zmq

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

func hexes(frames [][]byte) string {
	var out []string
	for _, f := range frames {
		out = append(out, hex.EncodeToString(f))
	}
	return strings.Join(out, " ")
}

func TestSubscriberFollowsPyzmqPublisher(t *testing.T) {
	p := run(t, `
s = sock(zmq.XPUB)
say(s.bind_to_random_port("tcp://127.0.0.1"))
hear()
assert s.recv() == b"\x01kv@"
for n in (0, 1, 254, 255, 256, 257, 65536, 3000000):
    s.send_multipart([b"other", b"x"])
    s.send_multipart([b"kv@pod", n.to_bytes(8, "big"), b"p" * n])
hear()
`)
	sub := Subscribe("tcp://127.0.0.1:"+p.hear(), []string{"kv@"}, Options{})
	defer sub.Close()
	next(t, sub, Connected)
	p.say("subscribed")
	for _, n := range []int{0, 1, 254, 255, 256, 257, 65536, 3000000} {
		e := next(t, sub, Message)
		require.Len(t, e.Frames, 3)
		require.Equal(t, "kv@pod", string(e.Frames[0]))
		require.Equal(t, fmt.Sprintf("%016x", n), hex.EncodeToString(e.Frames[1]))
		require.Equal(t, strings.Repeat("p", n), string(e.Frames[2]))
	}
}

func TestPyzmqSubscribersFollowPub(t *testing.T) {
	p := run(t, `
ends = hear()
a, b = sock(zmq.SUB, heartbeat_ivl=50, heartbeat_timeout=20000), sock(zmq.SUB)
a.subscribe("kv@"); a.connect(ends[0])
b.subscribe(""); b.connect(ends[1])
for s in (a, b):
    say([[f.hex() for f in s.recv_multipart()] for _ in range(2 if s is a else 3)])
m = a.get_monitor_socket()
hear()
say([f.hex() for f in a.recv_multipart()])
say(m.poll(0))
a.unsubscribe("kv@"); hear()
say(a.poll(300))
`)
	pub, err := ListenPub("tcp://127.0.0.1:0", Options{Incarnation: "one"}) // others pass over what they do not know
	require.NoError(t, err)
	defer pub.Close()
	between, pongs := overheard(t, pub.Addr())
	p.say([]string{between, pub.Addr()})
	eventually(t, "two subscribers", func() bool { return pub.Stats().Subscribers == 2 })
	big := strings.Repeat("z", 300_000)
	require.NoError(t, pub.Publish([]byte("kv@a"), []byte("1"), []byte(big)))
	require.NoError(t, pub.Publish([]byte("kw@a"), []byte("2"), nil))
	require.NoError(t, pub.Publish([]byte("kv@b")))
	h := func(s string) string { return `"` + hex.EncodeToString([]byte(s)) + `"` }
	first, second, third := "["+h("kv@a")+", "+h("1")+", "+h(big)+"]", "["+h("kw@a")+", "+h("2")+`, ""]`, "["+h("kv@b")+"]"
	require.Equal(t, "["+first+", "+third+"]", p.hear())
	require.Equal(t, "["+first+", "+second+", "+third+"]", p.hear())
	before := pongs.Load()
	eventually(t, "the heartbeats of the first subscriber are answered", func() bool { return pongs.Load() > before+10 })
	p.say("go")
	require.NoError(t, pub.Publish([]byte("kv@c")))
	require.Equal(t, "["+h("kv@c")+"]", p.hear())
	require.Equal(t, "0", p.hear(), "the monitor saw a disconnection")
	p.say("unsubscribed")
	eventually(t, "one subscriber", func() bool { return pub.Stats().Subscribers == 1 })
	require.NoError(t, pub.Publish([]byte("kv@d")))
	require.Equal(t, "0", p.hear())
}

func TestPyzmqAsksRouterSocket(t *testing.T) {
	for _, end := range []string{"tcp://127.0.0.1:0", "ipc://" + t.TempDir() + "/r.sock"} {
		p := run(t, `
end = hear()
d, q = sock(zmq.DEALER), sock(zmq.REQ)
d.connect(end); q.connect(end)
d.send_multipart([b"", b"a"]); d.send_multipart([b"", b"b"])
for _ in range(6): say([f.decode() for f in d.recv_multipart()])
q.send(b"c"); say(q.recv().decode())
`)
		r, err := ListenRouter(end, Options{}, func(req [][]byte, reply func(...[]byte) error) {
			for i := range 3 {
				if reply(nil, []byte(fmt.Sprint(string(req[1]), i))) != nil {
					return
				}
			}
		})
		require.NoError(t, err)
		p.say(r.Addr())
		for _, want := range []string{"a0", "a1", "a2", "b0", "b1", "b2"} {
			require.Equal(t, `["", "`+want+`"]`, p.hear())
		}
		require.Equal(t, `"c0"`, p.hear())
		require.NoError(t, r.Close())
	}
}

func TestDealerAsksPyzmqRouter(t *testing.T) {
	p := run(t, `
s = sock(zmq.ROUTER, sndhwm=0); say(s.bind_to_random_port("tcp://127.0.0.1"))
ident, empty, start = s.recv_multipart()
for i in range(2000): s.send_multipart([ident, b"", (int.from_bytes(start, "big") + i).to_bytes(8, "big"), b"x" * 100])
s.send_multipart([ident, b"", b"\xff" * 8, b""])
hear()
`)
	c, err := Dial(context.Background(), "tcp://127.0.0.1:"+p.hear(), Dealer, Options{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send(nil, []byte{0, 0, 0, 0, 0, 0, 1, 0}))
	for i := range 2000 {
		f, err := c.Recv()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%016x", 256+i), hex.EncodeToString(f[1]))
	}
	f, err := c.Recv()
	require.NoError(t, err)
	require.Equal(t, " ffffffffffffffff ", hexes(f))
}

// https://github.com/go-zeromq/zmq4/issues/157 https://github.com/zeromq/zmq.rs/issues/162
func TestPublisherRestartsOnTheSameAddress(t *testing.T) {
	end := "tcp://" + servertest.FreeAddress(t)
	program := `
s = sock(zmq.XPUB)
s.bind("` + end + `")
say("bound")
assert s.recv() == b"\x01kv@"
s.send_multipart([b"other", b"no"]); s.send_multipart([b"kv@", b"yes"])
hear()
`
	p := run(t, program)
	p.hear()
	sub := Subscribe(end, []string{"kv@"}, Options{})
	defer sub.Close()
	next(t, sub, Connected)
	require.Equal(t, "yes", string(next(t, sub, Message).Frames[1]))
	require.NoError(t, p.cmd.Process.Kill())
	next(t, sub, Disconnected)
	next(t, sub, Disconnected) // nobody listens: the owner hears of every attempt
	run(t, program).hear()
	until(t, sub, Connected)
	require.Equal(t, "yes", string(next(t, sub, Message).Frames[1]), "the topic filter is still in force")
}

// https://github.com/zeromq/libzmq/issues/4063
func TestStoppedPublisherIsNoticed(t *testing.T) {
	p := run(t, `
s = sock(zmq.PUB); say(s.bind_to_random_port("tcp://127.0.0.1"))
hear()
`)
	between, pongs := overheard(t, "tcp://127.0.0.1:"+p.hear())
	sub := Subscribe(between, nil, Options{Heartbeat: 20 * time.Millisecond, HeartbeatTimeout: 2 * time.Second})
	defer sub.Close()
	next(t, sub, Connected)
	eventually(t, "an idle publisher answers", func() bool { return pongs.Load() > 50 })
	require.Empty(t, sub.Events(), "and stays connected")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.ErrorIs(t, next(t, sub, Disconnected).Err, ErrSilent)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	until(t, sub, Connected)
}
