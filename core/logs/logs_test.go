package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

func rows(t *testing.T, s *stream.Stream) []map[string]any {
	t.Helper()
	var b stream.Batch
	if err := s.Take(&b, 1<<20); err != nil {
		require.ErrorIs(t, err, stream.ErrEmpty)
	}
	var all []map[string]any
	for _, line := range b.Items() {
		var row map[string]any
		require.NoError(t, json.Unmarshal(line, &row), "%s", line)
		all = append(all, row)
	}
	return all
}

func TestNothingIsLoggedByDefault(t *testing.T) {
	var l Log
	log := slog.New(&l)
	log.Error("lost")
	require.False(t, log.Enabled(context.Background(), slog.LevelError))
}

func TestALoggerFollowsWhereTheLogGoes(t *testing.T) {
	var l Log
	log := slog.New(&l).With("worker_id", uint64(1<<63+1)).WithGroup("group").With("dp_rank", 3)
	first := l.Stream(slog.LevelInfo)
	defer first.Close()
	log.Debug("too fine")
	log.Info("one", "reason", "text")
	got := rows(t, first)
	require.Len(t, got, 1)
	require.Equal(t, "INFO", got[0]["level"])
	require.Equal(t, "one", got[0]["msg"])
	require.Equal(t, "text", got[0]["reason"])
	require.EqualValues(t, 3, got[0]["dp_rank"])
	require.NotEmpty(t, got[0]["time"])

	second := l.Stream(levelTrace)
	defer second.Close()
	require.ErrorIs(t, first.Take(new(stream.Batch), 1), stream.ErrEnded)
	log.Log(context.Background(), levelTrace, "two")
	got = rows(t, second)
	require.Len(t, got, 1)
	require.Equal(t, "TRACE", got[0]["level"])

	var text bytes.Buffer
	l.To(&text, slog.LevelWarn)
	require.ErrorIs(t, second.Take(new(stream.Batch), 1), stream.ErrEnded)
	log.Info("too fine")
	log.Warn("three")
	require.Regexp(t, `^time=\S+ level=WARN msg=three worker_id=9223372036854775809 dp_rank=3\n$`, text.String())
	l.Off()
	log.Error("lost")
	require.Equal(t, 1, bytes.Count(text.Bytes(), []byte("\n")))
}

func TestLinesThatNobodyReadsAreDroppedAndCounted(t *testing.T) {
	var l Log
	log := slog.New(&l)
	s := l.Stream(slog.LevelInfo)
	defer s.Close()
	for i := range lines + 7 {
		log.Info("line", "n", i)
	}
	require.Len(t, rows(t, s), lines)
	log.Info("after")
	got := rows(t, s)
	require.Len(t, got, 2)
	require.EqualValues(t, 7, got[0]["lines"])
	require.Equal(t, "after", got[1]["msg"])
}

func TestConcurrentUse(t *testing.T) {
	var l Log
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			log := slog.New(&l).With("k", 1)
			for range 200 {
				log.Info("line")
			}
		})
	}
	for range 50 {
		s := l.Stream(slog.LevelInfo)
		rows(t, s)
		l.Off()
		s.Close()
	}
	all.Wait()
}

func TestLevels(t *testing.T) {
	for text, want := range map[string]slog.Level{"error": slog.LevelError, "trace": levelTrace} {
		level, on, err := ParseLevel(text)
		require.NoError(t, err)
		require.True(t, on)
		require.Equal(t, want, level)
	}
	_, on, err := ParseLevel("off")
	require.NoError(t, err)
	require.False(t, on)
	for _, bad := range []string{"", "INFO", "loud"} {
		_, _, err := ParseLevel(bad)
		require.ErrorIs(t, err, ErrLevel)
	}
	for text, want := range map[string]struct {
		level slog.Level
		on    bool
	}{
		"": {0, false}, "nonsense": {0, false}, "off": {0, false}, "Info": {slog.LevelInfo, true},
		"debug,dynamo_runtime::http=trace": {slog.LevelDebug, true}, "a=info, warn": {slog.LevelWarn, true},
	} {
		level, on := ParseDirectives(text)
		require.Equal(t, want.on, on, text)
		require.Equal(t, want.level, level, text)
	}
}

// TestAPanicOfAGoroutineIsTold: recovered, and a line of the log with where it was.
func TestAPanicOfAGoroutineIsTold(t *testing.T) {
	var l Log
	lines := l.Stream(slog.LevelError)
	defer lines.Close()
	Faults(slog.New(&l))
	defer Faults(nil)
	var g owned.Group
	g.Go(func() { panic("a fault") })
	g.Wait()
	got := rows(t, lines)
	require.Len(t, got, 1)
	require.Equal(t, "a fault", got[0]["cause"])
	require.Contains(t, got[0]["stack"], "logs_test.go")
}
