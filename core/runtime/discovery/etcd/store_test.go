package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/storetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 60 * time.Second

func open(t testing.TB, o Options) *Store {
	t.Helper()
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, patience)
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func at(e *servertest.Etcd) Options { return Options{Endpoints: []string{e.URL}} }

// admin is a client of etcd itself.
func admin(t testing.TB, e *servertest.Etcd) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.URL}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// stored gives what etcd has under a prefix: keys and values, by key.
func stored(t testing.TB, c *clientv3.Client, prefix string) map[string]string {
	t.Helper()
	r, err := c.Get(within(t), prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	all := map[string]string{}
	for _, kv := range r.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

func TestStore(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	storetest.Run(t, func() discovery.Store { return open(t, at(e)) })
	storetest.Run(t, func() discovery.Store {
		o := at(e)
		o.Background = true
		return open(t, o)
	})
	require.Empty(t, stored(t, admin(t, e), ""), "Close deletes what was stored")
}

// Keys, values and leases are as Dynamo's processes have them: the captured records go in and come out byte for byte, under a lease whose id is the process's.
func TestKeysAndValuesAreDynamos(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../testdata/golden/dynamo-wire/etcd_tcp_zmq/etcd_dump.txt")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	e := servertest.StartEtcd(t, nil)
	s := open(t, at(e))
	views := map[string]*discovery.View{}
	for i := 0; i < len(lines); i += 2 {
		bucket := strings.Join(strings.SplitN(lines[i], "/", 3)[:2], "/")
		if views[bucket] == nil {
			views[bucket], err = s.Watch(bucket, "")
			require.NoError(t, err)
		}
		require.NoError(t, s.Create(discovery.Key{Bucket: bucket, Path: strings.TrimPrefix(lines[i], bucket+"/")}, []byte(lines[i+1])))
	}
	require.Len(t, views, 4)
	r, err := admin(t, e).Get(within(t), "v1/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, r.Kvs, len(lines)/2)
	for i, kv := range r.Kvs {
		require.Equal(t, lines[2*i], string(kv.Key))
		require.Equal(t, lines[2*i+1], string(kv.Value))
		require.EqualValues(t, s.ID(), kv.Lease)
		require.EqualValues(t, 1, kv.Version)
	}
	await(t, "the views show them", func() bool {
		n := 0
		for _, v := range views {
			n += len(v.Entries())
		}
		return n == len(lines)/2
	})
}

var key = discovery.Key{Bucket: discovery.Instances, Path: "ns/comp/ep/1"}

// A lease that is lost while the process lives is granted anew, with the same id, and all records are written again: after it was revoked, and after a
// record was deleted by somebody.
func TestLostLease(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	s, c := open(t, at(e)), admin(t, e)
	watching := open(t, at(e))
	v, err := watching.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	defer v.Close()
	require.NoError(t, s.Create(key, []byte("{}")))
	storetest.Await(t, v, key.Path, "{}")
	for n := range uint64(3) {
		_, err = c.Revoke(within(t), clientv3.LeaseID(s.ID()))
		require.NoError(t, err)
		await(t, "there is a lease again", func() bool { return s.Status().Leases == n+2 })
		await(t, "the record is written again", func() bool { return len(stored(t, c, key.String())) == 1 })
		storetest.Await(t, v, key.Path, "{}")
	}
	_, err = c.Delete(within(t), key.String())
	require.NoError(t, err)
	await(t, "the record is written again", func() bool { return len(stored(t, c, key.String())) == 1 })
	storetest.Await(t, v, key.Path, "{}")
	ttl, err := c.TimeToLive(within(t), clientv3.LeaseID(s.ID()), clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte(key.String())}, ttl.Keys)
	require.NoError(t, s.Close())
	storetest.Await(t, v)
}

// A process that ends without a word leaves within its lease; one that was stopped for longer comes back by itself.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	o := at(e)
	o.LeaseTTL, o.Grace = time.Second, time.Millisecond
	link := newLink(t, e)
	o.Endpoints = []string{link.url}
	s := open(t, o)
	require.NoError(t, s.Create(key, []byte("{}")))
	v, err := open(t, at(e)).Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	storetest.Await(t, v, key.Path, "{}")
	link.cut()
	storetest.Await(t, v)
	link.mend()
	storetest.Await(t, v, key.Path, "{}")
	require.EqualValues(t, 2, s.Status().Leases)
}

// Etcd is stopped and comes back with its data, or is killed, or hangs: what was known is shown meanwhile, and what changed is shown soon after.
func TestServerComesBack(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	o := at(e)
	o.KeepAlive, o.KeepAliveTimeout = time.Second, time.Second
	s, watching := open(t, o), open(t, o)
	v, err := watching.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	require.NoError(t, s.Create(key, []byte("0")))
	storetest.Await(t, v, key.Path, "0")
	for i, outage := range []struct{ begin, end func() }{
		{e.Stop, e.Start}, {e.Kill, e.Start},
		{func() { e.Signal(syscall.SIGSTOP) }, func() { e.Signal(syscall.SIGCONT) }},
	} {
		outage.begin()
		for _, x := range []*Store{s, watching} {
			await(t, "the outage is told", func() bool { return !x.Status().Connected && x.Status().Err != nil })
		}
		storetest.Await(t, v, key.Path, fmt.Sprint(i))
		outage.end()
		require.NoError(t, s.Replace(key, fmt.Append(nil, i+1)))
		storetest.Await(t, v, key.Path, fmt.Sprint(i+1))
		require.NoError(t, watching.Status().Err)
	}
	require.EqualValues(t, 1, s.Status().Leases, "the lease outlives an outage")
}

// A server that comes back without its data gets it again from those who live; nobody disappears meanwhile. Who does not live goes.
func TestServerLosesItsData(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	link := newLink(t, e)
	o := Options{Endpoints: []string{link.url}}
	s, dead := open(t, o), open(t, at(e))
	require.NoError(t, s.Create(key, []byte("mine")))
	other := discovery.Key{Bucket: key.Bucket, Path: "ns/comp/ep/2"}
	require.NoError(t, dead.Create(other, []byte("other")))
	watching := open(t, o)
	v, err := watching.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	storetest.Await(t, v, key.Path, "mine", other.Path, "other")
	missed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(missed)
		for {
			select {
			case <-stop:
				return
			case <-v.Changed():
				assert.Contains(t, v.Entries(), key.Path)
			}
		}
	}()
	link.cut()
	e.Kill()
	fresh := servertest.StartEtcd(t, nil)
	link.to(strings.TrimPrefix(fresh.URL, "http://"))
	link.mend()
	c := admin(t, fresh)
	await(t, "the new server is told", func() bool { return len(stored(t, c, "")) == 1 })
	await(t, "who does not live goes", func() bool { return len(v.Entries()) == 1 })
	close(stop)
	<-missed
	storetest.Await(t, v, key.Path, "mine")
}

