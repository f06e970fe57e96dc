package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	ctx   = context.Background()
	scope = discovery.Name{Namespace: "wire", Component: "backend", Endpoint: "generate"}
)

func connect(t testing.TB, o Options) *Conn {
	t.Helper()
	c, err := Connect(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func to(url string) Options { return Options{Servers: []string{url}} }

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(servertest.Patience); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// service is one that records what it takes.
type service struct {
	mu      sync.Mutex
	taken   []string
	refused []string
	answer  func(payload string) error
}

func (s *service) Take(payload []byte) error {
	if s.answer != nil {
		if err := s.answer(string(payload)); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, string(payload))
	return nil
}

func (s *service) Refuse(payload []byte, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, string(payload)+": "+why.Error())
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.taken)
}

func instance(id uint64) *discovery.Instance { return &discovery.Instance{Name: scope, ID: id} }

func message(payload string) *plane.Message {
	return &plane.Message{ID: "id", Payload: []byte(payload), Begun: make(chan struct{})}
}

// The subjects are those that Dynamo's processes were seen to use, and can be published to whatever the names are.
func TestSubjects(t *testing.T) {
	require.Equal(t, "wire_backend.generate-694da227cc231805", subjectOf(instance(0x694da227cc231805)))
	require.Equal(t, "namespace.wire.component.backend.endpoint.generate", prefixOf(&scope))
	require.Equal(t, "active_sequences_events", encode(wire.TopicSequences))
	for _, n := range []discovery.Name{scope, {Namespace: "a b", Component: "*", Endpoint: ">.é"}} {
		require.True(t, literal(subjectOf(&discovery.Instance{Name: n, ID: 1})))
		require.True(t, literal(prefixOf(&n)+"."+encode(wire.TopicKVEvents)))
	}
	for _, s := range []string{"", "a b", "a.*", "a.>", ".a", "a.", "a..b", "a\r\nPUB b 0", strings.Repeat("x", 2000)} {
		require.False(t, literal(s), "%q", s)
	}
}

func TestRequests(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	o := to(server.URL)
	o.Settle, o.AckTimeout = 50*time.Millisecond, servertest.Patience
	router, worker := connect(t, o), connect(t, o)
	s := &service{answer: func(payload string) error {
		switch payload {
		case "full":
			return fmt.Errorf("%w: 1 requests run", plane.ErrOverloaded)
		case "closing":
			return fmt.Errorf("the endpoint is shutting down")
		case "panic":
			panic("service")
		}
		return nil
	}}
	at := instance(1)
	stop, err := worker.Serve(at, s)
	require.NoError(t, err)
	require.Equal(t, "wire_backend.generate-1", at.NATS)
	_, err = worker.Serve(at, s)
	require.ErrorIs(t, err, plane.ErrInvalidArgument)

	var senders sync.WaitGroup
	for i := range 200 {
		senders.Go(func() { assert.NoError(t, router.Send(ctx, at, message(fmt.Sprint(i)))) })
	}
	senders.Wait()
	require.Len(t, s.taken, 200)
	require.ErrorIs(t, router.Send(ctx, at, message("full")), plane.ErrOverloaded)
	require.ErrorIs(t, router.Send(ctx, at, message("closing")), plane.ErrUnavailable)
	await(t, "both are told otherwise, too", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.refused) == 2
	})
	require.Equal(t, "full: worker overloaded: 1 requests run", s.refused[0])
	require.ErrorIs(t, router.Send(ctx, at, message(strings.Repeat("x", 1<<20))), plane.ErrTooLarge)
	require.ErrorIs(t, router.Send(ctx, instance(2), message("")), plane.ErrInvalidArgument)
	elsewhere := &discovery.Instance{ID: 2, NATS: "nobody"}
	require.ErrorIs(t, router.Send(ctx, elsewhere, message("")), plane.ErrUnavailable)

	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	silent, err := client.Connect(server.URL)
	require.NoError(t, err)
	defer silent.Close()
	_, err = silent.Subscribe("silent", func(*client.Msg) {})
	require.NoError(t, err)
	require.NoError(t, silent.Flush())
	mute := &discovery.Instance{ID: 3, NATS: "silent"}
	require.ErrorIs(t, router.Send(short, mute, message("")), context.DeadlineExceeded)
	begun := message("")
	ended := make(chan struct{})
	close(ended)
	begun.Begun = ended
	require.NoError(t, router.Send(ctx, mute, begun), "who answers has it")
	o.AckTimeout = 20 * time.Millisecond
	require.ErrorIs(t, connect(t, o).Send(ctx, mute, message("")), plane.ErrTimeout)
	faults := owned.Faults()
	leaktest.Faults(1)
	require.ErrorIs(t, router.Send(ctx, at, message("panic")), plane.ErrUnavailable)
	require.EqualValues(t, faults+1, owned.Faults())

	stop()
	stop()
	await(t, "it is not served any more", func() bool { return router.Send(ctx, at, message("late")) != nil })
	stop, err = worker.Serve(at, s)
	require.NoError(t, err)
	defer stop()
	require.NoError(t, router.Send(ctx, at, message("again")))
	require.Empty(t, router.acks.waiting)
	router.Close()
	router.Close()
	require.ErrorIs(t, router.Send(ctx, at, message("")), plane.ErrClosed)
	_, err = router.Serve(at, s)
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = router.Open(&discovery.Channel{})
	require.ErrorIs(t, err, plane.ErrClosed)
}

