// Command bench compares this project with others; docs/benchmarks.md says what the rows mean. `./build.sh bench` builds and
// runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
}

const usage = `usage: ./build.sh bench [FLAG...] [PART...]

Parts, all of them by default: %s

  --rounds N       rounds of each measurement; a few that take long have fewer (5)
  --only PATTERN   only rows whose names match this regular expression
  --list           only list the rows that would be measured, each after its part
  --results FILE   where results are merged (bench/results.json)

docs/benchmarks.md says what the rows mean. Of build.sh come --peers, the program of bench/peers, and --python and --wheel, the
interpreters with our package and with Dynamo's.
`

// parts lists the parts of the suite in order.
func parts() []string {
	var all []string
	for _, r := range rows {
		if !slices.Contains(all, r.part) {
			all = append(all, r.part)
		}
	}
	return all
}

func run(args []string, out, progress io.Writer) error {
	if len(args) == 2 && args[0] == "proxy" {
		return proxy(args[1], os.Stdin, out)
	}
	if len(args) == 2 && args[0] == "serve" {
		return serve(prepare[args[1]], os.Stdin, out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress) // with the texts of usage
	rounds := flags.Int("rounds", 5, "")
	only := flags.String("only", "", "")
	list := flags.Bool("list", false, "")
	var p programs
	flags.StringVar(&p.peers, "peers", "", "")
	flags.StringVar(&p.python, "python", "", "")
	flags.StringVar(&p.wheel, "wheel", "", "")
	file := flags.String("results", "bench/results.json", "")
	flags.Usage = func() { fmt.Fprintf(progress, usage, strings.Join(parts(), " ")) }
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(flags.Args(), *only)
	if err != nil {
		return err
	}
	if *list {
		for _, r := range chosen {
			fmt.Fprintln(out, r.part, r.name)
		}
		return nil
	}
	if p.self, err = os.Executable(); err != nil {
		return err
	}
	if err := os.Setenv("DGO_BENCH", p.self); err != nil { // Python sides have workers of it
		return err
	}
	r := runner{programs: p, rounds: max(1, *rounds), progress: progress}
	done, err := r.all(chosen)
	done = slices.DeleteFunc(done, func(c comparison) bool {
		missing := len(c.samples[ours]) == 0
		if missing {
			fmt.Fprintln(progress, c.name, "could not be measured: is the machine busy?")
		}
		return missing
	})
	if len(done) > 0 { // also what was measured before an error
		table(out, done)
		err = errors.Join(err, mergeFile(*file, results(done)))
	}
	return err
}

// choose gives the rows of parts whose names match.
func choose(wanted []string, only string) ([]row, error) {
	for _, p := range wanted {
		if !slices.Contains(parts(), p) {
			return nil, fmt.Errorf("no part %q; parts are, after all flags: %s", p, strings.Join(parts(), " "))
		}
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	var chosen []row
	for _, r := range rows {
		if (len(wanted) == 0 || slices.Contains(wanted, r.part)) && pattern.MatchString(r.name) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no row matches %q", only)
	}
	return chosen, nil
}

// all runs the rows, situation by situation.
func (r *runner) all(rows []row) ([]comparison, error) {
	var done []comparison
	for len(rows) > 0 {
		situation := rows[0].situation
		var now, later []row
		for _, row := range rows {
			if row.situation == situation {
				now = append(now, row)
			} else {
				later = append(later, row)
			}
		}
		compared, err := r.run(situation, now)
		if err != nil {
			return done, err
		}
		done, rows = append(done, compared...), later
	}
	return done, nil
}

func results(done []comparison) []result {
	commit := "unknown"
	if text, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	date := time.Now().UTC().Format(time.RFC3339)
	var all []result
	for _, c := range done {
		all = append(all, c.result(commit, date))
	}
	return all
}
