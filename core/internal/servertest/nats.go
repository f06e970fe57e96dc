package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// NATS is a nats-server. Its port outlives Stop and Kill.
type NATS struct {
	*Server
	URL string // that clients connect to
}

// StartNATS runs one; config is further text of its configuration. TLS changes the URL's scheme to tls.
func StartNATS(t testing.TB, c *Certificates, config string) *NATS {
	t.Helper()
	port, scheme := FreePort(t), "nats"
	if c != nil {
		scheme = "tls"
		config += fmt.Sprintf("\ntls { cert_file: %q, key_file: %q, ca_file: %q }\n", c.ServerCert, c.ServerKey, c.CA)
	}
	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	n := &NATS{URL: scheme + "://" + address}
	n.Server = Start(t, Dials(address), Binary(t, "nats-server"), "-c", path, "-a", "127.0.0.1", "-p", fmt.Sprint(port))
	return n
}
