package main

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scripted is a side that gives these answers, and keeps what it was asked.
func scripted(name, answers string) (*side, *bytes.Buffer) {
	var asked bytes.Buffer
	return &side{name: name, in: nopCloser{&asked}, lines: bufio.NewReader(strings.NewReader(answers))}, &asked
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestEachSideIsAskedOnceForWhatItsRowsWant(t *testing.T) {
	result := []comparison{
		{row{name: "a", measure: "m", peers: []peer{crtc}}, map[string][]float64{}},
		{row{name: "b", measure: "m", peers: []peer{chain}}, map[string][]float64{}},
		{row{name: "c", measure: "m", theirs: "n", peers: []peer{chain}}, map[string][]float64{}},
		{row{name: "d", measure: "many/x"}, map[string][]float64{}},
	}
	us, askedUs := scripted(ours, " 1 2\ndone m\n 3\ndone m\nx 4\ny 5\ndone many\n")
	one, askedOne := scripted(crtc.name, " 6\ndone m\n")
	two, askedTwo := scripted(chain.name, "done m\n 7\ndone n\n") // cannot do the first
	require.NoError(t, measure([]*side{one, us, two}, result))
	require.Equal(t, "m\nm\nmany\n", askedUs.String())
	require.Equal(t, "m\n", askedOne.String())
	require.Equal(t, "m\nn\n", askedTwo.String())
	require.Equal(t, map[string][]float64{ours: {1, 2}, crtc.name: {6}}, result[0].samples)
	require.Equal(t, []float64{1, 2}, result[1].samples[ours])
	require.Empty(t, result[1].samples[chain.name])
	require.Equal(t, map[string][]float64{ours: {3}, chain.name: {7}}, result[2].samples)
	require.Equal(t, map[string][]float64{ours: {4}}, result[3].samples)

	require.ErrorIs(t, measure([]*side{us}, result), errSide, "it has no more answers")
}

func TestSidesThatAnswerDifferentlyAreNotCompared(t *testing.T) {
	sides := func(answers ...string) (all []*side) {
		for _, a := range answers {
			s, _ := scripted("side", a)
			all = append(all, s)
		}
		return all
	}
	require.NoError(t, agree(sides(" 1 2\ndone check\n", " 1 2\ndone check\n", " 1 2\ndone check\n")))
	require.ErrorIs(t, agree(sides(" 1 2\ndone check\n", " 1 2\ndone check\n", " 1 3\ndone check\n")), errDiffer)
	require.ErrorIs(t, agree(sides(" 1 2\ndone check\n", " 1\ndone check\n")), errDiffer)
	require.ErrorIs(t, agree(sides("done check\n", "done check\n")), errDiffer, "nothing was compared")
	require.ErrorIs(t, agree(sides("")), errSide)
}