// What is compacted away while nobody listens is read anew, as a whole.
func TestCompaction(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	c := admin(t, e)
	link := newLink(t, e)
	o := at(e)
	o.Endpoints, o.Grace = []string{link.url}, time.Millisecond
	s := open(t, o)
	v, err := s.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	require.NoError(t, s.Create(key, []byte("mine")))
	_, err = c.Put(within(t), "v1/instances/ns/gone", "x")
	require.NoError(t, err)
	storetest.Await(t, v, key.Path, "mine", "ns/gone", "x")
	link.cut()
	_, err = c.Delete(within(t), "v1/instances/ns/gone")
	require.NoError(t, err)
	var revision int64
	for i := range 100 {
		r, err := c.Put(within(t), "v1/instances/ns/new", fmt.Sprint(i))
		require.NoError(t, err)
		revision = r.Header.Revision
	}
	_, err = c.Compact(within(t), revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	link.mend()
	storetest.Await(t, v, key.Path, "mine", "ns/new", "99")

	// While the store follows, a watch that is too far behind is cancelled by the server.
	x := &session{s: s, watched: map[int64]any{}, own: map[discovery.Key]bool{}}
	s.mu.Lock()
	m := s.mirrors[name{key.Bucket, "ns/"}]
	was := m.watch
	s.mu.Unlock()
	x.changes(m, cancelled(was, 7))
	_, err = c.Put(within(t), "v1/instances/ns/new", "100")
	require.NoError(t, err)
	storetest.Await(t, v, key.Path, "mine", "ns/new", "100")
}

// Whatever is under the prefix is shown as it is, or counted: garbage, huge values, odd keys.
func TestOddRecords(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil, "--max-request-bytes=20971520")
	c := admin(t, e)
	s := open(t, at(e))
	v, err := s.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	put := func(key, value string) {
		_, err := c.Put(within(t), key, value)
		require.NoError(t, err)
	}
	odd := "ns/\x00\xff//%2F\n"
	put("v1/instances/ns/", "")
	put("v1/instances/"+odd, "{\x00garbage")
	huge := strings.Repeat("x", discovery.MaxRecordBytes+1)
	put("v1/instances/ns/huge", huge)
	for i := range 20 {
		put(fmt.Sprintf("v1/instances/ns/most/%02d", i), huge[1:])
	}
	check := func(v *discovery.View) {
		await(t, "all is shown but what is too large", func() bool { return len(v.Entries()) == 22 })
		require.Equal(t, "{\x00garbage", string(v.Entries()[odd]))
		require.Contains(t, v.Entries(), "ns/")
		require.Contains(t, v.Entries(), "ns/most/19")
	}
	check(v)
	late := open(t, at(e))
	w, err := late.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	check(w)
	for _, x := range []*Store{s, late} {
		require.EqualValues(t, 1, x.Status().Ignored)
	}
	put("v1/instances/ns/huge", "small")
	storetestLen(t, w, 23)
	require.EqualValues(t, 0, late.Status().Ignored)
	put("v1/instances/ns/huge", huge)
	storetestLen(t, w, 22)
	_, err = c.Delete(within(t), "v1/instances/ns/huge")
	require.NoError(t, err)
	await(t, "nothing is ignored", func() bool { return late.Status().Ignored+s.Status().Ignored == 0 })

	require.ErrorIs(t, s.Create(discovery.Key{Bucket: key.Bucket, Path: strings.Repeat("k", maxKey)}, nil), discovery.ErrInvalid)
	require.ErrorIs(t, s.Create(key, []byte(huge)), discovery.ErrInvalid)
}

