//go:build interop

package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/dynamotest"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

const path = "wire.back-end.generate"

func client(t *testing.T, r *runtime.Runtime) *runtime.Client {
	e, err := r.Endpoint(path)
	require.NoError(t, err)
	c, err := e.Client()
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func request(t testing.TB, id, body string) *runtime.Request {
	b, err := wire.FromJSON(nil, []byte(body))
	require.NoError(t, err)
	return &runtime.Request{ID: id, Body: b}
}

// drain reads a stream to its end.
func drain(s *runtime.Stream) (items []string, err error) {
	for {
		it, err := s.Recv()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return items, err
		}
		j, err := wire.ToJSON(nil, it.Data)
		if err != nil {
			return items, err
		}
		items = append(items, string(j))
	}
}

func context60(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), dynamotest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// Our client calls Dynamo's workers: complete, failed before and in mid-stream, stopped, killed, many at a time, gone.
func TestCallsToDynamo(t *testing.T) { dynamotest.Each(t, callsToDynamo) }

func callsToDynamo(t *testing.T, release string, d *dynamotest.Deployment) {
	w := dynamotest.Start(t, release, d, "worker.py", path)
	id := w.Ready()
	ctx := context60(t)
	c := client(t, dynamotest.Join(t, d))
	ids, err := c.WaitForInstances(ctx)
	require.NoError(t, err)
	require.Equal(t, []uint64{id}, ids)

	s, err := c.Direct(ctx, id, request(t, "first", `{"model":"ok","token_ids":[1,2,3]}`))
	require.NoError(t, err)
	items, err := drain(s)
	require.NoError(t, err)
	require.Len(t, items, 3)
	require.JSONEq(t, fmt.Sprintf(`{"token_ids":[1002],"finish_reason":"length","worker":%d}`, id), items[2])
	var seen struct{ Body json.RawMessage }
	w.Await("request", `"first"`, &seen)
	require.JSONEq(t, `{"model":"ok","token_ids":[1,2,3]}`, string(seen.Body))

	for model, want := range map[string]string{"err0": "ValueError: boom before first item", "errmid": "RuntimeError: boom after first item"} {
		s, err := c.Direct(ctx, id, request(t, model, `{"model":"`+model+`","token_ids":[]}`))
		require.NoError(t, err)
		items, err := drain(s)
		require.Len(t, items, map[string]int{"err0": 0, "errmid": 1}[model])
		var told *plane.WorkerError
		require.ErrorAs(t, err, &told)
		require.Contains(t, told.Message, want)
		require.Equal(t, model == "err0", told.InvalidRequest())
		require.Empty(t, c.Inhibited())
	}

	for name, end := range map[string]func(*runtime.Stream){"stop": (*runtime.Stream).Stop, "kill": (*runtime.Stream).Kill, "close": (*runtime.Stream).Close} {
		s, err := c.Direct(ctx, id, request(t, name, `{"model":"slow","token_ids":[]}`))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		end(s)
		_, err = drain(s)
		require.ErrorIs(t, err, plane.ErrCancelled, name)
		var line struct{ Killed bool }
		w.Await("killed", "", &line)
		require.Equal(t, name != "stop", line.Killed, name)
	}

	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			s, err := c.RoundRobin(ctx, request(t, fmt.Sprint(i), `{"model":"tokens-50","token_ids":[]}`))
			if assert.NoError(t, err) {
				items, err := drain(s)
				assert.NoError(t, err)
				assert.Len(t, items, 50)
			}
		})
	}
	calls.Wait()

	r := dynamotest.Join(t, d)
	gone := c.Instances()[0]
	unreached := plane.ErrCannotConnect
	if d.Request == "nats" {
		gone.NATS += "x"
		unreached = plane.ErrUnavailable
	} else {
		gone.TCP += "x"
	}
	_, err = r.Call(ctx, &gone, request(t, "lost", "{}"))
	require.ErrorIs(t, err, plane.ErrUnavailable)

	// A worker that dies breaks its streams at once, and leaves the instances within its lease.
	s, err = c.Direct(ctx, id, request(t, "last", `{"model":"slow","token_ids":[]}`))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	w.Signal(syscall.SIGKILL)
	killed := time.Now()
	_, err = drain(s)
	require.ErrorIs(t, err, plane.ErrDisconnected)
	_, err = c.Direct(ctx, id, request(t, "late", `{}`))
	require.ErrorIs(t, err, unreached)
	if len(c.IDs()) > 0 { // it may take a plane until then to be sure that nobody listens
		require.Contains(t, c.Inhibited(), id)
	}
	for len(c.IDs()) > 0 {
		select {
		case <-c.Changed():
		case <-ctx.Done():
			require.Fail(t, "the dead worker stays")
		}
	}
	require.Less(t, time.Since(killed), 2*file.DefaultTTL)
	_, err = c.Random(ctx, request(t, "nobody", `{}`))
	require.True(t, errors.Is(err, plane.ErrNoInstances))
}
