package load_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const here, there, elsewhere = load.Origin(0), load.Origin(77), load.Origin(78)

func TestTheFirstOwnerKeepsARequest(t *testing.T) {
	l := load.New(load.Options{})
	rank := worker.Rank{ID: 9, DPRank: 1}
	require.NoError(t, l.Book(&load.Booking{ID: "a", Slot: 1, Rank: rank, Origin: there, Blocks: chain(1, 4), PrefillTokens: 8}, 0))
	for _, origin := range []load.Origin{here, there, elsewhere} {
		err := l.Book(&load.Booking{ID: "a", Slot: 2, Origin: origin, Blocks: chain(2, 9), PrefillTokens: 99}, 0)
		require.ErrorIs(t, err, load.ErrDuplicateRequest)
	}
	place, ok := l.Placed("a")
	require.True(t, ok)
	require.Equal(t, load.Placement{Rank: rank, Slot: 1, Origin: there}, place)
	require.Equal(t, load.Load{ActivePrefillTokens: 8, ActiveBlocks: 4, ActiveRequests: 1}, l.Load(1))
	require.Equal(t, load.Load{}, l.Load(2))
	_, ok = l.Placed("b")
	require.False(t, ok)
}

func TestRemoteCallsActOnlyOnWhatTheTellerPlacedThere(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "own", Slot: 1, Blocks: chain(1, 4), PrefillTokens: 8}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "theirs", Slot: 1, Origin: there, Blocks: chain(1, 4), PrefillTokens: 8}, 0))
	for _, id := range []string{"own", "theirs", "nobody's"} {
		require.False(t, l.RemotePrefillComplete(id, 2, there, 0))
		require.False(t, l.RemoteFree(id, 2, there, 0))
		for _, origin := range []load.Origin{here, elsewhere} {
			require.False(t, l.RemotePrefillComplete(id, 1, origin, 0), "it did not place it")
			require.False(t, l.RemoteFree(id, 1, origin, 0), "it did not place it")
		}
	}
	require.False(t, l.RemotePrefillComplete("own", 1, there, 0))
	require.False(t, l.RemoteFree("own", 1, there, 0), "nobody else ends what this router placed")
	require.Equal(t, load.Load{ActivePrefillTokens: 16, ActiveBlocks: 4, ActiveRequests: 2}, l.Load(1))

	require.True(t, l.RemotePrefillComplete("theirs", 1, there, 0))
	require.True(t, l.RemotePrefillComplete("theirs", 1, there, 0), "twice is fine")
	require.Equal(t, load.Load{ActivePrefillTokens: 8, ActiveBlocks: 4, ActiveRequests: 2}, l.Load(1))
	require.True(t, l.RemoteFree("theirs", 1, there, 0))
	require.False(t, l.RemoteFree("theirs", 1, there, 0))
	require.NoError(t, l.Free("own", 0))
	require.Equal(t, load.Load{}, l.Load(1))
}

func TestARequestOfAnotherRouterEndsThere(t *testing.T) {
	l := load.New(load.Options{})
	require.NoError(t, l.Book(&load.Booking{ID: "a", Origin: there, PrefillTokens: 8}, 0))
	require.ErrorIs(t, l.PrefillComplete("a", 0), load.ErrRequestNotFound)
	require.ErrorIs(t, l.AddOutputBlocks("a", 1, nil, 0), load.ErrRequestNotFound)
	require.ErrorIs(t, l.Free("a", 0), load.ErrRequestNotFound)
	require.Equal(t, load.Load{ActivePrefillTokens: 8, ActiveRequests: 1}, l.Load(0))
}

func TestTheRequestsOfARouterThatDiedGo(t *testing.T) {
	l := load.New(load.Options{})
	for id, origin := range map[string]load.Origin{"own": here, "a": there, "b": there, "c": elsewhere} {
		require.NoError(t, l.Book(&load.Booking{ID: id, Origin: origin, Blocks: chain(uint64(origin), 4), PrefillTokens: 1}, 0))
	}
	require.Equal(t, 2, dropOrigin(t, l, there, 0))
	require.Equal(t, 0, dropOrigin(t, l, there, 0))
	require.Equal(t, load.Load{ActivePrefillTokens: 2, ActiveBlocks: 8, ActiveRequests: 2}, l.Load(0))
	require.ErrorIs(t, l.Free("a", 0), load.ErrRequestNotFound, "nobody here placed it")
	require.NoError(t, l.Free("own", 0))
	load.Check(t, l)
}

