package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHandlesAgainstMap(t *testing.T) {
	table := &table[int]{kind: kindRouter}
	rng := rand.New(rand.NewPCG(1, 2))
	want, closed := map[handle]*int{}, map[handle]bool{}
	var all []handle
	for i := range 20_000 {
		if len(all) == 0 || rng.UintN(2) == 0 {
			h, err := table.add(&i)
			require.NoError(t, err)
			require.NotZero(t, h)
			require.False(t, closed[h] || want[h] != nil, "a handle came twice")
			want[h], all = &i, append(all, h)
		} else {
			h := all[rng.IntN(len(all))]
			got, err := table.remove(h)
			require.NoError(t, err)
			require.Same(t, want[h], got)
			delete(want, h)
			closed[h] = true
		}
		require.Equal(t, len(want), table.live())
	}
	for h, value := range want {
		got, err := table.find(h)
		require.NoError(t, err)
		require.Same(t, value, got)
	}
	for h := range closed {
		_, err := table.find(h)
		require.ErrorIs(t, err, errHandleClosed)
	}
}

func TestHandlesNeverGiven(t *testing.T) {
	table := &table[int]{kind: kindRouter}
	h, err := table.add(new(int))
	require.NoError(t, err)
	for name, bad := range map[string]handle{
		"zero": 0, "small": 1, "all ones": ^uint64(0), "other kind": h ^ 3<<56, "next generation": h + 1,
		"unused slot": h + 1<<32, "slot out of range": h | 0xffffff<<32, "generation 0": h &^ 0xffffffff,
	} {
		_, err := table.find(bad)
		require.ErrorIs(t, err, errBadHandle, name)
		if bad != 0 {
			_, err = table.remove(bad)
			require.ErrorIs(t, err, errBadHandle, name)
		}
	}
	_, err = table.find(h)
	require.NoError(t, err)
}

// TestARefusedHandleTellsWhatItShouldBe: the kind, and the handle that was given.
func TestARefusedHandleTellsWhatItShouldBe(t *testing.T) {
	for kind := kindRouter; kind <= kindServer; kind++ {
		table := &table[int]{kind: kind}
		h, err := table.add(new(int))
		require.NoError(t, err)
		_, err = table.remove(h)
		require.NoError(t, err)
		require.NotEmpty(t, kindNames[kind])
		_, err = table.find(h)
		require.EqualError(t, err, fmt.Sprintf("the %s is closed: %#x", kindNames[kind], h))
		_, err = table.find(1)
		require.EqualError(t, err, fmt.Sprintf("not a handle of a %s: 0x1", kindNames[kind]))
	}
}

func TestHandlesAreBounded(t *testing.T) {
	table := &table[int]{kind: kindMocker}
	var last handle
	for range maxHandles {
		h, err := table.add(new(int))
		require.NoError(t, err)
		last = h
	}
	_, err := table.add(new(int))
	require.ErrorIs(t, err, errTooManyHandles)
	_, err = table.remove(last)
	require.NoError(t, err)
	_, err = table.add(new(int))
	require.NoError(t, err)
}

func TestHandleFoundIsTheOneAsked(t *testing.T) {
	table := &table[handle]{kind: kindRouter}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5_000 {
				value := new(handle)
				h, err := table.add(value)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := table.find(h); err != nil || got != value {
					t.Errorf("handle %#x found %p, %v", h, got, err)
				}
				if got, err := table.remove(h); err != nil || got != value {
					t.Errorf("handle %#x removed %p, %v", h, got, err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, table.live())
}
