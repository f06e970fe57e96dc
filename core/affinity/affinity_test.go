package affinity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/affinity/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const second = int64(time.Second)

var a, b = worker.Rank{ID: 1}, worker.Rank{ID: 2, DPRank: 3}

func table(t testing.TB, ttl time.Duration, mode affinity.Mode) *affinity.Table {
	table, err := affinity.New(ttl, mode)
	require.NoError(t, err)
	return table
}

func bind(t testing.TB, table *affinity.Table, id string, rank worker.Rank, now int64) affinity.Lease {
	lease, err := table.Bind(id, rank, now)
	require.NoError(t, err)
	return lease
}

func TestSessionIsForgottenWhenIdleForItsTimeToLive(t *testing.T) {
	table := table(t, 10*time.Second, affinity.Hard)
	_, tied := table.Home("s", 0)
	require.False(t, tied)
	first, second1 := bind(t, table, "s", a, 0), bind(t, table, "s", a, 1*second)
	table.Release(first, 2*second)
	rank, tied := table.Home("s", 1000*second)
	require.True(t, tied, "it holds a lease")
	require.Equal(t, a, rank)
	table.Release(second1, 1000*second)
	_, tied = table.Home("s", 1010*second-1)
	require.True(t, tied)
	_, tied = table.Home("s", 1010*second)
	require.False(t, tied)
	require.Zero(t, table.Len(1010*second))
}

func TestHardSessionRefusesToMove(t *testing.T) {
	table := table(t, time.Minute, affinity.Hard)
	old := bind(t, table, "s", a, 0)
	_, err := table.Bind("s", b, 0)
	require.ErrorIs(t, err, affinity.ErrMoved)
	require.ErrorContains(t, err, `"s" is tied to 1/0, not 2/3`)
	_, tied := table.Home("s", 0)
	require.False(t, tied, "forgotten")
	bind(t, table, "s", b, 0)
	table.Release(old, 0)
	_, tied = table.Home("s", 1000*second)
	require.True(t, tied, "a lease of the forgotten session does not end one of the new")
}

func TestSoftSessionMoves(t *testing.T) {
	table := table(t, time.Minute, affinity.Soft)
	first := bind(t, table, "s", a, 0)
	other := bind(t, table, "s", b, 0)
	rank, _ := table.Home("s", 0)
	require.Equal(t, b, rank)
	table.Release(first, 0)
	require.Equal(t, 1, table.Len(1000*second), "the second request still holds a lease")
	table.Release(other, 1000*second)
	table.Release(other, 1000*second)
	require.Zero(t, table.Len(1060*second))
}

func TestDroppedRank(t *testing.T) {
	table := table(t, time.Minute, affinity.Hard)
	lease := bind(t, table, "s", a, 0)
	bind(t, table, "kept", b, 0)
	table.DropRank(a)
	_, tied := table.Home("s", 0)
	require.False(t, tied)
	bind(t, table, "s", b, 0)
	table.Release(lease, 0)
	require.Equal(t, 2, table.Len(1000*second))
}

func TestFullTable(t *testing.T) {
	table := table(t, time.Hour, affinity.Hard)
	leases := make([]affinity.Lease, affinity.MaxSessions)
	for i := range leases {
		leases[i] = bind(t, table, fmt.Sprint(i), a, 0)
	}
	_, err := table.Bind("more", a, 0)
	require.ErrorIs(t, err, affinity.ErrFull)
	bind(t, table, "7", a, 0)
	table.Release(leases[9], 1)
	table.Release(leases[8], 2)
	bind(t, table, "more", a, 3)
	_, tied := table.Home("9", 3)
	require.False(t, tied, "idle the longest")
	_, tied = table.Home("8", 3)
	require.True(t, tied)
	require.Equal(t, affinity.MaxSessions, table.Len(3))
}

// The sessions of a rank that is gone are forgotten at once and taken out later, a few with each call: no call works for all of them. They take no room
// from others.
func TestARankMayBeGoneWithAllSessions(t *testing.T) {
	table := table(t, time.Hour, affinity.Hard)
	const idle = affinity.MaxSessions / 2
	var last affinity.Lease
	for i := range affinity.MaxSessions {
		lease := bind(t, table, fmt.Sprint(i), a, 0)
		if last = lease; i < idle {
			table.Release(lease, 0)
		}
	}
	table.DropRank(a)
	affinity.Check(t, table)
	require.Equal(t, affinity.MaxSessions, affinity.Kept(table))
	require.Zero(t, table.Len(0))
	for _, id := range []string{"0", "1", fmt.Sprint(affinity.MaxSessions - 1)} {
		_, tied := table.Home(id, 0)
		require.False(t, tied)
	}
	for i := range 1000 {
		before := affinity.Kept(table)
		bind(t, table, fmt.Sprint("new", i), b, 0)
		require.LessOrEqual(t, before-affinity.Kept(table), 33)
	}
	bind(t, table, fmt.Sprint(affinity.MaxSessions-1), b, 0)
	table.Release(last, 0)
	require.Equal(t, 1001, table.Len(3600*second), "a lease of the forgotten session does not end one of the new")
	for affinity.Kept(table) > 1001 {
		before := affinity.Kept(table)
		table.Home("", 0)
		require.LessOrEqual(t, before-affinity.Kept(table), 33)
		require.Less(t, affinity.Kept(table), before)
	}
	affinity.Check(t, table)
}