// A router that is back while what it placed before is being ended keeps what it places now.
func TestARouterThatIsBackKeepsWhatItPlacesThen(t *testing.T) {
	l := load.New(load.Options{})
	load.SetMaxEnds(l, 2)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		require.NoError(t, l.Book(&load.Booking{ID: id, Origin: there}, 0))
	}
	gone := l.Departed(there, 5)
	n, more := l.DropOrigin(&gone, 5)
	require.Equal(t, 2, n)
	require.True(t, more)
	for _, id := range []string{"a", "b", "f"} { // the first two take the places of what has ended
		require.NoError(t, l.Book(&load.Booking{ID: id, Origin: there}, 6))
	}
	for more {
		n, more = l.DropOrigin(&gone, 7)
		require.LessOrEqual(t, n, 2)
	}
	require.EqualValues(t, 3, l.Load(0).ActiveRequests)
	for _, id := range []string{"a", "b", "f"} {
		require.True(t, l.RemoteFree(id, 0, there, 8), id)
	}
	load.Check(t, l)
}

// Other routers do not tell all progress: what they placed outlives own requests. What nobody ends goes in the end, and is
// not owed a late call here.
func TestRequestsOfOtherRoutersExpireMuchLater(t *testing.T) {
	l := load.New(load.Options{ExpiryNanos: 10 * second})
	require.NoError(t, l.Book(&load.Booking{ID: "silent", Origin: there}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "alive", Origin: there, PrefillTokens: 5}, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "own"}, 0))
	at, ok := l.NextExpiry()
	require.True(t, ok)
	require.Equal(t, 10*second, at)
	require.Zero(t, l.Expire(at))
	require.Equal(t, 1, l.Expire(at+1), "the own one")
	require.True(t, l.RemotePrefillComplete("alive", 0, there, 18*second))
	at, ok = l.NextExpiry()
	require.True(t, ok)
	require.Equal(t, 100*second, at)
	require.Zero(t, l.Expire(at))
	require.Equal(t, 1, l.Expire(at+1))
	require.ErrorIs(t, l.Free("silent", at+1), load.ErrRequestNotFound)
	require.Equal(t, 1, l.Expire(118*second+1))
	_, ok = l.NextExpiry()
	require.False(t, ok)
	load.Check(t, l)
}

func TestOtherRoutersBookNoMoreThanABound(t *testing.T) {
	l := load.New(load.Options{})
	load.SetMaxRemote(l, 2)
	for _, id := range []string{"a", "b"} {
		require.NoError(t, l.Book(&load.Booking{ID: id, Origin: there}, 0))
	}
	err := l.Book(&load.Booking{ID: "c", Origin: elsewhere, Blocks: chain(1, 3)}, 0)
	require.ErrorIs(t, err, load.ErrInvalid)
	require.ErrorContains(t, err, `"c"`)
	require.NoError(t, l.Book(&load.Booking{ID: "c"}, 0), "own requests have no bound")
	require.True(t, l.RemoteFree("a", 0, there, 0))
	require.NoError(t, l.Book(&load.Booking{ID: "d", Origin: elsewhere}, 0))
	load.Check(t, l)
}

// A period without end has no end for other routers' requests either.
func TestAnEndlessPeriod(t *testing.T) {
	for _, period := range []int64{math.MaxInt64, math.MaxInt64 / 2, math.MaxInt64/10 + 1} {
		l := load.New(load.Options{ExpiryNanos: period})
		require.NoError(t, l.Book(&load.Booking{ID: "a", Origin: there}, 0))
		require.Zero(t, l.Expire(1))
		require.Zero(t, l.Expire(math.MaxInt64))
		require.EqualValues(t, 1, l.Load(0).ActiveRequests)
	}
}
