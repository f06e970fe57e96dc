package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

const (
	// maxMessage bounds what the server sends at a time. A page is read with fewer records if it has more.
	maxMessage = 16 << 20
	// pageRecords is how many records are read at a time: 1 MiB of usual ones.
	pageRecords = 512

	maxCompacted = 10 // times that a reading is overtaken

	callTimeout  = 5 * time.Second // of one question
	closeTimeout = 2 * time.Second // of giving the lease back
	retryTime    = time.Second     // after a refusal
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = time.Second
)

// session is one connection.
type session struct {
	s      *Store
	client *clientv3.Client
	ctx    context.Context
	fail   context.CancelCauseFunc
	lease  etcdserverpb.LeaseClient
	watch  etcdserverpb.Watch_WatchClient
	ids    int64 // numbers of what is followed that were given

	own map[discovery.Key]bool // records of this process whose keys are followed; Store.mu guards it
	was map[*mirror]bool       // read in this session

	mu      sync.Mutex    // guards watched
	watched map[int64]any // what is followed, by number: a *mirror, or the key of a record of this process
}

// run has one session after the other.
func (s *Store) run() {
	wait := firstBackoff
	for {
		began := time.Now()
		err := owned.Try(s.session)
		if s.ctx.Err() != nil {
			return
		}
		if time.Since(began) > 2*maxBackoff {
			wait = firstBackoff
		}
		s.mu.Lock()
		s.status.Connected = false
		s.last, s.slow = err, false
		s.fatal = s.status.Sessions == 0 && errors.Is(err, rpctypes.ErrAuthFailed)
		s.tell()
		s.mu.Unlock()
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-s.ctx.Done():
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// session lives until something breaks, which is the error.
func (s *Store) session() (err error) {
	connection, disconnect := context.WithCancel(context.Background())
	defer disconnect()
	x := &session{s: s, own: make(map[discovery.Key]bool), was: make(map[*mirror]bool), watched: make(map[int64]any)}
	stop := owned.After(s.ctx, disconnect) // until it is clear that there is a lease to give back
	defer stop()
	x.client, err = clientv3.New(clientv3.Config{
		Endpoints: s.opts.Endpoints, Username: s.opts.Username, Password: s.opts.Password, TLS: s.opts.TLS, Context: connection, Logger: zap.NewNop(),
		DialTimeout: callTimeout, DialKeepAliveTime: max(s.opts.KeepAlive, 0), DialKeepAliveTimeout: s.opts.KeepAliveTimeout,
		MaxCallRecvMsgSize: maxMessage, MaxUnaryRetries: 2,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff}, MinConnectTimeout: callTimeout,
			}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
			grpc.WithDisableServiceConfig(),
		},
	})
	if err != nil {
		return err
	}
	defer x.client.Close()
	x.ctx, x.fail = context.WithCancelCause(s.ctx)
	var running owned.Group
	defer running.Wait()
	defer x.fail(nil)
	x.lease = etcdserverpb.NewLeaseClient(x.client.ActiveConnection())
	if err := x.grant(); err != nil {
		return err
	}
	if !stop() {
		return s.ctx.Err()
	}
	defer func() {
		if s.ctx.Err() != nil {
			x.fail(nil)
			running.Wait() // nothing is written any more
			x.revoke(connection)
		}
	}()
	// A server that has no leader says so, rather than say nothing.
	x.watch, err = etcdserverpb.NewWatchClient(x.client.ActiveConnection()).Watch(clientv3.WithRequireLeader(x.ctx))
	if err != nil {
		return err
	}
	x.begin()
	running.Go(func() { x.fail(owned.Try(x.follow)) })
	running.Go(func() { x.fail(owned.Try(x.keep)) })
	for {
		again, err := x.work()
		if err != nil {
			return err
		}
		timer := time.NewTimer(again)
		select {
		case <-x.ctx.Done():
		case <-s.kick:
		case <-timer.C:
		}
		timer.Stop()
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
	}
}

