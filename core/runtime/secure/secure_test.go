package secure

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func load1(t *testing.T, f Files, timeout time.Duration) *TLS {
	s, err := Load(f, timeout)
	require.NoError(t, err)
	return s
}

// shake has both sides of a connection shake hands, and a word go each way.
func shake(t *testing.T, server, client *TLS) (ofServer, ofClient error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	echo := func(c net.Conn, err error, first bool) error {
		if err != nil {
			return err
		}
		defer Raw(c).Close()
		_ = c.SetDeadline(time.Now().Add(servertest.Patience))
		const said = "GET / HTTP/1.1\r\n\r\n" // long enough to be no beginning of a handshake
		word := make([]byte, len(said))
		for i := range 2 {
			if (i == 0) == first {
				_, err = c.Write([]byte(said))
			} else {
				_, err = io.ReadFull(c, word)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		c, err := server.Server(raw)
		done <- echo(c, err, false)
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	c, err := client.Client(context.Background(), raw, "127.0.0.1")
	ofClient = echo(c, err, true)
	raw.Close()
	return <-done, ofClient
}

func TestHandshakes(t *testing.T) {
	ours, theirs := servertest.NewCertificates(t, "worker"), servertest.NewCertificates(t, "worker")
	expired := ours.Expired("late")
	server := load1(t, Files{Cert: ours.ServerCert, Key: ours.ServerKey}, 0)
	strict := load1(t, Files{Cert: ours.ServerCert, Key: ours.ServerKey, ClientCA: ours.CA}, 0)
	ca := func(c *servertest.Certificates) Files { return Files{CA: c.CA} }
	with := func(f Files, cert, key string) Files {
		f.ClientCert, f.ClientKey = cert, key
		return f
	}
	named := func(name string) Files { return Files{CA: ours.CA, ServerName: name} }
	for name, c := range map[string]struct {
		server         *TLS
		client         Files
		ofServer, ours string // "": it works
	}{
		"TLS":                          {server, ca(ours), "", ""},
		"a wrong authority":            {server, ca(theirs), "bad certificate", "unknown authority"},
		"a name":                       {server, named("localhost"), "", ""},
		"another name":                 {server, named("elsewhere"), "bad certificate", "elsewhere"},
		"unchecked":                    {server, Files{Insecure: true}, "", ""},
		"a certificate nobody asks":    {server, with(ca(ours), ours.ClientCert, ours.ClientKey), "", ""},
		"mutual TLS":                   {strict, with(ca(ours), ours.ClientCert, ours.ClientKey), "", ""},
		"no client certificate":        {strict, ca(ours), "certificate", "certificate required"},
		"a stranger's certificate":     {strict, with(ca(ours), theirs.ClientCert, theirs.ClientKey), "unknown authority", "unknown certificate authority"},
		"an expired certificate":       {strict, with(ca(ours), expired[0], expired[1]), "expired", "expired"},
		"an expired server":            {load1(t, Files{Cert: expired[0], Key: expired[1]}, 0), ca(ours), "bad certificate", "expired"},
		"a server for clients only":    {load1(t, Files{Cert: ours.ClientCert, Key: ours.ClientKey}, 0), ca(ours), "bad certificate", "incompatible key usage"},
		"plaintext to a secure server": {server, Files{}, "", ""},
		"a plain server":               {nil, ca(ours), "", ""},
		"plaintext":                    {nil, Files{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			of, mine := shake(t, c.server, load1(t, c.client, 0))
			switch name {
			case "plaintext to a secure server":
				require.ErrorContains(t, of, "first record does not look like a TLS handshake")
				require.Error(t, mine)
			case "a plain server":
				require.Error(t, mine)
			default:
				if c.ofServer == "" {
					require.NoError(t, of)
					require.NoError(t, mine)
				} else {
					require.ErrorContains(t, of, c.ofServer)
					require.ErrorContains(t, mine, c.ours)
				}
			}
		})
	}
}

// Who does not go on with a handshake is not waited for.
func TestHalfAHandshake(t *testing.T) {
	ours := servertest.NewCertificates(t, "worker")
	s := load1(t, Files{Cert: ours.ServerCert, Key: ours.ServerKey, CA: ours.CA}, 20*time.Millisecond)
	for _, half := range []func(net.Conn) (net.Conn, error){
		s.Server, func(c net.Conn) (net.Conn, error) { return s.Client(context.Background(), c, "x") },
	} {
		mine, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		_, err := half(mine)
		require.ErrorContains(t, err, "no TLS handshake within 20ms")
		theirs.Close()
	}
	mine, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Client(ctx, mine, "x")
	require.ErrorIs(t, err, context.Canceled)
}

// A certificate that is replaced is shown from then on; one that cannot be read is not.
func TestCertificatesAreReadAgain(t *testing.T) {
	ours, next := servertest.NewCertificates(t, "worker"), servertest.NewCertificates(t, "worker")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	replace := func(path, text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	replace(cert, ours.Text(ours.ServerCert))
	replace(key, ours.Text(ours.ServerKey))
	id, err := load(cert, key)
	require.NoError(t, err)
	first := id.current()
	look := func() { id.checked = time.Now().Add(-2 * recheck) }
	look()
	require.Same(t, first, id.current())
	replace(cert, next.Text(next.ServerCert))
	require.Same(t, first, id.current(), "not looked at yet")
	look()
	require.Same(t, first, id.current(), "the key is of another")
	replace(key, next.Text(next.ServerKey))
	look()
	second := id.current()
	require.NotSame(t, first, second)
	require.NoError(t, os.Remove(cert))
	look()
	require.Same(t, second, id.current())
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ours := servertest.NewCertificates(t, "worker")
	none, err := Load(Files{}, 0)
	require.NoError(t, err)
	require.Nil(t, none)
	for name, f := range map[string]Files{
		"a certificate alone":            {Cert: ours.ServerCert},
		"a key alone":                    {Key: ours.ServerKey},
		"an authority for nobody":        {ClientCA: ours.CA},
		"a key of another":               {Cert: ours.ServerCert, Key: ours.ClientKey},
		"no certificate":                 {Cert: ours.ServerKey, Key: ours.ServerKey},
		"no such file":                   {Cert: "/nowhere", Key: ours.ServerKey},
		"no authority":                   {Cert: ours.ServerCert, Key: ours.ServerKey, ClientCA: ours.ServerKey},
		"no such authority":              {CA: "/nowhere"},
		"a client certificate alone":     {CA: ours.CA, ClientCert: ours.ClientCert},
		"a client certificate unchecked": {ClientCert: ours.ClientCert, ClientKey: ours.ClientKey},
		"a client key of another":        {CA: ours.CA, ClientCert: ours.ClientCert, ClientKey: ours.ServerKey},
	} {
		_, err := Load(f, 0)
		require.ErrorIs(t, err, ErrConfig, name)
	}
}
