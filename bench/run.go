package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const ours = "ours"

// A comparison is a row with the samples of each side, by its name.
type comparison struct {
	row
	samples map[string][]float64
}

// runner runs rows. Sides of one situation live at the same time but measure in turns, so that what else the machine does
// disturbs all of them alike.
type runner struct {
	programs
	rounds   int
	progress io.Writer
}

// programs are what sides are made of.
type programs struct {
	self, peers   string // this one, and that of peers/
	python, wheel string // interpreters: one with our package, one with Dynamo's
}

// ours gives the command of our side, theirs that of a peer's.
func (p *programs) ours(situation string) []string {
	if s, ok := scripts[situation]; ok {
		return append([]string{p.python}, s.ours...)
	}
	return []string{p.self, "serve", situation}
}

func (p *programs) theirs(structure, situation string) []string {
	if s, ok := scripts[situation]; ok {
		return append([]string{p.wheel}, s.theirs...)
	}
	if structure == nginx.structure || structure == direct.structure {
		return []string{p.self, "serve", structure + "_" + situation}
	}
	return []string{p.peers, structure, situation}
}

// question is what all sides are asked in turns.
type question struct{ ours, theirs string }

func (r *row) question() question {
	measure, _, _ := strings.Cut(r.measure, "/")
	return question{measure, cmp.Or(r.theirs, measure)}
}

// answer is which row of a measurement's answer is meant.
func (r *row) answer() string {
	_, answer, _ := strings.Cut(r.measure, "/")
	return answer
}

// run measures rows of one situation.
func (r *runner) run(situation string, rows []row) ([]comparison, error) {
	result := make([]comparison, len(rows))
	for i, row := range rows {
		result[i] = comparison{row, map[string][]float64{}}
	}
	rounds := r.rounds
	if most, ok := atMost[situation]; ok {
		rounds = min(rounds, most)
	}
	for round := range rounds {
		fmt.Fprintf(r.progress, "%s: round %d of %d\n", situation, round+1, rounds)
		if err := r.round(situation, round, rows, result); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// round measures once, on new processes: where memory happens to lie makes a difference, and lasts as long as a process.
func (r *runner) round(situation string, round int, rows []row, result []comparison) error {
	sides, err := r.start(situation, rows)
	defer func() {
		for _, s := range sides {
			s.stop()
		}
	}()
	if err != nil {
		return err
	}
	if compared[situation] && round == 0 {
		if err := agree(sides); err != nil {
			return err
		}
	}
	if round%2 == 1 {
		slices.Reverse(sides) // nobody always goes first
	}
	return measure(sides, result)
}

var errDiffer = errors.New("sides answer differently")

// agree makes sure that all sides give the same answers, as far as numbers of workers and sums of depths tell.
func agree(sides []*side) error {
	var first []float64
	for _, s := range sides {
		answer, err := s.ask("check")
		if err != nil {
			return err
		}
		if first == nil {
			first = answer[""]
		}
		if !slices.Equal(first, answer[""]) || len(first) == 0 {
			return fmt.Errorf("%w: %s %v, %s %v", errDiffer, sides[0].name, first, s.name, answer[""])
		}
	}
	return nil
}

// start starts ours and every peer that some row wants.
func (r *runner) start(situation string, rows []row) ([]*side, error) {
	first, err := start(ours, r.programs.ours(situation)...)
	if err != nil {
		return nil, err
	}
	sides := []*side{first}
	for _, row := range rows {
		for _, p := range row.peers {
			if slices.ContainsFunc(sides, func(s *side) bool { return s.name == p.name }) {
				continue
			}
			s, err := start(p.name, r.theirs(p.structure, situation)...)
			if err != nil {
				return sides, err
			}
			sides = append(sides, s)
		}
	}
	return sides, nil
}

// measure asks each side for what the rows want of it, once, in turns.
func measure(sides []*side, result []comparison) error {
	asked := map[question]bool{}
	for _, c := range result {
		q := c.question()
		if asked[q] {
			continue
		}
		asked[q] = true
		for _, s := range sides {
			if err := askFor(s, q, result); err != nil {
				return err
			}
		}
	}
	return nil
}

// askFor asks one side a question, if a row wants its answer, and files it.
func askFor(s *side, q question, result []comparison) error {
	wants := func(c *comparison) bool {
		return c.question() == q && (s.name == ours || slices.ContainsFunc(c.peers, func(p peer) bool { return p.name == s.name }))
	}
	if !slices.ContainsFunc(result, func(c comparison) bool { return wants(&c) }) {
		return nil
	}
	what := q.theirs
	if s.name == ours {
		what = q.ours
	}
	answer, err := s.ask(what)
	if err != nil {
		return err
	}
	for i := range result {
		if c := &result[i]; wants(c) {
			c.samples[s.name] = append(c.samples[s.name], answer[c.answer()]...) // none if it cannot
		}
	}
	return nil
}