// Requests wait for a server that is lost, whenever it is lost, and then reach workers that come back later than who asks.
func TestServerRestarts(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	o := to(server.URL)
	router := connect(t, o)
	slower := o
	slower.ReconnectMax = 3 * time.Second
	worker := connect(t, slower)
	s := &service{}
	at := instance(1)
	_, err := worker.Serve(at, s)
	require.NoError(t, err)
	require.NoError(t, router.Send(ctx, at, message("before")))
	for range 2 {
		before := s.count()
		server.Kill()
		var senders sync.WaitGroup
		for i := range 20 {
			senders.Go(func() { assert.NoError(t, router.Send(ctx, at, message(fmt.Sprint(i)))) })
		}
		await(t, "both have noticed", func() bool { return !router.Stats().Connected && !worker.Stats().Connected })
		server.Start()
		senders.Wait()
		require.GreaterOrEqual(t, s.count()-before, 20)
	}
	require.EqualValues(t, 2, router.Stats().Reconnects)
	server.Kill()
	o.RequestWait, o.ServerWait = 50*time.Millisecond, 50*time.Millisecond
	lost := connect(t, o)
	await(t, "it has tried", func() bool { _, err := lost.Reach(); return err != nil })
	err = lost.Send(ctx, at, message(""))
	require.ErrorIs(t, err, plane.ErrNoServer)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, server.URL)
	require.False(t, plane.Quarantines(err), "no worker is to blame")
	_, err = lost.Serve(at, s)
	require.ErrorIs(t, err, plane.ErrNoServer)
	_, err = lost.Open(&discovery.Channel{Scope: scope, Topic: wire.TopicKVEvents})
	require.ErrorIs(t, err, plane.ErrNoServer)
	connected, err := lost.Reach()
	require.False(t, connected)
	require.ErrorContains(t, err, "connection refused")

	// Who does not wait is served as soon as there is a server.
	o.Background = true
	patient := connect(t, o)
	late := instance(2)
	_, err = patient.Serve(late, s)
	require.NoError(t, err)
	ch := &discovery.Channel{Scope: scope, Topic: wire.TopicKVEvents, Publisher: 1}
	out, err := patient.Open(ch)
	require.NoError(t, err)
	in := router.Follow(ch)
	defer in.Close()
	require.NoError(t, out.Send(&wire.Envelope{Publisher: 1, Topic: wire.TopicKVEvents, Payload: []byte("early")}))
	server.Start()
	await(t, "it is found when it is there", func() bool { return lost.Stats().Connected && patient.Stats().Connected })
	connected, err = patient.Reach()
	require.True(t, connected)
	require.NoError(t, err)
	require.NoError(t, router.Send(ctx, late, message("late")))
}