// So are sessions whose time comes at one moment.
func TestManySessionsMayEndAtOneMoment(t *testing.T) {
	table := table(t, time.Second, affinity.Hard)
	for i := range 1000 {
		table.Release(bind(t, table, fmt.Sprint(i), a, 0), 0)
	}
	require.Zero(t, table.Len(second))
	_, tied := table.Home("999", second)
	require.False(t, tied)
	require.GreaterOrEqual(t, affinity.Kept(table), 1000-33)
	bind(t, table, "998", b, second)
	require.Equal(t, 1, table.Len(second))
	affinity.Check(t, table)
	for range 1000 / 32 {
		table.Home("", second)
	}
	require.Equal(t, 1, affinity.Kept(table))
}

func TestRefuses(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second - 1, affinity.MaxTTL + 1, -time.Hour} {
		_, err := affinity.New(ttl, affinity.Hard)
		require.ErrorIs(t, err, affinity.ErrInvalid)
	}
	table := table(t, affinity.MaxTTL, affinity.Hard)
	_, err := table.Bind(strings.Repeat("x", 257), a, 0)
	require.ErrorIs(t, err, affinity.ErrInvalid)
	require.ErrorContains(t, err, "257 bytes")
	bind(t, table, strings.Repeat("x", 256), a, 0)
	bind(t, table, "", a, 0)
	for _, mode := range []affinity.Mode{affinity.Hard, affinity.Soft} {
		parsed, err := affinity.ParseMode(mode.String())
		require.NoError(t, err)
		require.Equal(t, mode, parsed)
	}
	_, err = affinity.ParseMode("Hard")
	require.ErrorIs(t, err, affinity.ErrInvalid)
}

// pair drives the table and the model with the same calls and compares after each.
type pair struct {
	t      testing.TB
	table  *affinity.Table
	model  model.Table
	leases []affinity.Lease
	now    int64
}

func (p *pair) step(op, x, y byte) {
	id, rank := fmt.Sprint(x%12), worker.Rank{ID: uint64(y % 3), DPRank: uint32(y / 3 % 2)}
	switch op % 8 {
	case 0, 1, 2:
		lease, err := p.table.Bind(id, rank, p.now)
		want := p.model.Bind(id, rank, len(p.leases), p.now)
		require.ErrorIs(p.t, err, want)
		p.leases = append(p.leases, lease)
	case 3, 4, 5:
		if len(p.leases) > 0 {
			i := (int(x)<<8 | int(y)) % len(p.leases)
			p.table.Release(p.leases[i], p.now)
			p.model.Release(i, p.now)
			p.leases[i] = affinity.Lease{}
		}
	case 6:
		p.now += int64(x) * second / 16
	case 7:
		if y < 64 {
			p.table.DropRank(rank)
			p.model.DropRank(rank)
		}
	}
	require.Equal(p.t, p.model.Len(p.now), p.table.Len(p.now)) // before anything is asked
	for i := range 12 {
		gotRank, got := p.table.Home(fmt.Sprint(i), p.now)
		wantRank, want := p.model.Home(fmt.Sprint(i), p.now)
		require.Equal(p.t, want, got)
		require.Equal(p.t, wantRank, gotRank)
	}
	require.Equal(p.t, p.model.Len(p.now), p.table.Len(p.now))
	if y%8 == 0 {
		affinity.Check(p.t, p.table)
	}
}

func drive(t testing.TB, mode affinity.Mode, ops []byte) {
	const ttl = 20 * time.Second
	p := pair{t: t, table: table(t, ttl, mode), model: model.Table{TTL: ttl, Mode: mode}}
	for ; len(ops) >= 3; ops = ops[3:] {
		p.step(ops[0], ops[1], ops[2])
	}
}

func FuzzTableAgainstModel(f *testing.F) {
	f.Add(false, []byte{0, 1, 0, 0, 1, 0, 3, 0, 0, 3, 0, 1, 6, 255, 0, 6, 255, 0, 0, 1, 1, 0, 1, 2})
	f.Fuzz(func(t *testing.T, soft bool, ops []byte) {
		mode := affinity.Hard
		if soft {
			mode = affinity.Soft
		}
		drive(t, mode, ops)
	})
}

func TestTableAgainstModel(t *testing.T) {
	for _, mode := range []affinity.Mode{affinity.Hard, affinity.Soft} {
		rng := rand.New(rand.NewPCG(1, uint64(mode)))
		ops := make([]byte, 3*10_000)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		drive(t, mode, ops)
	}
}

func BenchmarkBindRelease(b *testing.B) {
	table := table(b, time.Minute, affinity.Hard)
	for i := range affinity.MaxSessions / 2 {
		table.Release(bind(b, table, fmt.Sprint(i), a, 0), 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		lease, _ := table.Bind("77", a, 1)
		table.Release(lease, 1)
	}
}

// At the end of the clock a session is not forgotten because its time would be beyond it.
func TestSessionAtTheEndOfTheClock(t *testing.T) {
	table, err := affinity.New(time.Minute, affinity.Hard)
	require.NoError(t, err)
	lease, err := table.Bind("s", worker.Rank{ID: 1}, math.MaxInt64-10)
	require.NoError(t, err)
	table.Release(lease, math.MaxInt64-9)
	rank, tied := table.Home("s", math.MaxInt64-1)
	require.True(t, tied)
	require.EqualValues(t, 1, rank.ID)
}
