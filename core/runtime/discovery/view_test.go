package discovery

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func records(pairs ...string) map[string][]byte {
	m := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = []byte(pairs[i+1])
	}
	return m
}

func taken(v *View) map[string]string {
	got := map[string]string{}
	v.Take(func(path string, record []byte) {
		if got[path] = "gone"; record != nil {
			got[path] = "=" + string(record)
		}
	})
	return got
}

// What changed is given once, however it was shown; what did not is given no more.
func TestAViewGivesWhatChanged(t *testing.T) {
	v := NewView("a/", func(*View) {})
	told := func() bool {
		select {
		case <-v.Changed():
			return true
		default:
			return false
		}
	}
	v.Update(records("a/1", "x", "a/2", "", "b/1", "x"))
	require.True(t, told())
	require.Equal(t, map[string]string{"a/1": "=x", "a/2": "="}, taken(v))
	require.Empty(t, taken(v))
	v.Update(records("a/1", "x", "a/2", "", "b/1", "y"))
	require.False(t, told())
	require.Empty(t, taken(v))

	bucket := records("a/1", "y", "a/3", "z", "a/4", "not told of")
	bucket["a/5"] = nil // as empty as an empty one
	v.Apply(bucket, slices.Values([]string{"a/1", "a/2", "a/3", "a/5", "b/1"}))
	require.True(t, told())
	require.Equal(t, records("a/1", "y", "a/3", "z", "a/5", ""), v.Entries())
	require.Equal(t, map[string]string{"a/1": "=y", "a/2": "gone", "a/3": "=z", "a/5": "="}, taken(v))
	v.Apply(bucket, maps.Keys(bucket))
	require.True(t, told())
	require.Equal(t, map[string]string{"a/4": "=not told of"}, taken(v))

	// What changes while it is taken comes again, and so does what was not taken to its end.
	v.Update(records("a/1", "1", "a/3", "1"))
	seen := 0
	v.Take(func(path string, _ []byte) {
		if seen++; path == "a/1" {
			v.Update(records("a/1", "2", "a/3", "1"))
		}
	})
	require.Equal(t, 4, seen)
	require.True(t, told())
	require.Panics(t, func() { v.Take(func(string, []byte) { panic("x") }) })
	require.Equal(t, map[string]string{"a/1": "=2"}, taken(v))
	v.Update(nil)
	require.Equal(t, map[string]string{"a/1": "gone", "a/3": "gone"}, taken(v))
	require.Empty(t, v.Entries())
}