func storetestLen(t testing.TB, v *discovery.View, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d records are shown", n), func() bool { return len(v.Entries()) == n })
}

// A hundred thousand records are read and followed; what is beyond is counted, and shown when there is room.
func TestManyRecords(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	c := admin(t, e)
	fill := func(from, to int) {
		var ops []clientv3.Op
		for i := from; i < to; i++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("v1/instances/ns/%06d", i), `{"type":"Endpoint"}`))
			if len(ops) == 128 || i == to-1 {
				_, err := c.Txn(within(t)).Then(ops...).Commit()
				require.NoError(t, err)
				ops = nil
			}
		}
	}
	fill(0, MaxRecords/2)
	s := open(t, at(e))
	began := time.Now()
	v, err := s.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	t.Logf("%d records are read in %v", len(v.Entries()), time.Since(began))
	require.Len(t, v.Entries(), MaxRecords/2)
	fill(MaxRecords/2, MaxRecords+100)
	storetestLen(t, v, MaxRecords)
	await(t, "the rest is counted", func() bool { return s.Status().Ignored == 100 })
	late := open(t, at(e))
	w, err := late.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	require.Len(t, w.Entries(), MaxRecords)
	require.EqualValues(t, 100, late.Status().Ignored)
	require.NoError(t, late.Create(discovery.Key{Bucket: key.Bucket, Path: "other"}, []byte("{}")), "and nothing else waits for it")
	_, err = c.Delete(within(t), "v1/instances/ns/000000", clientv3.WithRange("v1/instances/ns/020000"))
	require.NoError(t, err)
	storetestLen(t, v, MaxRecords+100-20000)
	storetestLen(t, w, MaxRecords+100-20000)
	await(t, "nothing is ignored any more", func() bool { return late.Status().Ignored+s.Status().Ignored == 0 })
}

// A server that is not there, or does not speak, is an error after the wait that was asked for; and in the background nothing waits for it.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	nobody := "http://" + servertest.FreeAddress(t)
	for url, says := range map[string]string{nobody: "connection refused", "http://" + silent.Addr().String(): "etcd at http://" + silent.Addr().String()} {
		_, err := Open(Options{Endpoints: []string{url}, ConnectTimeout: 2 * time.Second})
		require.ErrorIs(t, err, discovery.ErrUnavailable)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "2s")
		t.Log(err)

		for _, wait := range []time.Duration{2 * time.Second, time.Hour} { // who waits for the hour does not end
			s := open(t, Options{Endpoints: []string{url}, ConnectTimeout: wait, Background: true})
			v, err := s.Watch(key.Bucket, "")
			require.NoError(t, err)
			require.NoError(t, s.Create(key, []byte("{}")))
			require.NoError(t, s.Replace(key, []byte("[]")))
			require.NoError(t, s.Delete(key))
			v.Close()
			if url == nobody && wait < time.Hour {
				await(t, "it is told", func() bool { return s.Status().Err != nil })
				require.ErrorContains(t, s.Status().Err, says)
				require.ErrorContains(t, s.Status().Err, "2s")
			}
			require.NoError(t, s.Close())
		}
	}
}

