package diagnose_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/diagnose"
)

// engine is a literal prefix cache of one-block prompts: the least recently computed go first.
type engine struct {
	*bench
	room  int
	cache []string
}

func (e *engine) compute(tokens []uint32, id diagnose.Identity) {
	key := fmt.Sprint(tokens, id)
	if slices.Contains(e.cache, key) {
		return
	}
	if len(e.cache) == e.room {
		delete(e.holds, e.cache[0])
		e.cache = e.cache[1:]
		e.intake.Applied(false, 0, 1, "")
	}
	e.cache = append(e.cache, key)
	e.store(tokens, id)
}

// FuzzAccusations drives an engine and its router with any order of prompts, waits, looks and clears. While both see the same
// tokens and identities, nothing is ever found, however small the cache; and once they do not, the cause is found after
// enough prompts, unless the cache is too small to tell, and no other.
func FuzzAccusations(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, uint8(40), uint8(1))
	f.Add([]byte("any order of prompts, waits, looks and clears, 0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ"), uint8(3), uint8(2))
	f.Add([]byte("\x00\x00\x00\x00\x03\x03\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x03"), uint8(1), uint8(0))
	f.Fuzz(func(t *testing.T, ops []byte, room, fault uint8) {
		e := &engine{bench: &bench{}, room: 1 + int(room)}
		identities := []diagnose.Identity{base, salted, lora, both}
		type request struct {
			id     string
			tokens []uint32
			as     diagnose.Identity
		}
		var open []request
		end := func() {
			q := open[0]
			open = open[1:]
			e.compute(q.tokens, q.as)
			e.Ended(q.id, e.now)
		}
		for _, op := range ops {
			switch as := identities[op>>4&3]; op % 6 {
			case 0, 1: // a new prompt is sent, and perhaps others before it is computed
				e.next++
				q := request{fmt.Sprint(e.next), []uint32{e.next}, as}
				if e.Wants() {
					e.Miss(e.now, &diagnose.Request{ID: q.id, Booked: true, Identity: as, Tokens: q.tokens}, e.intake.Progress())
				}
				open = append(open, q)
			case 2:
				if len(open) > 0 {
					end()
				}
			case 3:
				e.pass(time.Duration(op) * 50 * time.Millisecond)
			case 4:
				require.Empty(t, e.find(nil))
			case 5:
				if op > 240 {
					e.cache, e.holds = nil, map[string]bool{}
					e.intake.Applied(false, 0, 0, "")
					e.intake.Cleared()
				}
			}
		}
		for len(open) > 0 {
			end()
		}
		e.pass(time.Minute)
		require.Empty(t, e.find(nil))

		want := []diagnose.Cause{diagnose.CacheSaltDiffers, diagnose.LoRADiffers, diagnose.TokensDiffer, diagnose.NoEvents}[fault%4]
		for range 8 {
			tokens := e.miss(base)
			switch want {
			case diagnose.CacheSaltDiffers:
				e.compute(tokens, salted)
			case diagnose.LoRADiffers:
				e.compute(tokens, lora)
			case diagnose.TokensDiffer:
				e.compute([]uint32{1<<31 | tokens[0]}, base)
			}
		}
		e.pass(time.Minute)
		if found := e.find(nil); len(found) > 0 || e.room > 32+len(ops) {
			require.Equal(t, []diagnose.Cause{want}, found)
		}
	})
}
