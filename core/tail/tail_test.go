package tail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/tail"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// nextLines gives the lines that came, waiting for the first.
func nextLines(r *tail.Reader, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var b stream.Batch
	err := r.Next(ctx, &b, 100)
	return b.Data, err
}

// read gathers lines until done.
func read(t *testing.T, r *tail.Reader, rows []map[string]any, done func([]map[string]any) bool) []map[string]any {
	t.Helper()
	for give := time.Now().Add(20 * time.Second); !done(rows); {
		require.True(t, time.Now().Before(give), "%d lines", len(rows))
		lines, err := nextLines(r, 50*time.Millisecond)
		if errors.Is(err, stream.ErrEmpty) {
			continue
		}
		require.NoError(t, err)
		for _, line := range bytes.Split(bytes.TrimSpace(lines), []byte("\n")) {
			var row map[string]any
			require.NoError(t, json.Unmarshal(line, &row), "%s", line)
			rows = append(rows, row)
		}
	}
	return rows
}

func TestReplayThenLiveWithoutRepetition(t *testing.T) {
	p, err := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", BufferSteps: 100})
	require.NoError(t, err)
	defer p.Close()
	next := 0
	store := func() {
		_, err := p.Publish(publish.Stored(nil, []block.EngineHash{block.EngineHash(next)}, []uint32{1, 2}, 2))
		require.NoError(t, err)
		next++
	}
	for range 20 {
		store()
	}
	r, err := tail.Open(p.Addr(), p.ReplayAddr(), "")
	require.NoError(t, err)
	defer r.Close()
	rows := read(t, r, nil, func(rows []map[string]any) bool { return len(rows) >= 20 })
	rows = read(t, r, rows, func(rows []map[string]any) bool {
		if len(rows) == 20 {
			store() // nobody tells when the subscription has come into effect
		}
		return len(rows) > 20
	})
	for range 20 {
		store()
	}
	rows = read(t, r, rows, func(rows []map[string]any) bool { return rows[len(rows)-1]["seq"] == float64(next-1) })
	first := int(rows[20]["seq"].(float64)) - 20
	require.GreaterOrEqual(t, first, 0)
	for i, row := range rows {
		if i >= 20 {
			i += first
		}
		require.EqualValues(t, i, row["seq"])
		require.Equal(t, "stored", row["type"])
	}
	r.Close()
	_, err = nextLines(r, time.Millisecond)
	require.ErrorIs(t, err, stream.ErrClosed)
}

func TestTheStateOfTheConnectionIsTold(t *testing.T) {
	addr := "tcp://" + servertest.FreeAddress(t)
	r, err := tail.Open(addr, "", "")
	require.NoError(t, err)
	defer r.Close()
	until := func(states ...string) (now string) {
		require.Eventually(t, func() bool {
			_, err := nextLines(r, time.Millisecond)
			require.ErrorIs(t, err, stream.ErrEmpty)
			for _, now = range states {
				if strings.HasPrefix(err.Error(), stream.ErrEmpty.Error()+": "+now) {
					return true
				}
			}
			return false
		}, 20*time.Second, time.Millisecond, states)
		return now
	}
	const lost, cannot = "connection lost: ", "cannot connect: "
	until(cannot)
	for now := ""; now != lost; { // which it is until the next attempt: who looks late does not see it
		p, err := publish.New(publish.Config{Endpoint: addr, BufferSteps: 1})
		require.NoError(t, err)
		until("connected")
		require.NoError(t, p.Close())
		now = until(lost, cannot)
	}
	until(cannot)
}

func TestSilenceAndBadEndpoints(t *testing.T) {
	r, err := tail.Open("tcp://127.0.0.1:9", "", "")
	require.NoError(t, err, "a port that does not answer is followed all the same")
	defer r.Close()
	_, err = nextLines(r, time.Millisecond)
	require.ErrorIs(t, err, stream.ErrEmpty)
	for _, bad := range []string{"", "localhost:5557", "tcp://*:5557", "tcp://h:0", "http://h:1"} {
		_, err := tail.Open(bad, "", "")
		require.ErrorIs(t, err, zmq.ErrEndpoint, bad)
		_, err = tail.Open("tcp://127.0.0.1:9", bad, "")
		if bad != "" {
			require.ErrorIs(t, err, zmq.ErrEndpoint, bad)
		}
	}
}
