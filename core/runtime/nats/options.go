package nats

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
)

// Options of a Conn. The zero value of a field means its default, which is Dynamo's where it has one.
type Options struct {
	Servers []string // "nats://host:port", or "tls://host:port"; all of one cluster; nats://localhost:4222

	// Who this process is: at most one of these. None: user "user" with the password "user", as in Dynamo.
	User, Password string
	Token          string
	NKey           string // its seed, "SU..."
	Credentials    string // path of a file with a JWT and a seed

	TLS *tls.Config // nil: for tls:// the system's authorities

	ConnectTimeout time.Duration // of one attempt; 2 s
	ServerWait     time.Duration // how long services and publishers that begin wait for the server; 10 s
	Background     bool          // they go on without it after ServerWait: others cannot reach them yet
	RequestWait    time.Duration // how long a request waits for a server that is lost; 30 s
	AckTimeout     time.Duration // of a worker, and of the server; 10 s
	Settle         time.Duration // how long after a connection workers may be missing that will be back; 5 s
	ReconnectMax   time.Duration // between attempts to connect; they begin at 50 ms; 1 s

	MaxPendingMessages int // of a service's requests, and of a publisher's events, that wait to be taken; 4,096
	MaxPendingBytes    int // likewise; 64 MiB
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (o Options) filled() Options {
	if len(o.Servers) == 0 {
		o.Servers = []string{"nats://localhost:4222"}
	}
	def(&o.ConnectTimeout, 2*time.Second)
	def(&o.ServerWait, 10*time.Second)
	def(&o.RequestWait, 30*time.Second)
	def(&o.AckTimeout, 10*time.Second)
	def(&o.Settle, 5*time.Second)
	def(&o.ReconnectMax, time.Second)
	def(&o.MaxPendingMessages, 4096)
	def(&o.MaxPendingBytes, 64<<20)
	return o
}

// OptionsFromEnv reads Dynamo's variables: NATS_SERVER, a list with commas; NATS_AUTH_USERNAME and _PASSWORD, _TOKEN, _NKEY or _CREDENTIALS_FILE, the
// first of them that there is; NATS_TLS_CA_CERT_PATH, _CLIENT_CERT_PATH, _CLIENT_KEY_PATH and _INSECURE, which want a tls:// server. Errors:
// plane.ErrInvalidArgument.
func OptionsFromEnv(getenv func(string) string) (o Options, err error) {
	for s := range strings.SplitSeq(getenv("NATS_SERVER"), ",") {
		if s = strings.TrimSpace(s); s != "" {
			o.Servers = append(o.Servers, s)
		}
	}
	user, password := getenv("NATS_AUTH_USERNAME"), getenv("NATS_AUTH_PASSWORD")
	switch {
	case user != "" && password != "":
		o.User, o.Password = user, password
	case getenv("NATS_AUTH_TOKEN") != "":
		o.Token = getenv("NATS_AUTH_TOKEN")
	case getenv("NATS_AUTH_NKEY") != "":
		o.NKey = getenv("NATS_AUTH_NKEY")
	default:
		o.Credentials = getenv("NATS_AUTH_CREDENTIALS_FILE")
	}
	files := secure.Files{
		CA: getenv("NATS_TLS_CA_CERT_PATH"), ClientCert: getenv("NATS_TLS_CLIENT_CERT_PATH"), ClientKey: getenv("NATS_TLS_CLIENT_KEY_PATH"),
		Insecure: secure.Truthy(getenv("NATS_TLS_INSECURE")),
	}
	if o.TLS, err = files.Client(); err != nil {
		return o, fmt.Errorf("%w: NATS: %w", plane.ErrInvalidArgument, err)
	}
	return o, o.check()
}

// check refuses what can never connect.
func (o *Options) check() error {
	for _, s := range o.Servers {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls":
			return fmt.Errorf("%w: NATS server %q, expected nats://host:port or tls://host:port", plane.ErrInvalidArgument, redacted(s))
		case o.TLS != nil && u.Scheme != "tls":
			return fmt.Errorf("%w: NATS server %q with TLS, expected tls://", plane.ErrInvalidArgument, redacted(s))
		}
	}
	if o.TLS != nil && len(o.Servers) == 0 {
		return fmt.Errorf("%w: TLS without a NATS server, expected tls://host:port", plane.ErrInvalidArgument)
	}
	return nil
}

// redacted keeps a password in a URL from being told.
func redacted(server string) string {
	if at := strings.LastIndexByte(server, '@'); at >= 0 {
		return "..." + server[at:]
	}
	return server
}

// client gives the options of the client library. Errors: plane.ErrInvalidArgument.
func (o *Options) client() (client.Options, error) {
	c := client.GetDefaultOptions()
	if err := o.check(); err != nil {
		return c, err
	}
	c.Servers, c.NoRandomize, c.TLSConfig, c.Secure = o.Servers, true, o.TLS, o.TLS != nil
	c.Name, c.Timeout = "dynamo-go", o.ConnectTimeout
	// It never gives up: a user that is unknown now may be known to a server that is configured anew.
	c.AllowReconnect, c.RetryOnFailedConnect, c.MaxReconnect, c.IgnoreAuthErrorAbort = true, true, -1, true
	longest := o.ReconnectMax
	c.CustomReconnectDelayCB = func(attempts int) time.Duration {
		return min(50*time.Millisecond<<min(attempts, 10), longest)
	}
	c.PingInterval, c.MaxPingsOut = 10*time.Second, 2
	switch {
	case o.User != "":
		c.User, c.Password = o.User, o.Password
	case o.Token != "":
		c.Token = o.Token
	case o.NKey != "":
		seed := []byte(o.NKey)
		pair, err := nkeys.FromSeed(seed)
		if err != nil {
			return c, fmt.Errorf("%w: NATS nkey: %w", plane.ErrInvalidArgument, err)
		}
		if c.Nkey, err = pair.PublicKey(); err != nil {
			return c, fmt.Errorf("%w: NATS nkey: %w", plane.ErrInvalidArgument, err)
		}
		c.SignatureCB = pair.Sign
	case o.Credentials != "":
		if _, err := os.Stat(o.Credentials); err != nil {
			return c, fmt.Errorf("%w: NATS credentials: %w", plane.ErrInvalidArgument, err)
		}
		if err := client.UserCredentials(o.Credentials)(&c); err != nil {
			return c, fmt.Errorf("%w: NATS credentials: %w", plane.ErrInvalidArgument, err)
		}
	default:
		c.User, c.Password = "user", "user"
	}
	return c, nil
}
