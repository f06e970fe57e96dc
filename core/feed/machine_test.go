package feed

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine did into the scripts under testdata")

// recorder writes down what the machine orders. A payload says what applying it does: "store", "removal", "panic".
type recorder struct {
	lines  []string
	counts [counters]int
	busy   bool // requests have to wait for their turn
}

func (r *recorder) say(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recorder) apply(b *batch) damage {
	if !b.queried {
		b.content = b.print
	}
	if b.queried && b.events == nil {
		r.say("apply event %d", b.seq)
		return intact
	}
	if b.queried {
		r.say("apply the state after %d", b.seq)
		return intact
	}
	if len(b.payload) == 0 {
		r.say("apply %d", b.seq)
		return intact
	}
	r.say("apply %d with bad %s", b.seq, b.payload)
	switch string(b.payload) {
	case "store":
		return lostStore
	case "removal":
		r.say("reset")
		return dropped
	}
	r.say("reset")
	return panicked
}

func (r *recorder) ask(_ int, start uint64, whole bool) bool {
	what := strconv.FormatUint(start, 10)
	if whole {
		what = "for everything"
	}
	if r.busy {
		what += ", waiting"
	}
	r.say("ask %s", what)
	return r.busy
}
func (r *recorder) reset()          { r.say("reset") }
func (r *recorder) renew()          { r.say("renew") }
func (r *recorder) commit()         { r.say("commit") }
func (r *recorder) cancel()         { r.say("cancel") }
func (r *recorder) count(c counter) { r.counts[c]++ }

// TestScripts drives the machine through the scripts. A line is an input; the indented lines below it are what the
// machine ordered and, after "--", the state it is in. See testdata/README.md.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := play(t, string(text))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			require.Equal(t, string(text), got)
		})
	}
}

func play(t *testing.T, text string) string {
	s := settings{replay: true, probe: 10 * time.Second, timeout: 5 * time.Second, backoffMin: time.Second, backoffMax: 4 * time.Second,
		retries: 2, maxCount: 4, maxBytes: 1 << 20, jitter: func() float64 { return 0 }}
	r := &recorder{}
	m := newMachine(s, r)
	var out strings.Builder
	var now time.Duration
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		r.lines = nil
		now = step(t, m, r, now, strings.Fields(line))
		checkMachine(t, m)
		for _, l := range r.lines {
			fmt.Fprintf(&out, "\t%s\n", l)
		}
		state, reason := m.state()
		fmt.Fprintf(&out, "\t-- %s\n", strings.TrimSpace(fmt.Sprintf("%s %s", state, reason)))
	}
	return out.String()
}

// step gives the machine one input: "up", "down", "live N..", "replay N..", "end", "fail", "wait" (until something is
// due), "restore" (until everything is asked for again), "pass" (3 s), "no-replay", "resume N.." (where another feed stopped), "busy", "turn"; of a local indexer "query", "events N..", "dump N",
// "nothing", "too-new N". A number may carry a print, N:P, and what is bad about it, N!store, N!removal, N!panic.
func step(t *testing.T, m *machine, r *recorder, now time.Duration, words []string) time.Duration {
	switch words[0] {
	case "no-replay":
		m.replay = false
	case "query":
		m.query = true
	case "busy":
		r.busy = true
	case "turn":
		m.started(now, m.id)
	case "events":
		id := m.id
		for i, w := range words[1:] {
			w, clears := strings.CutSuffix(w, "!clear")
			b := parseBatch(t, w)
			m.replayed(now, id, batch{seq: b.seq, content: b.print, queried: true, clears: clears && i == 0})
		}
		m.replayEnd(now, id)
	case "dump":
		m.answerer(now, m.id, 1, true)
		m.dumped(now, m.id, batch{seq: parseBatch(t, words[1]).seq, queried: true, events: make([]event.Event, 1)})
	case "nothing":
		m.answerer(now, m.id, 1, true)
		m.dumped(now, m.id, batch{queried: true})
	case "lend":
		require.True(t, m.lend())
	case "stranger":
		require.False(t, m.answerer(now, m.id, 2, false))
	case "too-new":
		m.tooNew(now, m.id, parseBatch(t, words[1]).seq)
	case "resume":
		var at Position
		for _, w := range words[1:] {
			b := parseBatch(t, w)
			at.Last, at.Prints = b.seq, append(at.Prints, b.print)
		}
		m.resume(&at)
	case "up":
		m.up(now)
	case "down":
		m.down("peer closed")
	case "live", "replay":
		for _, w := range words[1:] {
			b := parseBatch(t, w)
			if words[0] == "live" {
				m.live(now, b)
			} else {
				m.replayed(now, m.id, b)
			}
		}
	case "end":
		m.replayEnd(now, m.id)
	case "fail":
		m.replayFailed(now, m.id, "refused")
	case "wait":
		due, ok := m.deadline()
		require.True(t, ok, "nothing is due")
		now = max(now, due)
		m.tick(now)
	case "restore":
		require.NotZero(t, m.restoreAt, "no restore is planned")
		now = max(now, m.restoreAt)
		m.tick(now)
	case "pass":
		now += 3 * time.Second
		if due, ok := m.deadline(); ok && due <= now {
			m.tick(now)
		}
	default:
		require.Fail(t, "unknown input", words[0])
	}
	return now
}

func parseBatch(t *testing.T, w string) batch {
	w, bad, _ := strings.Cut(w, "!")
	num, mark, _ := strings.Cut(w, ":")
	seq, err := strconv.ParseUint(num, 10, 64)
	require.NoError(t, err)
	print := seq + 1000
	if mark != "" {
		p, err := strconv.ParseUint(mark, 10, 64)
		require.NoError(t, err)
		print = p
	}
	b := batch{seq: seq, print: print}
	if bad != "" {
		b.payload = []byte(bad)
	}
	return b
}

// checkMachine checks the invariants by number; I1 is the fuzz test's.
func checkMachine(t testing.TB, m *machine) {
	if m.asked && m.phase == following {
		t.Fatal("I2: a request without a phase")
	}
	if !m.buffer.empty() && !m.phase.hard() {
		t.Fatal("I3: batches wait for nothing")
	}
	size := 0
	for i, b := range m.buffer.waiting {
		size += b.size()
		if m.hasLast && b.seq <= m.last && m.phase != verifying {
			t.Fatal("I3: an applied batch waits")
		}
		if i > 0 && m.buffer.waiting[i-1].seq >= b.seq {
			t.Fatal("I3: waiting batches are out of order")
		}
	}
	if size != m.buffer.bytes || len(m.buffer.waiting) > m.maxCount || m.buffer.bytes > m.maxBytes && len(m.buffer.waiting) > 1 {
		t.Fatal("I3: bounds of the buffer")
	}
	if m.renewing && !m.phase.hard() {
		t.Fatal("I5: a new view that nobody will see")
	}
	if !m.connected && (m.phase != following || m.asked || !m.buffer.empty()) {
		t.Fatal("I4: busy without a connection")
	}
}
