package feed

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/enginetest"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func TestFollowsSGLangPublisher(t *testing.T) {
	for _, version := range []string{"0.5.21", "0.5.23"} { // replay replies without and with a topic
		t.Run(version, func(t *testing.T) {
			p := enginetest.StartSGLang(t, version)
			const batches = 20_000
			rng := rand.New(rand.NewPCG(3, 5))
			var lost []string
			for seq := 1; seq < batches; seq++ { // from the first on, the tail included
				if rng.UintN(100) < 3 || seq == batches-1 {
					lost = append(lost, fmt.Sprint(seq))
				}
			}
			p.Tell("drop %s", strings.Join(lost, ","))

			var all, live view
			cfg := Config{Rank: worker.Rank{ID: 1}, Endpoint: p.Live, Replay: p.Replay, BlockSize: 16, Sink: &all, Probe: time.Second}
			f := Start(cfg)
			defer f.Close()
			cfg.Replay, cfg.Sink = "", &live
			g := Start(cfg)
			defer g.Close()
			eventually(t, "joined", f.is(Exact))
			eventually(t, "subscribed", g.is(Partial))

			for done := 0; done < batches; done += 2000 {
				p.Tell("chain 2000 42")
				p.Tell("sync")
				// The engine remembers 10,000 batches, and a replay may be lost and asked for again after a while.
				eventually(t, "not further behind than the engine remembers", func() bool {
					s := f.Status()
					return s.HasSeq && s.LastSeq+6000 >= uint64(done+2000)
				})
			}
			want := p.State()
			t.Cleanup(func() { t.Logf("%+v", f.Status()) }) // also of a failure
			eventually(t, "the last batch, which was lost live, is found", func() bool {
				s := f.Status()
				return s.State == Exact && s.HasSeq && s.LastSeq == batches-1
			})
			require.Equal(t, want, all.names())
			require.NotEqual(t, want, live.names(), "nothing was lost: the test shows nothing")
			require.Zero(t, all.resets)
			require.NotZero(t, f.Status().Counters["gaps"])
		})
	}
}
