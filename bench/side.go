package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// A measurement does some work and gives samples by row; the row "" is that of a measurement with one row. No row at all means
// that this side cannot do it.
type measurement func() map[string][]float64

// serve is a process that measures us. It prepares, says "ready", and answers each line of in, the name of a measurement, with
// lines of "row sample sample ..." and "done measurement"; peers/ and the Python sides do the same.
func serve(prepare func() map[string]measurement, in io.Reader, out io.Writer) error {
	measurements := prepare()
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		measure, ok := measurements[lines.Text()]
		if !ok {
			return fmt.Errorf("no measurement %q", lines.Text())
		}
		for row, samples := range measure() {
			if len(samples) == 0 {
				continue
			}
			fmt.Fprint(out, row)
			for _, s := range samples {
				fmt.Fprint(out, " ", strconv.FormatFloat(s, 'g', -1, 64))
			}
			fmt.Fprintln(out)
		}
		if _, err := fmt.Fprintln(out, "done", lines.Text()); err != nil {
			return err
		}
	}
	return nil
}

// A side is a running process that measures us or a peer.
type side struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

var errSide = errors.New("a measuring process failed")

// start starts a side and waits until it is ready.
func start(name string, command ...string) (*side, error) {
	s := &side{name: name, cmd: exec.Command(command[0], command[1:]...)}
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.in, s.lines = in, bufio.NewReaderSize(out, 1<<20)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := s.lines.ReadString('\n'); err != nil || line != "ready\n" {
		s.stop()
		return nil, fmt.Errorf("%w: %s: %v, %q", errSide, name, err, line)
	}
	return s, nil
}

func (s *side) stop() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
}

// ask asks for a measurement.
func (s *side) ask(measure string) (map[string][]float64, error) {
	if _, err := fmt.Fprintln(s.in, measure); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSide, s.name, err)
	}
	answer, err := readAnswer(s.lines, measure)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %s: %w", errSide, s.name, measure, err)
	}
	return answer, nil
}

func readAnswer(lines *bufio.Reader, measure string) (map[string][]float64, error) {
	answer := map[string][]float64{}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "done "+measure {
			return answer, nil
		}
		fields := strings.Split(line, " ")
		for _, f := range fields[1:] {
			sample, err := strconv.ParseFloat(f, 64)
			if err != nil {
				return nil, err
			}
			answer[fields[0]] = append(answer[fields[0]], sample)
		}
	}
}
