// Package secure is TLS for the connections between processes of a deployment: certificates and keys come from files in PEM, as Dynamo's variables name
// them, and are read again when the files change.
//
// A process has two roles, whichever it is in the deployment: others connect to it, and it connects to others. Each is encrypted if its files are given,
// and only then. Connections that are made before a change of the files go on as they are; authorities are read once.
package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// ErrConfig: the files cannot be used together, or one of them cannot be used.
var ErrConfig = errors.New("TLS configuration")

// Files are paths; "" is none.
type Files struct {
	Cert, Key string // that others are shown; both, and others must connect by TLS
	ClientCA  string // of those who may connect: they must show a certificate that it signed

	CA                    string // of those that are connected to
	ServerName            string // that is expected in their certificates; "": the host that is connected to
	Insecure              bool   // certificates are not checked. For development
	ClientCert, ClientKey string // that they are shown
}

// TLS is what Files say. A nil *TLS is no encryption. All methods are safe for concurrent use.
type TLS struct {
	server, client *tls.Config // nil: plain
	timeout        time.Duration
}

// DefaultTimeout is Dynamo's for a handshake.
const DefaultTimeout = 3 * time.Second

// Load reads files. timeout bounds a handshake; 0: DefaultTimeout. It gives nil if there are none. Errors: ErrConfig.
func Load(f Files, timeout time.Duration) (*TLS, error) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	t := &TLS{timeout: timeout}
	var err error
	if t.server, err = f.server(); err == nil {
		t.client, err = f.Client()
	}
	switch {
	case err != nil:
		return nil, err
	case t.server == nil && t.client == nil:
		return nil, nil
	}
	return t, nil
}

func (f *Files) server() (*tls.Config, error) {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, fmt.Errorf("%w: certificate %q and key %q, expected both or none", ErrConfig, f.Cert, f.Key)
	case f.Cert == "" && f.ClientCA != "":
		return nil, fmt.Errorf("%w: an authority for clients, %q, without a certificate to show them", ErrConfig, f.ClientCA)
	case f.Cert == "":
		return nil, nil
	}
	id, err := load(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.current(), nil },
	}
	if f.ClientCA != "" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs, err = authorities(f.ClientCA)
	}
	return c, err
}

// Client is the configuration of who connects; nil: it is plain. Errors: ErrConfig.
func (f *Files) Client() (*tls.Config, error) {
	switch {
	case (f.ClientCert == "") != (f.ClientKey == ""):
		return nil, fmt.Errorf("%w: client certificate %q and key %q, expected both or none", ErrConfig, f.ClientCert, f.ClientKey)
	case f.CA == "" && !f.Insecure && f.ClientCert != "":
		return nil, fmt.Errorf("%w: a client certificate, %q, without an authority to check whom it is shown to", ErrConfig, f.ClientCert)
	case f.CA == "" && !f.Insecure:
		return nil, nil
	}
	const sessions = 1024 // that are resumed, without looking at certificates again
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: f.ServerName, InsecureSkipVerify: f.Insecure,
		ClientSessionCache: tls.NewLRUClientSessionCache(sessions),
	}
	var err error
	if f.CA != "" {
		if c.RootCAs, err = authorities(f.CA); err != nil {
			return nil, err
		}
	}
	if f.ClientCert != "" {
		id, err := load(f.ClientCert, f.ClientKey)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return id.current(), nil }
	}
	return c, nil
}

func authorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%w: %s has no certificate in PEM", ErrConfig, path)
	}
	return pool, nil
}

// Server makes a connection that was accepted a secure one, and completes the handshake. The connection is closed if that fails.
func (t *TLS) Server(c net.Conn) (net.Conn, error) {
	if t == nil || t.server == nil {
		return c, nil
	}
	return t.shake(context.Background(), tls.Server(c, t.server))
}

// Client makes a connection that was made to a host a secure one, likewise.
func (t *TLS) Client(ctx context.Context, c net.Conn, host string) (net.Conn, error) {
	if t == nil || t.client == nil {
		return c, nil
	}
	config := t.client
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = host
	}
	return t.shake(ctx, tls.Client(c, config))
}

func (t *TLS) shake(ctx context.Context, c *tls.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timeout, fmt.Errorf("no TLS handshake within %v", t.timeout))
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		c.NetConn().Close() // no farewell to who may not read
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return c, nil
}

// Raw is the connection below a secure one.
func Raw(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// CloseWrite tells the other side of a connection, secure or not, that nothing follows.
func CloseWrite(c net.Conn) error {
	if t, ok := c.(*tls.Conn); ok {
		if err := t.CloseWrite(); err != nil {
			return err
		}
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		return t.CloseWrite()
	}
	return errors.ErrUnsupported
}

// recheck is how often files are looked at, at most, as in Dynamo.
const recheck = 30 * time.Second

// identity is a certificate with its key. A file that cannot be used leaves the last one that could.
type identity struct {
	cert, key string

	mu      sync.Mutex // guards the rest
	texts   [2][]byte
	parsed  *tls.Certificate
	checked time.Time
}

func load(cert, key string) (*identity, error) {
	i := &identity{cert: cert, key: key}
	return i, i.read()
}

func (i *identity) read() error {
	i.checked = time.Now()
	var texts [2][]byte
	for n, path := range [...]string{i.cert, i.key} {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		texts[n] = text
	}
	if i.parsed != nil && bytes.Equal(texts[0], i.texts[0]) && bytes.Equal(texts[1], i.texts[1]) {
		return nil
	}
	parsed, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return fmt.Errorf("%w: %s and %s: %w", ErrConfig, i.cert, i.key, err)
	}
	i.texts, i.parsed = texts, &parsed
	return nil
}

func (i *identity) current() *tls.Certificate {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.checked) > recheck {
		_ = i.read()
	}
	return i.parsed
}

// Truthy tells whether a variable that turns something on does, as Dynamo reads it.
func Truthy(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "1", "true", "on", "yes":
		return true
	}
	return false
}
