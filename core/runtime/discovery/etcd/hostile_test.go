package etcd

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// impostor speaks etcd's protocol, and says what no etcd does.
type impostor struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedLeaseServer
	etcdserverpb.UnimplementedWatchServer
	page  func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse
	txn   *etcdserverpb.TxnResponse
	event *etcdserverpb.WatchResponse
	wrote func()       // is told of transactions
	said  atomic.Int64 // what is strange
}

func (h *impostor) LeaseGrant(_ context.Context, q *etcdserverpb.LeaseGrantRequest) (*etcdserverpb.LeaseGrantResponse, error) {
	return &etcdserverpb.LeaseGrantResponse{ID: q.ID, TTL: q.TTL}, nil
}

func (h *impostor) LeaseRevoke(context.Context, *etcdserverpb.LeaseRevokeRequest) (*etcdserverpb.LeaseRevokeResponse, error) {
	return &etcdserverpb.LeaseRevokeResponse{}, nil
}

func (h *impostor) LeaseKeepAlive(s etcdserverpb.Lease_LeaseKeepAliveServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(&etcdserverpb.LeaseKeepAliveResponse{TTL: math.MaxInt64}); err != nil {
			return err
		}
	}
}

func (h *impostor) Range(_ context.Context, q *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if h.page == nil {
		return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}}, nil
	}
	h.said.Add(1)
	return h.page(q), nil
}

func (h *impostor) Txn(context.Context, *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	if h.wrote != nil {
		h.wrote()
	}
	if h.txn == nil {
		return &etcdserverpb.TxnResponse{Succeeded: true}, nil
	}
	h.said.Add(1)
	return h.txn, nil
}

func (h *impostor) Watch(s etcdserverpb.Watch_WatchServer) error {
	for {
		q, err := s.Recv()
		if err != nil {
			return err
		}
		if c := q.GetCreateRequest(); c != nil && h.event != nil {
			for _, id := range []int64{c.WatchId, c.WatchId + 1, -1} {
				r := &etcdserverpb.WatchResponse{WatchId: id, Events: h.event.Events, Canceled: h.event.Canceled, CompactRevision: h.event.CompactRevision}
				if err := s.Send(r); err != nil {
					return err
				}
			}
			kv := &mvccpb.KeyValue{Key: []byte("v1/instances/ns/sound"), CreateRevision: 2, ModRevision: 2}
			if err := s.Send(&etcdserverpb.WatchResponse{WatchId: c.WatchId, Events: []*mvccpb.Event{{Kv: kv}}}); err != nil {
				return err
			}
			h.said.Add(1)
		}
	}
}

// serve serves it until the end of the test, and gives its address.
func (h *impostor) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, h)
	etcdserverpb.RegisterLeaseServer(server, h)
	etcdserverpb.RegisterWatchServer(server, h)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return "http://" + l.Addr().String()
}

// Whatever answers instead of etcd, nothing panics and nothing grows without end: the session ends, or what is strange is passed over.
func TestImpostors(t *testing.T) {
	pair := func(key string, size int) []*mvccpb.KeyValue {
		return []*mvccpb.KeyValue{{Key: []byte(key), Value: make([]byte, size)}}
	}
	asked := 0
	for name, h := range map[string]*impostor{
		"no header": {page: func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			return &etcdserverpb.RangeResponse{Count: -1}
		}},
		"other keys": {page: func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			return &etcdserverpb.RangeResponse{Kvs: pair("zzz", 1), Count: 1}
		}},
		"the same key for ever": {page: func(q *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			return &etcdserverpb.RangeResponse{Kvs: pair("v1/instances/ns/x", 1), More: true, Count: math.MaxInt64}
		}},
		"a page that is too large": {page: func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			return &etcdserverpb.RangeResponse{Kvs: pair("v1/instances/ns/x", maxMessage+1), More: true}
		}},
		"keys without end": {page: func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			r := &etcdserverpb.RangeResponse{More: true}
			for range 10_000 {
				asked++
				r.Kvs = append(r.Kvs, pair(fmt.Sprintf("v1/instances/ns/%012d", asked), 1)...)
			}
			return r
		}},
		"nothing in a transaction": {txn: &etcdserverpb.TxnResponse{}},
		"another answer in a transaction": {txn: &etcdserverpb.TxnResponse{Responses: []*etcdserverpb.ResponseOp{
			{Response: &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: &etcdserverpb.PutResponse{}}},
		}}},
		"events of nothing":        {event: &etcdserverpb.WatchResponse{Events: []*mvccpb.Event{{}, {Type: mvccpb.Event_DELETE}, {Type: 7}}}},
		"events of others' keys":   {event: &etcdserverpb.WatchResponse{Events: []*mvccpb.Event{{Kv: pair("zzz", 1)[0]}}}},
		"an end for no reason":     {event: &etcdserverpb.WatchResponse{Canceled: true}},
		"compacted time and again": {event: &etcdserverpb.WatchResponse{Canceled: true, CompactRevision: math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			faults := owned.Faults()
			s := open(t, Options{Endpoints: []string{h.serve(t)}, Background: true})
			view, err := s.Watch("v1/instances", "ns/")
			require.NoError(t, err)
			_ = s.Create(discovery.Key{Bucket: "v1/instances", Path: "ns/own"}, []byte("x")) // it may be refused
			await(t, "it was heard, or heard often enough", func() bool {
				connected, _ := s.Reach()
				sound := h.event == nil || view.Entries()["ns/sound"] != nil
				return h.said.Load() > 2 || h.said.Load() > 0 && connected && sound
			})
			require.LessOrEqual(t, len(view.Entries()), MaxRecords)
			require.NoError(t, s.Close())
			require.Equal(t, faults, owned.Faults(), "something panicked")
		})
	}
}

// What is followed from a revision that was compacted meanwhile is looked at again: what others have, and what this process wants stored.
func TestCompactedBeforeItIsFollowed(t *testing.T) {
	var reads, writes atomic.Int64
	h := &impostor{event: &etcdserverpb.WatchResponse{Canceled: true, CompactRevision: 7}}
	h.page = func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
		kvs := []*mvccpb.KeyValue{{Key: fmt.Appendf(nil, "v1/instances/ns/%d", reads.Add(1)), Value: []byte("x")}}
		return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}, Kvs: kvs, Count: 1}
	}
	h.wrote = func() { writes.Add(1) }
	s := open(t, Options{Endpoints: []string{h.serve(t)}, Background: true})
	view, err := s.Watch("v1/instances", "ns/")
	require.NoError(t, err)
	require.NoError(t, s.Create(discovery.Key{Bucket: "v1/other", Path: "own"}, []byte("x")))
	await(t, "what changed before is seen, what may be gone is written", func() bool {
		return view.Entries()["ns/1"] == nil && reads.Load() > 2 && len(view.Entries()) > 0 && writes.Load() > 2
	})
	require.EqualValues(t, 1, s.Status().Sessions)
}