// A server that hangs is as good as none: who waits goes on when it does.
func TestWhoIsAnsweredNeedsNoServer(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	c := connect(t, to(server.URL))
	await(t, "connected", func() bool { return c.Stats().Connected })
	server.Kill()
	await(t, "lost", func() bool { return !c.Stats().Connected })
	begun := make(chan struct{})
	m := message("")
	m.Begun = begun
	var sending sync.WaitGroup
	sending.Go(func() { assert.NoError(t, c.Send(ctx, &discovery.Instance{NATS: "x"}, m)) })
	close(begun)
	sending.Wait()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, c.Send(cancelled, &discovery.Instance{NATS: "x"}, message("")), context.Canceled)
	sending.Go(func() { assert.ErrorIs(t, c.Send(ctx, &discovery.Instance{NATS: "x"}, message("")), plane.ErrClosed) })
	c.Close()
	sending.Wait()
}

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

// works tells whether a service can be reached with the environment.
func works(t *testing.T, getenv func(string) string) error {
	o, err := OptionsFromEnv(getenv)
	require.NoError(t, err)
	o.ServerWait = time.Millisecond
	c := connect(t, o)
	<-c.made
	await(t, "it has tried", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.session != nil || c.last != nil || c.fault != nil
	})
	if connected, _ := c.Reach(); connected {
		c.opts.ServerWait = servertest.Patience
	}
	at := instance(1)
	stop, err := c.Serve(at, &service{})
	if err != nil {
		return err
	}
	defer stop()
	return c.Send(ctx, at, message("x"))
}

func TestWhoMayConnect(t *testing.T) {
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	otherSeed, err := other.Seed()
	require.NoError(t, err)
	operator, creds := operator(t)
	for _, c := range []struct{ config, name, good, bad string }{
		{`authorization { users = [{user: "user", password: "user"}] }`, "", "", ""},
		{`authorization { token: "secret" }`, "NATS_AUTH_TOKEN", "secret", "wrong"},
		{`authorization { users = [{nkey: "` + public + `"}] }`, "NATS_AUTH_NKEY", string(seed), string(otherSeed)},
		{operator, "NATS_AUTH_CREDENTIALS_FILE", creds[0], creds[1]},
		{`authorization { users = [{user: "me", password: "secret"}] }`, "NATS_AUTH_PASSWORD", "secret", "wrong"},
	} {
		server := servertest.StartNATS(t, nil, c.config)
		require.NoError(t, works(t, env("NATS_SERVER", server.URL, c.name, c.good, "NATS_AUTH_USERNAME", "me")), c.name)
		if c.name != "" {
			err := works(t, env("NATS_SERVER", server.URL, c.name, c.bad, "NATS_AUTH_USERNAME", "me"))
			require.ErrorIs(t, err, plane.ErrNoServer, c.name)
			require.ErrorContains(t, err, "Authorization Violation", c.name)
		}
	}
}

// operator makes an operator's configuration, and the credentials of a user of it and of one of nobody's.
func operator(t *testing.T) (config string, creds [2]string) {
	key := func(pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		require.NoError(t, err)
		public, err := pair.PublicKey()
		require.NoError(t, err)
		return pair, public
	}
	sign := func(by nkeys.KeyPair, issuer, subject, kind string) string {
		part := func(v any) string {
			b, err := json.Marshal(v)
			require.NoError(t, err)
			return encoding.EncodeToString(b)
		}
		text := part(map[string]any{"typ": "JWT", "alg": "ed25519-nkey"}) + "." + part(map[string]any{
			"jti": subject, "iat": time.Now().Unix(), "iss": issuer, "sub": subject, "name": kind, "nats": map[string]any{
				"type": kind, "version": 2, "subs": -1, "data": -1, "payload": -1,
				"limits": map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1},
			},
		})
		signature, err := by.Sign([]byte(text))
		require.NoError(t, err)
		return text + "." + encoding.EncodeToString(signature)
	}
	top, topID := key(nkeys.CreateOperator())
	account, accountID := key(nkeys.CreateAccount())
	stranger, strangerID := key(nkeys.CreateAccount())
	for i, by := range []struct {
		pair nkeys.KeyPair
		id   string
	}{{account, accountID}, {stranger, strangerID}} {
		user, userID := key(nkeys.CreateUser())
		seed, err := user.Seed()
		require.NoError(t, err)
		creds[i] = filepath.Join(t.TempDir(), "user.creds")
		text := "-----BEGIN NATS USER JWT-----\n" + sign(by.pair, by.id, userID, "user") + "\n------END NATS USER JWT------\n\n" +
			"-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n"
		require.NoError(t, os.WriteFile(creds[i], []byte(text), 0o600))
	}
	return "operator: " + sign(top, topID, topID, "operator") + "\nresolver: MEMORY\nresolver_preload: { " + accountID + ": " +
		sign(top, topID, accountID, "account") + " }\n", creds
}