// In the background, what the server could not be told it is told later: what was created, replaced and deleted before it came.
func TestServerComesLate(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	e.Stop()
	o := at(e)
	o.Background = true
	s := open(t, o)
	v, err := s.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	second := discovery.Key{Bucket: key.Bucket, Path: "ns/second"}
	require.NoError(t, s.Create(key, []byte("old")))
	require.NoError(t, s.Create(second, []byte("x")))
	require.ErrorIs(t, s.Create(second, []byte("x")), discovery.ErrExists)
	require.NoError(t, s.Replace(key, []byte("new")))
	require.NoError(t, s.Delete(second))
	require.NoError(t, s.Status().Err, "it may yet come")
	e.Start()
	storetest.Await(t, v, key.Path, "new")
	require.Equal(t, map[string]string{key.String(): "new"}, stored(t, admin(t, e), ""))
}

// A key that another process has is an error, or is taken when it is free.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	c := admin(t, e)
	_, err := c.Put(within(t), key.String(), "theirs")
	require.NoError(t, err)
	s := open(t, at(e))
	require.ErrorIs(t, s.Create(key, []byte("mine")), discovery.ErrExists)
	require.ErrorIs(t, s.Delete(key), discovery.ErrNotFound)
	require.Equal(t, map[string]string{key.String(): "theirs"}, stored(t, c, ""))

	e.Kill()
	o := at(e)
	o.Background = true
	late := open(t, o)
	await(t, "there is no server", func() bool { late.mu.Lock(); defer late.mu.Unlock(); return late.last != nil })
	require.NoError(t, late.Create(key, []byte("mine")))
	e.Start()
	await(t, "it is told", func() bool { return late.Status().Foreign == 1 && late.Status().Err != nil })
	_, err = c.Delete(within(t), key.String())
	require.NoError(t, err)
	await(t, "it is taken", func() bool { return stored(t, c, "")[key.String()] == "mine" })
	await(t, "it is told", func() bool { return late.Status().Foreign == 0 && late.Status().Err == nil })
}

// Users and passwords: the right one may do everything; a wrong one is told at once; one that may not read a prefix is told so.
func TestUsers(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil, "--auth-token-ttl=1") // seconds: tokens are renewed in this test
	c := admin(t, e)
	ctx := within(t)
	_, err := c.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = c.RoleAdd(ctx, "worker")
	require.NoError(t, err)
	_, err = c.RoleGrantPermission(ctx, "worker", "v1/", "v2", clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = c.UserAdd(ctx, "worker", "pass")
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "worker", "worker")
	require.NoError(t, err)
	_, err = c.UserAdd(ctx, "nobody", "pass")
	require.NoError(t, err)
	_, err = c.AuthEnable(ctx)
	require.NoError(t, err)

	o := at(e)
	o.Username, o.Password = "worker", "pass"
	storetest.Run(t, func() discovery.Store { return open(t, o) })

	o.LeaseTTL = time.Second
	s := open(t, o)
	v, err := s.Watch(key.Bucket, "ns/")
	require.NoError(t, err)
	require.NoError(t, s.Create(key, []byte("0")))
	for i := range 6 { // longer than tokens live
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, s.Replace(key, fmt.Append(nil, i)))
		storetest.Await(t, v, key.Path, fmt.Sprint(i))
	}

	wrong := o
	wrong.Password = "x"
	began := time.Now()
	_, err = Open(wrong)
	require.ErrorIs(t, err, discovery.ErrUnavailable)
	require.ErrorContains(t, err, "authentication failed")
	require.Less(t, time.Since(began), patience/2, "nobody waits for that to change")
	none := o
	none.Username, none.Password, none.ConnectTimeout = "", "", time.Second
	_, err = Open(none)
	require.ErrorContains(t, err, "user name is empty")

	other := o
	other.Username = "nobody"
	s = open(t, other)
	_, err = s.Watch(key.Bucket, "")
	require.ErrorIs(t, err, discovery.ErrUnavailable)
	require.ErrorContains(t, err, "permission denied")
	require.ErrorContains(t, s.Create(key, nil), "permission denied")
}