// begin has everything looked at anew.
func (x *session) begin() {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Connected = true
	s.status.Sessions++
	s.last, s.slow = nil, false
	for _, r := range s.own {
		r.written = false
	}
	for _, m := range s.mirrors {
		m.watch = 0
	}
	s.tell()
}

func (x *session) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(x.ctx, callTimeout)
}

// grant makes sure of the lease. That there is one of its id already says that it is not over yet.
func (x *session) grant() error {
	ctx, cancel := x.call()
	defer cancel()
	q := &etcdserverpb.LeaseGrantRequest{ID: int64(x.s.id), TTL: int64(x.s.opts.LeaseTTL / time.Second)}
	_, err := x.lease.LeaseGrant(ctx, q)
	switch err = rpctypes.Error(err); {
	case errors.Is(err, rpctypes.ErrLeaseExist):
		return nil
	case err != nil:
		return err
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.status.Leases++
	for _, r := range x.s.own {
		r.written = false
	}
	return nil
}

func (x *session) revoke(connection context.Context) {
	ctx, cancel := context.WithTimeout(connection, closeTimeout)
	defer cancel()
	_, _ = x.lease.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: int64(x.s.id)}) // it expires
}

var errSilent = errors.New("the lease cannot be kept alive: no answer")

// keep keeps the lease alive. It ends with the session.
func (x *session) keep() error {
	stream, err := x.lease.LeaseKeepAlive(x.ctx)
	if err != nil {
		return err
	}
	interval := x.s.opts.LeaseTTL / 3
	for {
		// An answer that does not come ends the session: the server may hang.
		timeout := time.AfterFunc(max(interval, callTimeout), owned.Guarded(func() { x.fail(errSilent) }))
		err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(x.s.id)})
		var answer *etcdserverpb.LeaseKeepAliveResponse
		if err == nil {
			answer, err = stream.Recv()
		}
		timeout.Stop()
		if err != nil {
			return err
		}
		if answer.TTL <= 0 { // it is over
			if err := x.grant(); err != nil {
				return err
			}
			x.s.wake()
			continue
		}
		select {
		case <-x.ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// follow takes what changes. It ends with the session.
func (x *session) follow() error {
	for {
		r, err := x.watch.Recv()
		if err != nil {
			return err
		}
		x.mu.Lock()
		target := x.watched[r.WatchId]
		if r.Canceled {
			delete(x.watched, r.WatchId)
		}
		x.mu.Unlock()
		if r.Canceled && target != nil && r.CompactRevision == 0 { // the token of this stream may be over: the next session has another
			return fmt.Errorf("following %v: %.200s", target, r.CancelReason)
		}
		switch target := target.(type) {
		case *mirror:
			x.changes(target, r)
		case discovery.Key:
			x.mine(target, r)
		}
	}
}

// changes takes what changed under a prefix.
func (x *session) changes(m *mirror, r *etcdserverpb.WatchResponse) {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.watch != r.WatchId {
		return
	}
	for _, e := range r.Events {
		path, ok := m.path(e.GetKv().GetKey())
		switch {
		case !ok:
		case e.Type == mvccpb.Event_DELETE:
			m.remove(path)
		default:
			m.put(path, e.Kv.Value, e.Kv.CreateRevision != e.Kv.ModRevision)
		}
	}
	if len(r.Events) > 0 {
		s.showIn(settleTime)
	}
	if r.Canceled {
		m.watch = 0 // compacted: read it again
	}
	if m.watch == 0 {
		s.wake()
	}
}

// mine looks at what happened to a record of this process: if it is there no more, it is written again.
func (x *session) mine(k discovery.Key, r *etcdserverpb.WatchResponse) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	own := x.s.own[k]
	if own == nil {
		return
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.Event_DELETE {
			own.written, own.lost = false, max(own.lost, e.GetKv().GetModRevision())
			x.s.wake()
		}
	}
	if r.Canceled { // compacted: it has to be looked at
		own.written = false
		delete(x.own, k)
		x.s.wake()
	}
}

