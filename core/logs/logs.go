// Package logs is where the library's log goes: nowhere, until somebody says where to.
//
// The library is a guest in other people's processes, so nothing is printed by default, and what reads a log never runs on a
// thread of the library: lines wait in a stream, and when nobody reads them they are dropped and counted, not waited for.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

// ErrLevel: a text is no level.
var ErrLevel = errors.New("bad log level")

// levelTrace is below slog's own levels, as Dynamo has it.
const levelTrace = slog.LevelDebug - 4

// lines is how many lines wait for the reader of a stream.
const lines = 1024

var levels = map[string]slog.Level{
	"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug, "trace": levelTrace,
}

// ParseLevel reads "error", "warn", "info", "debug", "trace", or "off". Errors: ErrLevel.
func ParseLevel(text string) (level slog.Level, on bool, err error) {
	if text == "off" {
		return 0, false, nil
	}
	level, on = levels[text]
	if !on {
		return 0, false, fmt.Errorf("%w: %.64q, expected off, error, warn, info, debug or trace", ErrLevel, text)
	}
	return level, true, nil
}

// ParseDirectives reads what DYN_LOG says: of a list such as "info,some::module=debug" the level that is for everything. What
// cannot be read is as if it were not there.
func ParseDirectives(text string) (level slog.Level, on bool) {
	for _, directive := range strings.Split(text, ",") {
		if l, known, err := ParseLevel(strings.ToLower(strings.TrimSpace(directive))); err == nil {
			level, on = l, known
		}
	}
	return level, on
}

// Faults says which logger is told of panics of the library's goroutines, which are recovered; nil: slog's default one.
func Faults(log *slog.Logger) { owned.Tell(log) }

// ReportFault counts a panic that was recovered, as those of goroutines are, and tells of it.
func ReportFault(cause any) { owned.Report(cause) }

// A Log is a slog.Handler whose level and destination change while loggers use it. The zero value drops everything.
type Log struct{ target atomic.Pointer[target] }

type target struct {
	slog.Handler
	lines *stream.Stream // nil: text to a writer
}

// Off drops everything from now on. A stream ends after what waits in it.
func (l *Log) Off() { l.set(nil) }

// To writes lines of text, level and above.
func (l *Log) To(w io.Writer, level slog.Level) {
	l.set(&target{Handler: slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: named})})
}

// Stream gives a stream of lines, level and above, each a JSON object with time, level, msg and more, without a newline. The
// caller closes it; until then, or until the log goes elsewhere, lines go there.
func (l *Log) Stream(level slog.Level) *stream.Stream {
	s := stream.New(lines)
	l.set(&target{slog.NewJSONHandler(&lineWriter{stream: s}, &slog.HandlerOptions{Level: level, ReplaceAttr: named}), s})
	return s
}

func (l *Log) set(t *target) {
	if old := l.target.Swap(t); old != nil && old.lines != nil {
		old.lines.End(nil)
	}
}

// named gives the level its name, that of trace included.
func named(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey && level <= levelTrace {
		a.Value = slog.StringValue("TRACE")
	}
	return a
}

// Enabled implements slog.Handler.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	t := l.target.Load()
	return t != nil && t.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	if t := l.target.Load(); t != nil && t.Enabled(ctx, r.Level) {
		return t.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler { return &derived{l, attrs} }

// WithGroup implements slog.Handler; lines have no groups.
func (l *Log) WithGroup(string) slog.Handler { return l }

// derived is a Log with attributes, wherever it goes by then.
type derived struct {
	*Log
	attrs []slog.Attr
}

func (d *derived) Handle(ctx context.Context, r slog.Record) error {
	all := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	all.AddAttrs(d.attrs...)
	r.Attrs(func(a slog.Attr) bool { all.AddAttrs(a); return true })
	return d.Log.Handle(ctx, all)
}

func (d *derived) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &derived{d.Log, slices.Concat(d.attrs, attrs)}
}

func (d *derived) WithGroup(string) slog.Handler { return d }

// lineWriter puts lines into a stream. When it is full they are dropped, and the next one that finds room comes after one that
// says how many.
type lineWriter struct {
	stream *stream.Stream

	mu      sync.Mutex
	dropped uint64
}

// Write is given a line a call.
func (w *lineWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropped > 0 && w.stream.Offer(fmt.Appendf(nil, `{"level":"WARN","msg":"log lines were dropped: nobody read them","lines":%d}`, w.dropped)) {
		w.dropped = 0
	}
	if w.dropped > 0 || !w.stream.Offer([]byte(strings.TrimSuffix(string(line), "\n"))) {
		w.dropped++
	}
	return len(line), nil
}
