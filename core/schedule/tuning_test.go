package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// fleetSim is a fleet of workers that cache whatever they compute and forget nothing, behind a scheduler.
type fleetSim struct {
	weights  schedule.Weights
	inFlight int // requests that are active while the next is decided; half of them still prefill
	held     []map[block.Hash]bool
	ledger   *load.Ledger
	view     schedule.View
	scores   schedule.Scores
	slots    []worker.Slot
	rng      *rand.Rand
	served   []int // requests, by worker
	possible int   // blocks that some worker held when they were asked for
	hit      int   // blocks that the worker of the request held
	requests int
}

func newFleetSim(workers, inFlight int, seed uint64, w schedule.Weights) *fleetSim {
	f := &fleetSim{weights: w, rng: rng(seed), inFlight: inFlight, ledger: load.New(load.Options{}), served: make([]int, workers)}
	for i := range workers {
		f.held = append(f.held, map[block.Hash]bool{})
		f.slots = append(f.slots, worker.Slot(i))
	}
	f.view = schedule.View{Slots: workers, Active: make([]uint32, workers), Device: make([]uint32, workers)}
	return f
}

// ask routes a prompt, books it, and ends the prefill of an older request and the life of a still older one.
func (f *fleetSim) ask(prompt []block.Hash) {
	best := 0
	for i, held := range f.held {
		n := slices.IndexFunc(prompt, func(h block.Hash) bool { return !held[h] })
		if n < 0 {
			n = len(prompt)
		}
		f.view.Device[i] = uint32(n)
		best = max(best, n)
	}
	f.ledger.Reserve(len(f.held))
	f.ledger.Matched(f.view.Active, prompt)
	f.view.Loads = f.ledger.Loads()
	req := schedule.Request{ISLTokens: 16 * len(prompt), Blocks: len(prompt), BlockSize: 16, TrackPrefill: true}
	f.scores.Compute(&f.view, f.slots, &req, &f.weights)
	at := f.scores.Pick(f.weights.Temperature, f.rng)
	hit := int(f.view.Device[at])
	f.served[at]++
	f.possible += best
	f.hit += hit
	for _, h := range prompt {
		f.held[at][h] = true
	}
	_ = f.ledger.Book(&load.Booking{ID: fmt.Sprint(f.requests), Slot: worker.Slot(at), Blocks: prompt, PrefillTokens: 16 * (len(prompt) - hit)}, 0)
	_ = f.ledger.PrefillComplete(fmt.Sprint(f.requests-f.inFlight/2), 0)
	_ = f.ledger.Free(fmt.Sprint(f.requests-f.inFlight), 0)
	f.requests++
}

// share is the busiest worker's part of the requests.
func (f *fleetSim) share() float64 { return float64(slices.Max(f.served)) / float64(f.requests) }

// lost is the part of the possible hits that was missed.
func (f *fleetSim) lost() float64 { return 1 - float64(f.hit)/float64(f.possible) }

const systemPrompt = 10 // blocks, at the start of every request

// run gives blocks from..to of a text.
func run(text uint64, from, to int) []block.Hash {
	var out []block.Hash
	for i := from; i < to; i++ {
		out = append(out, block.Hash(text<<32|uint64(i)))
	}
	return out
}

// strangers ask once each: the system prompt and four blocks of their own.
func (f *fleetSim) strangers(n int) {
	for i := range n {
		f.ask(append(run(1, 0, systemPrompt), run(uint64(100+i), 0, 4)...))
	}
}

// sessions ask again and again, each time all of the conversation and eight blocks more.
func (f *fleetSim) sessions(sessions, n int) {
	length := make([]int, sessions)
	for range n {
		s := f.rng.IntN(sessions)
		length[s] += 8
		f.ask(append(run(1, 0, systemPrompt), run(uint64(100+s), 0, length[s])...))
	}
}

type preset struct {
	name    string
	weights schedule.Weights
}

// presets are the rows of docs/tuning.md.
func presets() []preset {
	return []preset{
		{"default", *weights(nil)},
		{"credit decay 1", *weights(func(w *schedule.Weights) { w.CreditDecay = 1 })},
		{"temperature 0.1", *weights(func(w *schedule.Weights) { w.Temperature = 0.1 })},
		{"temperature 0.3", *weights(func(w *schedule.Weights) { w.Temperature = 0.3 })},
		{"temperature 0.5", *weights(func(w *schedule.Weights) { w.Temperature = 0.5 })},
		{"minimum overlap 12", *weights(func(w *schedule.Weights) { w.MinOverlapBlocks = 12 })},
		{"minimum overlap 12, credit decay 1", *weights(func(w *schedule.Weights) { w.MinOverlapBlocks, w.CreditDecay = 12, 1 })},
		{"minimum overlap 12, prefill load scale 4", *weights(func(w *schedule.Weights) { w.MinOverlapBlocks, w.PrefillLoadScale = 12, 4 })},
	}
}

// spreads tells that a preset is documented to keep a system prompt from making a hot spot.
func (p *preset) spreads() bool {
	return p.weights.MinOverlapBlocks > systemPrompt || p.weights.Temperature >= 0.3
}

// A shared system prompt does not glue everybody to the worker that saw it first: eight idle workers, each request freed
// before the next.
func TestSystemPromptMakesNoHotSpot(t *testing.T) {
	for _, p := range presets() {
		for seed := range uint64(20) {
			f := newFleetSim(8, 0, seed, p.weights)
			f.strangers(200)
			if !p.spreads() {
				require.Greater(t, f.share(), 0.4, "%s, seed %d: not worth documenting", p.name, seed)
				continue
			}
			require.LessOrEqual(t, f.share(), 0.4, "%s, seed %d", p.name, seed)
			require.LessOrEqual(t, f.lost(), 0.05, "%s, seed %d", p.name, seed)
		}
	}
}

// The table of docs/tuning.md is what this measures: the worst of four seeds.
func TestTuningTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/tuning.md")
	require.NoError(t, err)
	for _, p := range presets() {
		line := "| " + p.name + " |"
		for _, inFlight := range []int{0, 64} {
			var worst [4]float64
			for seed := range uint64(4) {
				strangers, sessions := newFleetSim(8, inFlight, seed, p.weights), newFleetSim(8, inFlight, seed, p.weights)
				strangers.strangers(200)
				sessions.sessions(50, 500)
				for i, x := range []float64{strangers.share(), strangers.lost(), sessions.share(), sessions.lost()} {
					worst[i] = max(worst[i], x)
				}
			}
			for _, x := range worst {
				line += fmt.Sprintf(" %.1f |", 100*x)
			}
		}
		require.Contains(t, string(doc), line+"\n")
	}
}