// work does what is to be done, and tells when to look again.
func (x *session) work() (again time.Duration, err error) {
	s := x.s
	var drop, write []discovery.Key
	var read []*mirror
	s.mu.Lock()
	for k := range s.gone {
		drop = append(drop, k)
	}
	for k, r := range s.own {
		if !r.written {
			write = append(write, k)
		}
	}
	for _, m := range s.mirrors {
		if m.watch == 0 {
			read = append(read, m)
		}
	}
	s.mu.Unlock()
	var refused error
	attempt := func(err error) error {
		if err != nil && isRefusal(err) {
			refused, err = err, nil
		}
		return err
	}
	for _, k := range drop {
		if err := attempt(x.drop(k)); err != nil {
			return 0, err
		}
	}
	for _, k := range write {
		if err := attempt(x.write(k)); err != nil {
			return 0, err
		}
	}
	for _, m := range read {
		if err := attempt(x.read(m)); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last = refused; refused != nil {
		return retryTime, x.unfollow()
	}
	return time.Hour, x.unfollow()
}

// errStrange: whatever answers is not etcd as it should be. The session ends.
var errStrange = errors.New("not an answer of etcd")

// errForeign is a refusal, too.
var errForeign = errors.New("another process has the key")

// isRefusal tells whether a server that works said no; otherwise the session is over.
func isRefusal(err error) bool {
	if errors.Is(err, errForeign) {
		return true
	}
	code := status.Code(err)
	var told rpctypes.EtcdError
	if errors.As(err, &told) {
		code = told.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// write stores a record of this process, unless it is.
func (x *session) write(k discovery.Key) error {
	s, key := x.s, k.String()
	s.mu.Lock()
	r := s.own[k]
	if r == nil || r.written {
		s.mu.Unlock()
		return nil
	}
	value, force := r.value, r.fresh || r.replace
	s.mu.Unlock()
	ctx, cancel := x.call()
	defer cancel()
	lease := clientv3.LeaseID(s.id)
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(lease))
	answer, err := x.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(put).Else(clientv3.OpGet(key)).Commit()
	foreign := false
	if err == nil && !answer.Succeeded {
		if len(answer.Responses) == 0 || len(answer.Responses[0].GetResponseRange().GetKvs()) == 0 {
			return fmt.Errorf("%w: a key that is there and is not", errStrange)
		}
		there := answer.Responses[0].GetResponseRange().GetKvs()[0]
		switch {
		case there.Lease != int64(s.id):
			foreign = true
		case force && !bytes.Equal(there.Value, value):
			answer, err = x.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease)).Then(put).Commit()
			if err == nil && !answer.Succeeded {
				s.wake() // it changed meanwhile
				return nil
			}
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.wake()
		return x.grant()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own[k] != r {
		s.wake() // to drop it again
		return nil
	}
	if err != nil && isRefusal(err) || foreign {
		if r.fresh {
			delete(s.own, k)
			if r.err = fmt.Errorf("%w: %s: %w", discovery.ErrUnreachable, k, err); foreign {
				r.err = fmt.Errorf("%w: %s", discovery.ErrExists, k)
			}
			s.tell()
			return nil
		}
		if r.foreign = foreign; foreign {
			err = fmt.Errorf("%s: %w", k, errForeign)
		}
		return err
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(r.value, value) || r.lost > answer.Header.GetRevision() {
		s.wake()
		return nil
	}
	r.written, r.fresh, r.replace, r.foreign = true, false, false, false
	s.tell()
	if x.own[k] {
		return nil
	}
	x.own[k] = true
	return x.start(k, answer.Header.GetRevision()+1, key, "")
}

// drop deletes a record that this process had.
func (x *session) drop(k discovery.Key) error {
	ctx, cancel := x.call()
	defer cancel()
	key := k.String()
	ours := clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.LeaseID(x.s.id))
	_, err := x.client.Txn(ctx).If(ours).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return err
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	delete(x.s.gone, k)
	x.s.tell()
	return nil
}

// start follows a key, or all keys up to an end. s.mu is held.
func (x *session) start(target any, revision int64, key, end string) error {
	x.ids++
	if m, ok := target.(*mirror); ok {
		m.watch = x.ids
	}
	x.mu.Lock()
	x.watched[x.ids] = target
	x.mu.Unlock()
	q := &etcdserverpb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end), StartRevision: revision, Fragment: true, WatchId: x.ids}
	return x.watch.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: q}})
}

