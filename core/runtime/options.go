package runtime

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/callhome"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
	"github.com/dynamo-go/dynamo-go/core/runtime/tcp"
)

// Options of a Runtime. The zero value of a field means its default.
type Options struct {
	// RequestHost and RequestPort are where this process takes requests, ResponseHost and ResponsePort responses; EventHost is the address it
	// publishes events under (they are bound to all). Hosts: the first IPv4 address that is not loopback, or 127.0.0.1. Ports: any free ones.
	RequestHost, ResponseHost, EventHost string
	RequestPort, ResponsePort            int

	Codec       string        // that this process as a worker asks for: discovery.CodecMsgpack, or CodecJSON
	MaxRequests int           // that this process as a worker has at a time; more are refused as overloaded; 16,384
	Inhibit     time.Duration // how long a Client leaves an instance alone that could not be reached or broke; 5 s
	TLS         *secure.TLS   // of requests by tcp and of responses; nil: they are plain
	TCP         tcp.Options
	CallHome    callhome.Options

	// Requests is the request plane that services are reached by, and instances that are not reached by tcp. nil: tcp alone.
	Requests plane.Requests
	// Events is the event plane that is published on, and followed besides ZeroMQ. nil: ZeroMQ alone.
	Events plane.Events
	// Shared is closed with the runtime, after all that uses it: what carries Requests and Events.
	Shared []interface{ Close() }
}

func (o Options) filled() Options {
	for _, host := range []*string{&o.RequestHost, &o.ResponseHost, &o.EventHost} {
		if *host == "" {
			*host = localHost()
		}
	}
	if o.Codec == "" {
		o.Codec = discovery.CodecMsgpack
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 16_384
	}
	if o.Inhibit == 0 {
		o.Inhibit = 5 * time.Second
	}
	o.TCP.TLS, o.CallHome.TLS = cmp.Or(o.TCP.TLS, o.TLS), cmp.Or(o.CallHome.TLS, o.TLS)
	return o
}

// localHost is the first IPv4 address that is not loopback, as Dynamo takes it.
func localHost() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// OptionsFromEnv reads Dynamo's variables (DYN_TCP_RPC_HOST and _PORT, DYN_TCP_RESPONSE_STREAM_HOST and _PORT, DYN_EVENT_PLANE_HOST,
// DYN_REQUEST_PLANE_CODEC, DYN_TCP_MAX_MESSAGE_SIZE, DYN_TCP_REQUEST_TIMEOUT, DYN_TCP_CONNECT_TIMEOUT, DYN_TCP_POOL_SIZE,
// DYN_RUNTIME_INHIBITED_DURATION_SECS; DYN_TCP_TLS_CERT_PATH, _KEY_PATH, _CLIENT_CA_CERT_PATH, _CA_CERT_PATH, _SERVER_NAME, _INSECURE,
// _CLIENT_CERT_PATH, _CLIENT_KEY_PATH and _HANDSHAKE_TIMEOUT_SECS), and the files that they name. Errors: plane.ErrInvalidArgument.
func OptionsFromEnv(getenv func(string) string) (o Options, err error) {
	number := func(name string, most int) int {
		text := getenv(name)
		if text == "" || err != nil {
			return 0
		}
		n, parsing := strconv.Atoi(text)
		if parsing != nil || n < 0 || n > most {
			err = fmt.Errorf("%w: %s=%q, expected a number from 0 to %d", plane.ErrInvalidArgument, name, text, most)
		}
		return n
	}
	o.RequestHost, o.RequestPort = getenv("DYN_TCP_RPC_HOST"), number("DYN_TCP_RPC_PORT", 65535)
	o.ResponseHost, o.ResponsePort = getenv("DYN_TCP_RESPONSE_STREAM_HOST"), number("DYN_TCP_RESPONSE_STREAM_PORT", 65535)
	o.EventHost = getenv("DYN_EVENT_PLANE_HOST")
	o.TCP.MaxMessage = number("DYN_TCP_MAX_MESSAGE_SIZE", 1<<30)
	o.CallHome.MaxMessage = o.TCP.MaxMessage
	o.TCP.AckTimeout = time.Duration(number("DYN_TCP_REQUEST_TIMEOUT", 3600)) * time.Second
	o.TCP.ConnectTimeout = time.Duration(number("DYN_TCP_CONNECT_TIMEOUT", 3600)) * time.Second
	o.TCP.HostConns = number("DYN_TCP_POOL_SIZE", 1000)
	o.Inhibit = time.Duration(number("DYN_RUNTIME_INHIBITED_DURATION_SECS", 3600)) * time.Second
	tls := func(name string) string { return getenv("DYN_TCP_TLS_" + name) }
	shake := time.Duration(number("DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS", 3600)) * time.Second
	secured, invalid := secure.Load(secure.Files{
		Cert: tls("CERT_PATH"), Key: tls("KEY_PATH"), ClientCA: tls("CLIENT_CA_CERT_PATH"),
		CA: tls("CA_CERT_PATH"), ServerName: tls("SERVER_NAME"), Insecure: secure.Truthy(tls("INSECURE")),
		ClientCert: tls("CLIENT_CERT_PATH"), ClientKey: tls("CLIENT_KEY_PATH"),
	}, shake)
	if o.TLS = secured; invalid != nil {
		err = fmt.Errorf("%w: DYN_TCP_TLS_*: %w", plane.ErrInvalidArgument, invalid)
	}
	switch codec := getenv("DYN_REQUEST_PLANE_CODEC"); codec {
	case "", discovery.CodecMsgpack, discovery.CodecJSON:
		o.Codec = codec
	default:
		err = fmt.Errorf("%w: DYN_REQUEST_PLANE_CODEC=%q, expected msgpack or json", plane.ErrInvalidArgument, codec)
	}
	return o, err
}
