package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Options of a Store. The zero value of a field means its default.
type Options struct {
	Endpoints          []string    // "http://host:port" or "https://host:port", all with the same scheme; http://localhost:2379
	Username, Password string      // "": none
	TLS                *tls.Config // nil: the system's authorities, if the endpoints say https

	LeaseTTL         time.Duration // how long the records outlive this process if it dies; whole seconds; 30 s
	ConnectTimeout   time.Duration // how long the first connection may take until Open, or Status, says that there is none; 120 s
	KeepAlive        time.Duration // how often a silent server is asked whether it lives; 15 s; below 5 s servers refuse it; negative: never
	KeepAliveTimeout time.Duration // how long it may take to answer that; 10 s
	Wait             time.Duration // how long a call may wait for the server; 10 s
	Grace            time.Duration // how long what is missing after a reconnect is still shown; 2 s

	// Background is for hosts with an event loop: Open waits for nothing, and other calls wait for at most 50 ms. What the server has not got by then it
	// gets as soon as it can.
	Background bool
}

const (
	defaultEndpoint = "http://localhost:2379"
	backgroundWait  = 50 * time.Millisecond
	maxEndpoints    = 64
	maxSeconds      = 1 << 30
)

func (o Options) filled() (Options, error) {
	if len(o.Endpoints) == 0 {
		o.Endpoints = []string{defaultEndpoint}
	}
	if len(o.Endpoints) > maxEndpoints {
		return o, fmt.Errorf("%w: %d endpoints of etcd, at most %d", discovery.ErrInvalid, len(o.Endpoints), maxEndpoints)
	}
	for _, e := range o.Endpoints {
		scheme, host, found := strings.Cut(e, "://")
		if !found || scheme != "http" && scheme != "https" || host == "" || strings.ContainsAny(host, "/ ") ||
			!strings.HasPrefix(o.Endpoints[0], scheme+"://") {
			return o, fmt.Errorf("%w: endpoint of etcd %q, expected http://host:port or https://host:port, all with the same scheme", discovery.ErrInvalid, e)
		}
	}
	if strings.HasPrefix(o.Endpoints[0], "http://") && o.TLS != nil {
		return o, fmt.Errorf("%w: certificates for the endpoint of etcd %q, expected https://host:port", discovery.ErrInvalid, o.Endpoints[0])
	}
	if (o.Username == "") != (o.Password == "") {
		return o, fmt.Errorf("%w: a user of etcd and a password are given together or not at all", discovery.ErrInvalid)
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&o.LeaseTTL, 30 * time.Second},
		{&o.ConnectTimeout, 120 * time.Second},
		{&o.KeepAlive, 15 * time.Second},
		{&o.KeepAliveTimeout, 10 * time.Second},
		{&o.Wait, 10 * time.Second},
		{&o.Grace, 2 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	if o.LeaseTTL < time.Second || o.LeaseTTL%time.Second != 0 || o.LeaseTTL > maxSeconds*time.Second {
		return o, fmt.Errorf("%w: a lease of %v, expected whole seconds, 1 to %d", discovery.ErrInvalid, o.LeaseTTL, maxSeconds)
	}
	return o, nil
}

// OptionsFromEnv reads Dynamo's variables: ETCD_ENDPOINTS (by commas), ETCD_AUTH_USERNAME and _PASSWORD, ETCD_AUTH_CA, ETCD_AUTH_CLIENT_CERT and _KEY
// (PEM, or the path of a file of it; the authority alone is enough if the server asks for no certificate), ETCD_LEASE_TTL,
// ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS, ETCD_KEEPALIVE_INTERVAL_SECONDS (0: never) and _TIMEOUT_SECONDS.
// Errors: discovery.ErrInvalid.
func OptionsFromEnv(getenv func(string) string) (o Options, err error) {
	seconds := func(name string, least int) time.Duration {
		text := getenv(name)
		if text == "" || err != nil {
			return 0
		}
		n, parsing := strconv.Atoi(text)
		if parsing != nil || n < least || n > maxSeconds {
			err = fmt.Errorf("%w: %s=%.80q, expected a number of seconds from %d to %d", discovery.ErrInvalid, name, text, least, maxSeconds)
		}
		if n == 0 {
			return -1
		}
		return time.Duration(n) * time.Second
	}
	for e := range strings.SplitSeq(getenv("ETCD_ENDPOINTS"), ",") {
		if e = strings.TrimSuffix(strings.TrimSpace(e), "/"); e != "" {
			if !strings.Contains(e, "://") {
				e = "http://" + e
			}
			o.Endpoints = append(o.Endpoints, e)
		}
	}
	o.Username, o.Password = getenv("ETCD_AUTH_USERNAME"), getenv("ETCD_AUTH_PASSWORD")
	o.LeaseTTL = seconds("ETCD_LEASE_TTL", 1)
	o.ConnectTimeout = seconds("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", 1)
	o.KeepAlive, o.KeepAliveTimeout = seconds("ETCD_KEEPALIVE_INTERVAL_SECONDS", 0), seconds("ETCD_KEEPALIVE_TIMEOUT_SECONDS", 1)
	if err != nil {
		return o, err
	}
	if o.TLS, err = tlsFromEnv(getenv); err != nil {
		return o, err
	}
	_, err = o.filled()
	return o, err
}

func tlsFromEnv(getenv func(string) string) (*tls.Config, error) {
	ca, err := pemOf(getenv, "ETCD_AUTH_CA")
	if err != nil {
		return nil, err
	}
	cert, err := pemOf(getenv, "ETCD_AUTH_CLIENT_CERT")
	if err != nil {
		return nil, err
	}
	key, err := pemOf(getenv, "ETCD_AUTH_CLIENT_KEY")
	if err != nil {
		return nil, err
	}
	if ca == nil && cert == nil && key == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("%w: ETCD_AUTH_CA has no certificate", discovery.ErrInvalid)
		}
	}
	if cert != nil || key != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY: %w", discovery.ErrInvalid, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// pemOf gives a variable's text in PEM, which may be in a file that it names.
func pemOf(getenv func(string) string, name string) ([]byte, error) {
	text := getenv(name)
	if text == "" || strings.Contains(text, "-----BEGIN") {
		if text == "" {
			return nil, nil
		}
		return []byte(text), nil
	}
	data, err := os.ReadFile(text)
	if err != nil || !strings.Contains(string(data), "-----BEGIN") {
		return nil, fmt.Errorf("%w: %s is neither PEM nor the path of a file of it", discovery.ErrInvalid, name) // what it is may be a secret
	}
	return data, nil
}
