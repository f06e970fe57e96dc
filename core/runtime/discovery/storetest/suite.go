// Package storetest is what every discovery.Store must pass.
package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Await waits until a view shows exactly the records, given as path and value by turns.
func Await(t testing.TB, v *discovery.View, records ...string) {
	want := map[string][]byte{}
	for i := 0; i < len(records); i += 2 {
		want[records[i]] = []byte(records[i+1])
	}
	deadline := time.After(30 * time.Second)
	for {
		got := v.Entries()
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		select {
		case <-v.Changed():
		case <-deadline:
			require.Equal(t, want, got, "the view does not become what it should")
		}
	}
}

// Run tests stores that share their records: open gives the next one of a deployment, which may be the one before.
func Run(t *testing.T, open func() discovery.Store) {
	a := open()
	b := open()
	require.NotZero(t, a.ID())
	k := discovery.Key{Bucket: discovery.Instances, Path: "ns/comp-1/ep_2/ff"}
	view, err := b.Watch(k.Bucket, "ns/comp-1/ep_2/")
	require.NoError(t, err)
	defer view.Close()
	Await(t, view)

	require.ErrorIs(t, a.Replace(k, []byte("x")), discovery.ErrNotFound)
	require.ErrorIs(t, a.Delete(k), discovery.ErrNotFound)
	require.NoError(t, a.Create(k, []byte("one")))
	Await(t, view, k.Path, "one")
	require.ErrorIs(t, a.Create(k, []byte("two")), discovery.ErrExists)
	require.NoError(t, a.Replace(k, []byte("two")))
	Await(t, view, k.Path, "two")

	// What is under another prefix does not show, nor what is in another bucket.
	require.NoError(t, a.Create(discovery.Key{Bucket: k.Bucket, Path: "ns/comp-1/ep_22/1"}, []byte("x")))
	require.NoError(t, a.Create(discovery.Key{Bucket: discovery.Models, Path: "ns/comp-1/ep_2/1"}, []byte("x")))
	require.NoError(t, a.Create(discovery.Key{Bucket: k.Bucket, Path: "ns/comp-1/ep_2/1"}, []byte("x")))
	Await(t, view, k.Path, "two", "ns/comp-1/ep_2/1", "x")
	all, err := b.Watch(k.Bucket, "")
	require.NoError(t, err)
	Await(t, all, k.Path, "two", "ns/comp-1/ep_2/1", "x", "ns/comp-1/ep_22/1", "x")
	all.Close()
	all.Close()
	require.Empty(t, all.Entries())

	require.NoError(t, a.Delete(k))
	Await(t, view, "ns/comp-1/ep_2/1", "x")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	Await(t, view)
	for _, err := range []error{a.Create(k, nil), a.Delete(k)} {
		require.Error(t, err)
	}
	_, err = a.Watch(k.Bucket, "")
	require.ErrorIs(t, err, discovery.ErrClosed)
	require.NoError(t, b.Close())
}