// TLS: with the authority, with the client's certificate, with both wrong.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificates := servertest.NewCertificates(t, "worker")
	others := servertest.NewCertificates(t, "worker")
	for name, args := range map[string][]string{"server": nil, "mutual": {"--client-cert-auth", "--trusted-ca-file", certificates.CA}} {
		t.Run(name, func(t *testing.T) {
			e := servertest.StartEtcd(t, certificates, args...)
			env := map[string]string{
				"ETCD_ENDPOINTS": e.URL, "ETCD_AUTH_CA": certificates.Text(certificates.CA), // the text
				"ETCD_AUTH_CLIENT_CERT": certificates.ClientCert, "ETCD_AUTH_CLIENT_KEY": certificates.ClientKey, // files
			}
			from := func(without ...string) Options {
				o, err := OptionsFromEnv(func(name string) string {
					for _, w := range without {
						if w == name {
							return ""
						}
					}
					return env[name]
				})
				require.NoError(t, err)
				o.ConnectTimeout = time.Second
				return o
			}
			storetest.Run(t, func() discovery.Store { return open(t, from()) })
			o := from("ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY")
			s, err := Open(o)
			if args == nil {
				require.NoError(t, err)
				s.Close()
			} else {
				require.ErrorIs(t, err, discovery.ErrUnavailable)
			}
			env["ETCD_AUTH_CA"] = others.CA
			_, err = Open(from())
			require.ErrorIs(t, err, discovery.ErrUnavailable)
			require.ErrorContains(t, err, "unknown authority")
		})
	}
}

func TestOptionsFromEnv(t *testing.T) {
	from := func(pairs ...string) (Options, error) {
		env := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			env[pairs[i]] = pairs[i+1]
		}
		return OptionsFromEnv(func(name string) string { return env[name] })
	}
	o, err := from()
	require.NoError(t, err)
	require.Equal(t, Options{}, o)
	filled, err := o.filled()
	require.NoError(t, err)
	require.Equal(t, []string{"http://localhost:2379"}, filled.Endpoints)
	require.Equal(t, 30*time.Second, filled.LeaseTTL)
	o, err = from("ETCD_ENDPOINTS", "http://a:1, http://b:2/,c:3", "ETCD_AUTH_USERNAME", "u", "ETCD_AUTH_PASSWORD", "p", "ETCD_LEASE_TTL", "7",
		"ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", "8", "ETCD_KEEPALIVE_INTERVAL_SECONDS", "0", "ETCD_KEEPALIVE_TIMEOUT_SECONDS", "9")
	require.NoError(t, err)
	require.Equal(t, Options{
		Endpoints: []string{"http://a:1", "http://b:2", "http://c:3"}, Username: "u", Password: "p", LeaseTTL: 7 * time.Second,
		ConnectTimeout: 8 * time.Second, KeepAlive: -1, KeepAliveTimeout: 9 * time.Second,
	}, o)
	for says, pairs := range map[string][]string{
		"ETCD_LEASE_TTL=\"0\"":           {"ETCD_LEASE_TTL", "0"},
		"ETCD_LEASE_TTL=\"x\"":           {"ETCD_LEASE_TTL", "x"},
		"ETCD_KEEPALIVE_TIMEOUT":         {"ETCD_KEEPALIVE_TIMEOUT_SECONDS", "-1"},
		"expected http":                  {"ETCD_ENDPOINTS", "ftp://a"},
		"same scheme":                    {"ETCD_ENDPOINTS", "http://a,https://b"},
		"given together":                 {"ETCD_AUTH_USERNAME", "u"},
		"ETCD_AUTH_CA is neither":        {"ETCD_AUTH_CA", "/none", "ETCD_ENDPOINTS", "https://a"},
		"ETCD_AUTH_CA has no":            {"ETCD_AUTH_CA", "-----BEGIN NOTHING-----", "ETCD_ENDPOINTS", "https://a"},
		"ETCD_AUTH_CLIENT_CERT and ETCD": {"ETCD_AUTH_CLIENT_CERT", "-----BEGIN x-----", "ETCD_ENDPOINTS", "https://a"},
	} {
		_, err := from(pairs...)
		require.ErrorIs(t, err, discovery.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	_, err = from("ETCD_AUTH_CA", "geheim")
	require.NotContains(t, err.Error(), "geheim")
}

// Ids are of 63 bits, as leases of etcd are; and JSON of it is a number exactly.
func TestID(t *testing.T) {
	t.Parallel()
	e := servertest.StartEtcd(t, nil)
	s := open(t, at(e))
	require.NotZero(t, s.ID())
	require.Positive(t, int64(s.ID()))
	text, err := json.Marshal(s.ID())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(s.ID()), string(text))
}
