package dynamotest

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/etcd"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
)

// newest is the release that is tried with all planes.
const newest = "1.6.1"

// Planes are what a release is tried with: discovery, request plane and event plane, and tls if requests and responses are encrypted, and both sides
// have to prove who they are.
func Planes(release string) []string {
	all := []string{"file tcp zmq"}
	if release == newest {
		all = append(all, "file tcp zmq tls", "file nats nats", "etcd tcp zmq", "etcd nats nats")
	}
	return all
}

// Each runs a test with every release, and every choice of planes that it is tried with.
func Each(t *testing.T, test func(t *testing.T, release string, d *Deployment)) {
	for _, release := range Releases(t) {
		for _, planes := range Planes(release) {
			t.Run(release+" "+planes, func(t *testing.T) {
				t.Parallel()
				test(t, release, NewDeployment(t, planes))
			})
		}
	}
}

// Deployment is where processes find each other, and how they reach each other. Its servers end with the test.
type Deployment struct {
	Dir                       string // of file discovery
	Discovery, Request, Event string
	events                    string           // where our processes reach NATS for events: what Interpose cuts
	etcd                      *servertest.Etcd // nil: none is needed
	env                       []string
	cut                       *Cut
}

// NewDeployment starts the servers of planes.
func NewDeployment(t testing.TB, planes string) *Deployment {
	words := strings.Fields(planes)
	d := &Deployment{Dir: t.TempDir(), Discovery: words[0], Request: words[1], Event: words[2], env: []string{"PLANES=" + strings.Join(words[:3], " ")}}
	if len(words) > 3 {
		c := servertest.NewCertificates(t, "process")
		d.env = append(d.env, "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1", "DYN_TCP_TLS_CERT_PATH="+c.ServerCert, "DYN_TCP_TLS_KEY_PATH="+c.ServerKey, "DYN_TCP_TLS_CLIENT_CA_CERT_PATH="+c.CA,
			"DYN_TCP_TLS_CA_CERT_PATH="+c.CA, "DYN_TCP_TLS_CLIENT_CERT_PATH="+c.ClientCert, "DYN_TCP_TLS_CLIENT_KEY_PATH="+c.ClientKey)
	}
	if d.Discovery == "etcd" {
		d.etcd = servertest.StartEtcd(t, nil)
		d.env = append(d.env, "ETCD_ENDPOINTS="+d.etcd.URL, "ETCD_LEASE_TTL=10")
	}
	if d.Request == "nats" || d.Event == "nats" {
		server := servertest.StartNATS(t, nil, "jetstream { store_dir: \""+t.TempDir()+"\" }")
		d.env = append(d.env, "NATS_SERVER="+server.URL)
		d.cut = &Cut{conns: map[net.Conn]struct{}{}}
		d.events = "nats://" + d.cut.listen(t, strings.TrimPrefix(server.URL, "nats://"))
	}
	return d
}

// Env is what a process of the deployment has in its environment.
func (d *Deployment) Env() []string { return d.env }

// Joined is a deployment whose variables are this process's.
func Joined(dir string) *Deployment {
	return &Deployment{Dir: dir, env: os.Environ(), events: os.Getenv("NATS_SERVER")}
}

// Getenv gives the variables that all processes of the deployment have.
func (d *Deployment) Getenv(name string) string {
	for _, v := range d.env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Interpose gives a Cut between the publishers of KV events that there are, so many at least, and those who subscribe from now on.
func (d *Deployment) Interpose(t testing.TB, publishers int) *Cut {
	if d.Event == "nats" {
		return d.cut
	}
	if d.etcd != nil {
		return interposeEtcd(t, d.etcd, publishers)
	}
	return interpose(t, d.Dir, publishers)
}

// Store is where the deployment's records are, for one more process.
func (d *Deployment) Store(t testing.TB) discovery.Store {
	if d.Getenv("ETCD_ENDPOINTS") == "" {
		s, err := file.Open(d.Dir, file.Options{})
		require.NoError(t, err)
		return s
	}
	o, err := etcd.OptionsFromEnv(d.Getenv)
	require.NoError(t, err)
	s, err := etcd.Open(o)
	require.NoError(t, err)
	return s
}
