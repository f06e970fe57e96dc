package feed

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// lines is a log kept in memory.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) with(t *testing.T, message string) (rows []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range bytes.Split(bytes.TrimSpace(l.text.Bytes()), []byte("\n")) {
		var row map[string]any
		require.NoError(t, json.Unmarshal(line, &row), "%s", line)
		if bytes.HasPrefix([]byte(row["msg"].(string)), []byte(message)) {
			rows = append(rows, row)
		}
	}
	return rows
}

// TestTheLogTellsWhatHappensToARank: its states with the reasons, once that events of another block size are left out
// (https://github.com/ai-dynamo/dynamo/issues/1232), and a fault of our own.
func TestTheLogTellsWhatHappensToARank(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var log lines
	v := &view{}
	f := follow(t, e, v, func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	eventually(t, "subscribed", subscribed(e))
	other := func() {
		e.publish(encode(t, wire.Event{Tag: "BlockStored", Kind: event.Stored,
			BlockHashes: []block.EngineHash{7}, TokenIDs: []uint32{1, 2, 3}, BlockSize: 3, Medium: "GPU"}))
	}
	eventually(t, "events of another block size", func() bool { other(); return f.Status().Counters["wrong_block_size"] >= 5 })
	left := log.with(t, "events are left out")
	require.Len(t, left, 1, "one line a rank")
	require.Equal(t, "WARN", left[0]["level"])
	require.EqualValues(t, f.cfg.Rank.ID, left[0]["worker_id"])
	require.Contains(t, left[0]["causes"], "wrong_block_size")

	v.mu.Lock()
	v.fault = func(*event.Event) error { panic(errors.New("a fault")) }
	v.mu.Unlock()
	eventually(t, "a panic", func() bool { e.publish(store(t, 1)); return f.Status().Counters["panics"] > 0 })
	e.close()
	eventually(t, "disconnected", f.is(Disconnected))
	eventually(t, "its line", func() bool { return len(log.with(t, "rank is disconnected")) > 0 })
	require.Contains(t, log.with(t, "fault of the library")[0]["cause"], "a fault")
	states := log.with(t, "rank is ")
	require.GreaterOrEqual(t, len(states), 2)
	for i, row := range states {
		if i > 0 {
			require.Equal(t, "rank is "+row["was"].(string), states[i-1]["msg"])
		}
	}
	last := states[len(states)-1]
	require.Equal(t, "WARN", last["level"])
	require.NotEmpty(t, last["reason"])
	require.Equal(t, f.cfg.Endpoint, last["kv_events"])
}

// TestTheLogNamesWhoDoesNotAnswer: a port that is not the replay socket's is to be found in the line that tells of it.
func TestTheLogNamesWhoDoesNotAnswer(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	for name, change := range map[string]func(*Config){
		"replay": func(c *Config) { c.Replay = "tcp://127.0.0.1:1" },
		"query":  func(c *Config) { c.Query = "tcp://127.0.0.1:1" },
	} {
		var log lines
		f := follow(t, e, &view{}, func(c *Config) {
			change(c)
			c.Log, c.Retries, c.ReplayTimeout = slog.New(slog.NewJSONHandler(&log, nil)), -1, 50*time.Millisecond
		})
		eventually(t, "partial", f.is(Partial))
		eventually(t, "its line", func() bool { return len(log.with(t, "rank is partial")) > 0 })
		told := log.with(t, "rank is partial")[0]
		require.Contains(t, told["reason"], "replay_unanswered")
		require.Equal(t, "tcp://127.0.0.1:1", told[name])
	}
}
