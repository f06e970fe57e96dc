package zmq

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]Endpoint{
		"tcp://10.0.0.5:5557":     {Scheme: "tcp", Host: "10.0.0.5", Port: 5557},
		"tcp://[::1]:1":           {Scheme: "tcp", Host: "::1", Port: 1},
		"tcp://*:65535":           {Scheme: "tcp", Host: "*", Port: 65535},
		"tcp://pod-0.ns_x.svc:80": {Scheme: "tcp", Host: "pod-0.ns_x.svc", Port: 80},
		"ipc:///run/kv.sock":      {Scheme: "ipc", Path: "/run/kv.sock"},
		"ipc://@abstract":         {Scheme: "ipc", Path: "@abstract"},
	} {
		got, err := ParseEndpoint(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, in, got.String())
	}
	for in, says := range map[string]string{
		"":                      "expected tcp://HOST:PORT or ipc://PATH",
		"5557":                  "expected tcp://",
		"tcp://":                "expected tcp://",
		"ipc://":                "expected tcp://",
		"http://a:1":            "expected tcp://",
		"inproc://x":            "inproc is not reachable from another process",
		"tcp://host":            "expected HOST:PORT",
		"tcp://::1:5557":        "expected HOST:PORT",
		"tcp://[fe80::1:5557":   "expected HOST:PORT",
		"tcp://[10.0.0.1]:5":    "host",
		"tcp://h:0":             "port 0",
		"tcp://h:65536":         "port",
		"tcp://h:-1":            "port",
		"tcp://h:+1":            "port",
		"tcp://h:":              "port",
		"tcp://h:x":             "port",
		"tcp://:5557":           "host",
		"tcp://a b:1":           "host",
		"tcp://eth0;10.0.0.1:1": "host",
		"tcp://h/x:1":           "host",
		"ipc://a\x00b":          "expected tcp://",
		"tcp://" + strings.Repeat("h", 300) + ":1": "host",
	} {
		_, err := ParseEndpoint(in)
		require.ErrorIs(t, err, ErrEndpoint, in)
		require.Contains(t, err.Error(), says)
		require.Contains(t, err.Error(), fmt.Sprintf("%q", in), "the error names the value")
	}
}

// https://github.com/sgl-project/sglang/pull/29211 https://github.com/sgl-project/sglang/pull/29491
// https://github.com/vllm-project/vllm/pull/18925 https://github.com/vllm-project/vllm/issues/55679
func TestEventPortPerRank(t *testing.T) {
	for rank := range uint32(4) {
		got, err := RankEndpoint("tcp://*:5557", "10.0.0.5", rank)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("tcp://10.0.0.5:%d", 5557+rank), got)
	}
	for _, c := range []struct {
		base, host string
		rank       uint32
		want       string // "" is an error
	}{
		{"tcp://[::1]:5557", "", 3, "tcp://[::1]:5560"},
		{"tcp://[::]:5557", "::1", 0, "tcp://[::1]:5557"},
		{"tcp://*:5557", "[fd00::2]", 1, "tcp://[fd00::2]:5558"},
		{"tcp://0.0.0.0:5557", "pod-1", 1, "tcp://pod-1:5558"},
		{"tcp://10.0.0.9:5557", "ignored", 1, "tcp://10.0.0.9:5558"},
		{"ipc://x", "", 0, "ipc://x"},
		{"ipc://x", "", 1, ""},
		{"inproc://x", "", 0, ""},
		{"tcp://h:65534", "", 1, "tcp://h:65535"},
		{"tcp://h:65534", "", 3, ""},
		{"tcp://h:1", "", 1<<32 - 1, ""},
		{"tcp://*:0", "h", 0, ""},
		{"tcp://*:5557", "", 0, ""},
		{"tcp://*:5557", "*", 0, ""},
		{"tcp://*:5557", "a b", 0, ""},
		{"tcp://*:5557", "h:1", 0, ""},
	} {
		got, err := RankEndpoint(c.base, c.host, c.rank)
		if c.want == "" {
			require.ErrorIs(t, err, ErrEndpoint, "%+v", c)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestRangesOfEventsAndReplay(t *testing.T) {
	for _, c := range []struct {
		events, replay string
		first, size    uint32
		ok             bool
	}{
		{"tcp://*:5557", "tcp://*:5561", 0, 4, true},
		{"tcp://*:5557", "tcp://*:5560", 0, 4, false},
		{"tcp://*:5561", "tcp://*:5558", 8, 4, false},
		{"tcp://*:5557", "tcp://*:5557", 0, 1, false},
		{"tcp://*:5557", "tcp://h:5558", 0, 4, false},
		{"tcp://*:5557", "tcp://other:5558", 0, 4, true},
		{"tcp://*:5557", "", 0, 4, true},
		{"tcp://*:65534", "", 0, 4, false},
		{"tcp://*:5557", "tcp://*:65533", 0, 4, false},
		{"ipc://a", "ipc://b", 0, 1, true},
		{"ipc://a", "ipc://a", 0, 1, false},
		{"ipc://a", "", 0, 2, false},
		{"tcp://*:5557", "", 0, 0, false},
		{"tcp://*:5557", "", 1<<32 - 1, 2, false},
	} {
		err := CheckRanges(c.events, c.replay, "h", c.first, c.size)
		if c.ok {
			require.NoError(t, err, "%+v", c)
		} else {
			require.ErrorIs(t, err, ErrEndpoint, "%+v", c)
		}
	}
}

func TestBindEndpoint(t *testing.T) {
	for _, c := range []struct {
		base string
		rank uint32
		want string
	}{
		{"tcp://*:5557", 3, "tcp://*:5560"},
		{"tcp://0.0.0.0:5557", 0, "tcp://0.0.0.0:5557"},
		{"tcp://127.0.0.1:5557", 2, "tcp://127.0.0.1:5559"},
		{"tcp://127.0.0.1:0", 7, "tcp://127.0.0.1:0"},
		{"tcp://*:0", 7, "tcp://*:0"},
		{"ipc:///tmp/x", 0, "ipc:///tmp/x"},
	} {
		got, err := BindEndpoint(c.base, c.rank)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		require.Equal(t, got == c.base && c.rank == 7, TakesFreePort(got))
	}
	for _, c := range []struct {
		base string
		rank uint32
	}{{"nonsense", 0}, {"tcp://*:65535", 1}, {"tcp://127.0.0.1:65535", 1}, {"tcp://*:1", 1<<32 - 1}, {"ipc:///tmp/x", 1}, {"inproc://x", 0}} {
		_, err := BindEndpoint(c.base, c.rank)
		require.ErrorIs(t, err, ErrEndpoint, c.base)
	}
	require.False(t, TakesFreePort("nonsense"))
}