// unfollow ends what nobody wants followed any more. s.mu is held.
func (x *session) unfollow() error {
	x.mu.Lock()
	var ids []int64
	for id, target := range x.watched {
		wanted := false
		switch target := target.(type) {
		case *mirror:
			wanted = x.s.mirrors[target.name] == target && target.watch == id
		case discovery.Key:
			if wanted = x.s.own[target] != nil; !wanted {
				delete(x.own, target)
			}
		}
		if !wanted {
			ids = append(ids, id)
			delete(x.watched, id)
		}
	}
	x.mu.Unlock()
	for _, id := range ids {
		q := &etcdserverpb.WatchCancelRequest{WatchId: id}
		if err := x.watch.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CancelRequest{CancelRequest: q}}); err != nil {
			return err
		}
	}
	return nil
}

// read reads all that is under a prefix, and follows it from there.
func (x *session) read(m *mirror) error {
	kvs, ignored, revision, err := x.list(m.name)
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mirrors[m.name] != m {
		return nil
	}
	if err != nil {
		if isRefusal(err) {
			m.err = fmt.Errorf("reading %s: %w", m.key(), err)
			s.tell()
		}
		return err
	}
	var until time.Time
	if m.loaded && !x.was[m] { // the connection was lost
		until = time.Now().Add(s.opts.Grace)
		s.showIn(s.opts.Grace)
	}
	x.was[m] = true
	m.replace(kvs, ignored, until)
	m.loaded, m.err = true, nil
	m.show()
	s.tell()
	return x.start(m, revision+1, m.key(), m.end())
}

// list reads all that is under a prefix as it was at one revision, in pages, within the bounds.
func (x *session) list(n name) (kvs []*mvccpb.KeyValue, ignored int, revision int64, err error) {
	limit, size, from := int64(pageRecords), 0, n.key()
	for compacted := 0; ; {
		page, err := x.page(from, n.end(), limit, revision)
		switch {
		case errors.Is(err, rpctypes.ErrCompacted) && compacted < maxCompacted: // begin again
			compacted++
			kvs, size, from, revision = nil, 0, n.key(), 0
			continue
		case status.Code(err) == codes.ResourceExhausted && limit > 1 && !errors.Is(err, rpctypes.ErrNoSpace):
			limit = max(limit/4, 1) // it is more than maxMessage
			continue
		case err != nil:
			return nil, 0, 0, err
		}
		if revision == 0 {
			revision, ignored = page.Header.GetRevision(), int(max(page.Count, 0))
		}
		for _, kv := range page.Kvs {
			if string(kv.Key) < from || string(kv.Key) >= n.end() {
				return nil, 0, 0, fmt.Errorf("%w: key %.200q among those from %.200q", errStrange, kv.Key, from)
			}
			if len(kv.Value) <= discovery.MaxRecordBytes {
				kvs, size = append(kvs, kv), size+len(kv.Value)
				ignored--
			}
		}
		if !page.More || len(page.Kvs) == 0 || len(kvs) >= MaxRecords || size > MaxBytes {
			return kvs, ignored, revision, nil
		}
		last := string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		if last <= from {
			return nil, 0, 0, fmt.Errorf("%w: keys %.200q again", errStrange, last)
		}
		from = last
	}
}

func (x *session) page(from, end string, limit, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := x.call()
	defer cancel()
	return x.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
}
