package engine_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
)

// call sends a request, and gives status and body.
func call(e *engine.Engine, c *engine.Call, path, body string) (int, string, error) {
	defer c.End()
	head := e.Own(e.Head(nil, "POST", path), []byte("X-Mine: yes\r\nAuthorization: mine\r\nX-Data-Parallel-Rank: 9\r\n"))
	if err := c.Send(e, e.Finish(head, len(body), 3), []byte(body)); err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(c)
	return c.Status(), string(text), err
}

func TestCallHandsARequestOnAsItIs(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Theirs", "too")
		w.Header().Set("Connection", "X-Dropped")
		w.Header().Set("X-Dropped", "x")
		w.WriteHeader(418)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s %s", r.Method, r.RequestURI, r.Header.Get("X-Mine"), r.Header.Get("Authorization"), r.Header.Get("X-Data-Parallel-Rank"), body)
	})
	e := open(t, s.URL+"/at", func(c *engine.Config) { c.Header, c.DPSize = http.Header{"Authorization": {"Bearer x"}}, 4 })
	var c engine.Call
	for range 3 {
		status, body, err := call(e, &c, "/v1/x?q=1", "hello")
		require.NoError(t, err)
		require.Equal(t, 418, status)
		require.Equal(t, "POST /at/v1/x?q=1 yes Bearer x 3 hello", body)
	}
	require.NoError(t, c.Send(e, e.Finish(e.Head(nil, "GET", "/"), 0, 0), nil))
	require.Equal(t, "too", string(c.Header("X-Theirs")))
	names := map[string]bool{}
	c.Headers(func(name, _ []byte) { names[string(name)] = true })
	require.True(t, names["X-Theirs"])
	require.False(t, names["Connection"] || names["X-Dropped"] || names["Content-Length"])
	require.Equal(t, 1, e.Status().Active)
	c.End()
	require.Zero(t, e.Status().Active)
	require.EqualValues(t, 4, e.Status().Requests)
	require.Zero(t, e.Status().Faults)
}

// faulty is an engine that fails as the path says.
func faulty(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/500":
		w.WriteHeader(500)
	case "/cut":
		panic(http.ErrAbortHandler)
	case "/wait":
		<-r.Context().Done()
	case "/half":
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

func TestCallCountsFaults(t *testing.T) {
	s := serve(t, faulty)
	e := open(t, s.URL, func(c *engine.Config) { c.Health.Failures = 100 })
	impatient := open(t, s.URL, func(c *engine.Config) { c.Health.Failures, c.Limits.Between = 100, time.Second/5 })
	var c engine.Call
	status, _, err := call(e, &c, "/500", "")
	require.NoError(t, err)
	require.Equal(t, 500, status)
	_, _, err = call(e, &c, "/cut", "")
	require.ErrorIs(t, err, engine.ErrBroken)
	require.EqualValues(t, 2, e.Status().Faults)
	_, body, err := call(impatient, &c, "/half", "")
	require.ErrorIs(t, err, engine.ErrTimeout)
	require.Equal(t, "some", body)
	require.EqualValues(t, 1, impatient.Status().Faults)

	go func() {
		for e.Status().Active == 0 {
			time.Sleep(time.Millisecond)
		}
		c.Cancel()
	}()
	_, _, err = call(e, &c, "/wait", "")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 2, e.Status().Faults, "what was cancelled is none")
	c.Within(time.Second / 10)
	_, _, err = call(e, &c, "/wait", "")
	require.ErrorIs(t, err, engine.ErrTimeout)
	_, _, err = call(e, &c, "/", "")
	require.NoError(t, err, "it can be used again")

	go func() {
		for e.Status().Active == 0 {
			time.Sleep(time.Millisecond)
		}
		e.Close()
	}()
	_, _, err = call(e, &c, "/wait", "")
	require.ErrorIs(t, err, engine.ErrClosed)
	_, _, err = call(e, &c, "/", "")
	require.ErrorIs(t, err, engine.ErrClosed)
}

func TestCallToNobodyEjects(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	e := open(t, s.URL, nil)
	s.Close()
	var c engine.Call
	_, _, err := call(e, &c, "/", "")
	require.Error(t, err)
	require.True(t, engine.Elsewhere(err), err)
	require.Eventually(t, func() bool { _, _, _ = call(e, &c, "/", ""); return e.State() == engine.Ejected }, 10*time.Second, time.Millisecond)
}

// TestAsideCountsNeitherWay: what becomes of a call that is not what the engine is for says nothing of how that serves.
func TestAsideCountsNeitherWay(t *testing.T) {
	s := serve(t, faulty)
	e := open(t, s.URL, func(c *engine.Config) { c.Health.Failures, c.Health.Interval = 3, time.Hour })
	aside := engine.Call{Aside: true}
	for range 3 {
		for _, path := range []string{"/500", "/cut", "/wait"} {
			aside.Within(time.Second / 50)
			_, _, _ = call(e, &aside, path, "")
		}
	}
	require.Equal(t, engine.Healthy, e.State())
	require.Zero(t, e.Status().Faults)

	var c engine.Call
	for range 3 { // a success in between that does not count ends no row of faults
		require.Equal(t, engine.Healthy, e.State())
		_, _, err := call(e, &c, "/500", "")
		require.NoError(t, err)
		_, _, err = call(e, &aside, "/", "")
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, e.Status().Ejected)
	require.Zero(t, e.Status().Active)
}
