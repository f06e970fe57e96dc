package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/queue"
)

// Heads that do not fit and belong elsewhere by now move there, from lanes that are asked for the first time and from woken ones.
func TestHeadsThatBelongElsewhereMove(t *testing.T) {
	zero := 0.0
	q := queue.New[string](queue.Single(&zero, queue.FCFS), 0)
	room, lanes := map[string]bool{}, map[string]string{}
	q.Lane = func(it *queue.Item[string]) string { return lanes[it.Value] }
	fits := func(it *queue.Item[string]) bool { return room[lanes[it.Value]] }
	for i, name := range []string{"1", "2", "3", "4", "5"} {
		lanes[name] = map[bool]string{true: "common", false: "other"}[i < 4]
		_, err := q.Push(int64(i), 1, queue.Request{Lane: lanes[name], ISLTokens: 1}, name)
		require.NoError(t, err)
	}
	next := func(want ...string) {
		t.Helper()
		for _, name := range want {
			it := q.Next(fits)
			queue.Check(t, q)
			require.NotNil(t, it)
			require.Equal(t, name, it.Value)
		}
		require.Nil(t, q.Next(fits))
		queue.Check(t, q)
	}
	lanes["1"] = "other" // before anybody asked
	next()
	lanes["2"], lanes["3"] = "other", "third" // of blocked lanes
	room["common"] = true
	q.Wake()
	next("4")
	room["other"] = true
	q.Wake()
	next("1", "2", "5")
	room["third"] = true
	q.WakeLane("third")
	next("3")
	require.Zero(t, q.Len())
}