func TestTLS(t *testing.T) {
	ours, theirs := servertest.NewCertificates(t, "router"), servertest.NewCertificates(t, "router")
	server := servertest.StartNATS(t, ours, "")
	require.NoError(t, works(t, env("NATS_SERVER", server.URL, "NATS_TLS_CA_CERT_PATH", ours.CA)))
	require.NoError(t, works(t, env("NATS_SERVER", server.URL, "NATS_TLS_INSECURE", "1")))
	for _, ca := range []string{theirs.CA, ""} {
		err := works(t, env("NATS_SERVER", server.URL, "NATS_TLS_CA_CERT_PATH", ca))
		require.ErrorIs(t, err, plane.ErrNoServer)
		require.ErrorContains(t, err, "x509")
	}

	strict := servertest.StartNATS(t, nil, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", ours.ServerCert, ours.ServerKey, ours.CA))
	url := strings.Replace(strict.URL, "nats", "tls", 1)
	with := func(c *servertest.Certificates) func(string) string {
		return env("NATS_SERVER", url, "NATS_TLS_CA_CERT_PATH", ours.CA, "NATS_TLS_CLIENT_CERT_PATH", c.ClientCert, "NATS_TLS_CLIENT_KEY_PATH", c.ClientKey)
	}
	require.NoError(t, works(t, with(ours)))
	require.ErrorIs(t, works(t, with(theirs)), plane.ErrNoServer)
	require.ErrorIs(t, works(t, env("NATS_SERVER", url, "NATS_TLS_CA_CERT_PATH", ours.CA)), plane.ErrNoServer)

	plain := servertest.StartNATS(t, nil, "")
	err := works(t, env("NATS_SERVER", strings.Replace(plain.URL, "nats", "tls", 1), "NATS_TLS_CA_CERT_PATH", ours.CA))
	require.ErrorIs(t, err, plane.ErrNoServer)
}

func TestOptionsThatCannotWork(t *testing.T) {
	ours := servertest.NewCertificates(t, "router")
	for _, bad := range [][]string{
		{"NATS_SERVER", "http://x:1"}, {"NATS_SERVER", "x"}, {"NATS_SERVER", "nats://"}, {"NATS_SERVER", "nats://a:1, ://"},
		{"NATS_TLS_CA_CERT_PATH", ours.CA}, {"NATS_SERVER", "nats://x:1", "NATS_TLS_INSECURE", "on"},
		{"NATS_SERVER", "tls://x:1", "NATS_TLS_CA_CERT_PATH", "/nowhere"}, {"NATS_SERVER", "tls://x:1", "NATS_TLS_CLIENT_CERT_PATH", ours.ClientCert},
	} {
		_, err := OptionsFromEnv(env(bad...))
		require.ErrorIs(t, err, plane.ErrInvalidArgument, "%v", bad)
	}
	_, err := OptionsFromEnv(env("NATS_SERVER", "http://me:secret@x:1"))
	require.ErrorContains(t, err, "@x:1")
	require.NotContains(t, err.Error(), "secret")
	for _, o := range []Options{{NKey: "no seed"}, {Credentials: "/nowhere"}, {Servers: []string{"x"}}} {
		_, err := Connect(o)
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
	}
	for value, want := range map[string]bool{"1": true, "Yes ": true, "on": true, "true": true, "": false, "0": false, "2": false} {
		require.Equal(t, want, secure.Truthy(value))
	}
}
