package servertest

import (
	"fmt"
	"net/http"
	"testing"
)

// Etcd is an etcd server of one member. Its data outlives Stop and Kill, and so do its ports.
type Etcd struct {
	*Server
	URL string // that clients connect to
}

// StartEtcd runs one, with TLS if there are certificates; args are further flags of etcd (--trusted-ca-file has it ask for clients' certificates).
func StartEtcd(t testing.TB, c *Certificates, args ...string) *Etcd {
	t.Helper()
	scheme := "http"
	if c != nil {
		scheme = "https"
		args = append(args, "--cert-file", c.ServerCert, "--key-file", c.ServerKey)
	}
	client, peer, metrics := FreePort(t), FreePort(t), FreePort(t)
	e := &Etcd{URL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, client)}
	health := fmt.Sprintf("http://127.0.0.1:%d", metrics)
	peers := fmt.Sprintf("http://127.0.0.1:%d", peer)
	// An election and its ticks take a tenth of the usual, a write does not wait for the disk: tests start many servers.
	args = append([]string{
		Binary(t, "etcd"), "--name=test", "--data-dir", t.TempDir(), "--listen-client-urls", e.URL, "--advertise-client-urls", e.URL,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "test=" + peers, "--listen-metrics-urls", health,
		"--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync", "--bcrypt-cost=4", "--log-level=error",
	}, args...)
	e.Server = Start(t, func() error {
		r, err := http.Get(health + "/health")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", r.Status)
		}
		return nil
	}, args...)
	return e
}
