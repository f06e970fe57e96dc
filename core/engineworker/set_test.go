package engineworker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/mocker"
)

func newSet(t *testing.T) *engineworker.Set {
	s := engineworker.NewSet(place(t), engineworker.Options{Health: engine.Health{Backoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}})
	t.Cleanup(s.Close)
	return s
}

// shows waits until a set is as a test wants it.
func shows(t *testing.T, s *engineworker.Set, want func(engineworker.State) bool) {
	require.Eventually(t, func() bool { return want(s.State()) }, patience, time.Millisecond, "%v", s.State())
}

func listed(urls ...string) func(engineworker.State) bool {
	return func(st engineworker.State) bool {
		seen := map[string]bool{}
		for _, e := range st.Engines {
			seen[e.URL] = e.Listed
		}
		for _, u := range urls {
			if !seen[u] {
				return false
			}
		}
		return len(seen) == len(urls)
	}
}

func TestAnEngineThatIsAddedAgainWaitsUntilItHasLeft(t *testing.T) {
	s := newSet(t)
	m := mock(t)
	for range 5 {
		id, err := s.Add(spec(m))
		require.NoError(t, err)
		_, err = s.Add(spec(m))
		require.ErrorIs(t, err, fleet.ErrDuplicate)
		require.NoError(t, s.Remove(id, false))
		require.ErrorIs(t, s.Remove(id, false), fleet.ErrNotFound)
		require.ErrorIs(t, s.Drain(id, true), fleet.ErrNotFound)
	}
	id, err := s.Add(spec(m))
	require.NoError(t, err)
	shows(t, s, listed(m.Info().HTTP))
	require.NoError(t, s.Drain(id, true))
	shows(t, s, func(st engineworker.State) bool {
		return st.Engines[0].State == engine.Draining && !st.Engines[0].Listed
	})
	require.NoError(t, s.Drain(id, false))
	shows(t, s, listed(m.Info().HTTP))
	s.Close()
	_, err = s.Add(spec(m))
	require.ErrorIs(t, err, fleet.ErrClosed)
}

func TestTheEnginesOfAFileAreWorkers(t *testing.T) {
	s := newSet(t)
	a, b, c := mock(t), mock(t), mock(t)
	_, err := s.Add(spec(c))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "engines.yaml")
	put := func(text string, all ...*mocker.Mocker) {
		for _, m := range all {
			text += fmt.Sprintf("- {url: %q, kv_events: %q, replay: %q, block_size: 16}\n", m.Info().HTTP, m.Info().Events, m.Info().Replay)
		}
		require.NoError(t, os.WriteFile(path+".new", []byte("engines:\n"+text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	require.Error(t, s.Watch(path))
	put("", a)
	require.NoError(t, s.Watch(path))
	require.NoError(t, s.Watch(path), "the same one again")
	require.ErrorIs(t, s.Watch(path+"x"), fleet.ErrInvalid)
	shows(t, s, listed(a.Info().HTTP, c.Info().HTTP))
	put("", a, b)
	shows(t, s, listed(a.Info().HTTP, b.Info().HTTP, c.Info().HTTP))
	put("- 3\n")
	shows(t, s, func(st engineworker.State) bool { return st.File != nil && st.File.Error != "" && len(st.Engines) == 3 })
	put("", c) // which is there, and not the file's
	shows(t, s, func(st engineworker.State) bool { return st.File.Error != "" && len(st.Engines) == 3 })
	put(fmt.Sprintf("- {url: %q, block_size: 16, kv_events: none}\n", a.Info().HTTP), b)
	shows(t, s, func(st engineworker.State) bool {
		return st.File.Error == "" && listed(a.Info().HTTP, b.Info().HTTP, c.Info().HTTP)(st)
	})
	put("", b)
	shows(t, s, listed(b.Info().HTTP, c.Info().HTTP))
}
