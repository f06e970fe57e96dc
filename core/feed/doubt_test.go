package feed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestMachine() (*machine, *recorder) {
	r := &recorder{}
	return newMachine(settings{replay: true, probe: 10 * time.Second, timeout: 5 * time.Second, backoffMin: 100 * time.Millisecond, backoffMax: 5 * time.Second,
		retries: 2, maxCount: 100, maxBytes: 1 << 20, jitter: func() float64 { return 0 }}, r), r
}

// Each message shows another process: that takes few requests, however many there are, and the last process is followed in the end.
func TestAStreamThatJumpsAsksSeldom(t *testing.T) {
	for _, query := range []bool{false, true} {
		m, r := newTestMachine()
		m.query = query
		now := time.Duration(0)
		m.up(now)
		const n = 2000
		for i := range uint64(n) {
			now += 5 * time.Second / n
			m.live(now, batch{seq: 2*n - i, print: i})
			if due, ok := m.deadline(); ok && due <= now {
				m.tick(now)
			}
			if i%3 == 0 && m.asked && query {
				m.dumped(now, m.id, batch{seq: 3 * n, queried: true})
			}
			checkMachine(t, m)
		}
		require.LessOrEqual(t, r.counts[countRecoveries], 20)
		m.down("")
		now += time.Minute
		m.up(now)
		require.True(t, m.asked, "after a while it is asked at once again")
	}
}

func TestEventsOfAnotherProcessAreNotTaken(t *testing.T) {
	m, r := newTestMachine()
	m.query = true
	m.up(0)
	require.True(t, m.answerer(0, m.id, 7, true))
	m.dumped(0, m.id, batch{seq: 3, queried: true})
	m.live(0, batch{seq: 6})
	require.Equal(t, filling, m.phase)
	old := m.id
	require.False(t, m.answerer(0, m.id, 8, false), "events of process 8 do not continue the state of process 7")
	require.Equal(t, 1, r.counts[countRestarts])
	require.Equal(t, verifying, m.phase)
	require.True(t, m.fromAll)
	require.NotEqual(t, old, m.id)
	require.True(t, m.answerer(0, m.id, 8, true))
}

func TestWaitingBatchesAreBoundedInBytes(t *testing.T) {
	b := buffer{maxCount: 100, maxBytes: 1000}
	require.True(t, b.add(batch{seq: 1, payload: make([]byte, 5000)}), "the first always fits")
	require.False(t, b.add(batch{seq: 2}))
	b.shift()
	for seq := uint64(1); b.add(batch{seq: seq, payload: make([]byte, 100)}); seq++ {
		require.LessOrEqual(t, b.bytes, b.maxBytes)
	}
	require.Len(t, b.waiting, 10)
}
