package tokenids

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ways are the fast ones that this machine has.
func ways() map[string]func(d []byte, i int, list []uint32) ([]uint32, int) {
	return map[string]func(d []byte, i int, list []uint32) ([]uint32, int){"fast": fast, "many": many}
}

func TestDigits(t *testing.T) {
	for _, v := range []uint64{0, 1, 9, 10, 99, 100, 12345, 99999, 100000, 999999, 1000000, 1234567, 9999999, 10000000, 87654321, 99999999} {
		text := strconv.FormatUint(v, 10)
		eight := func(before byte, text string) uint64 {
			return binary.LittleEndian.Uint64(append(bytes.Repeat([]byte{before}, 8-len(text)), text...))
		}
		for _, before := range []byte{',', '[', ' ', '0', '9', 0, 0xff} {
			got, ok := digits(eight(before, text), uint(len(text)))
			require.True(t, ok, "%q", text)
			require.Equal(t, v, got, "%q", text)
		}
		for n := range len(text) {
			for other := range 256 {
				if other >= '0' && other <= '9' {
					continue
				}
				wrong := []byte(text)
				wrong[n] = byte(other)
				_, ok := digits(eight(',', string(wrong)), uint(len(text)))
				require.False(t, ok, "%q", wrong)
			}
		}
		if len(text) < 8 {
			_, ok := digits(eight(',', "0"+text), uint(len(text)+1))
			require.False(t, ok, "0%s", text)
		}
	}
}

// lead is what stands before a list, so that eight bytes are.
const lead = `{"prompt":[`

// TestLists: lists of ids of all lengths, written in several ways, are read as they are, wherever in them the fast way ends.
func TestLists(t *testing.T) {
	values := []uint32{0, 7, 10, 128_000, 999, 1 << 20, 99_999_999, 100_000_000, 1<<32 - 1, 5}
	for _, between := range []string{",", ", ", " , ", ",\n\t", ",\r\n  "} {
		for _, kinds := range []int{5, 6, 7, len(values)} { // with and without ids that the fast ways leave
			want, text := []uint32{}, []byte(lead)
			for i := range 700 {
				want = append(want, values[i%kinds])
				text = strconv.AppendUint(text, uint64(values[i%kinds]), 10)
				d := append(bytes.Clone(text), `], "more": [1, 2, 3, 4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25]}`...)
				got, end, ok := Read(d, len(lead), nil)
				require.True(t, ok)
				require.Equal(t, want, got)
				require.Equal(t, len(text)+1, end)
				text = append(text, between...)
			}
			for name, way := range ways() {
				got, end := way(text, len(lead), nil)
				if kinds < 7 && (between == "," || between == ", ") {
					require.Greater(t, len(got), len(want)-64, "%s leaves too much", name)
				}
				require.Equal(t, want[:len(got)], append([]uint32{}, got...), name)
				rest, _, ok := each(append(text, "1]"...), end, got)
				require.True(t, ok, name)
				require.Equal(t, append(want, 1), rest, name)
			}
		}
	}
}

// TestShortBeginning: a list near the beginning of what is read.
func TestShortBeginning(t *testing.T) {
	text := []byte("[" + strings.Repeat("1,", 100) + "2]")
	got, end, ok := Read(text, 1, nil)
	require.True(t, ok)
	require.Len(t, got, 101)
	require.Equal(t, len(text), end)
	for _, text := range []string{"", "[", "[1", "[1,", "[ ", "[]"} {
		_, _, ok := Read([]byte(text), min(1, len(text)), nil)
		require.False(t, ok, text)
	}
}

// TestNothingIsAllocated: where there is room.
func TestNothingIsAllocated(t *testing.T) {
	text := []byte(lead + strings.Repeat("12345,", 1000) + "2]")
	room := make([]uint32, 0, 2000)
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _, _ = Read(text, len(lead), room) }))
}

// FuzzRead checks that a list is read the fast ways as it is read one by one.
func FuzzRead(f *testing.F) {
	long, wide := strings.Repeat("1,22,333,4444,55555,666666,7777777,88888888,", 5), strings.Repeat("1, 22, 333, 4444, 55555, 666666, 7777777, 88888888, ", 5)
	for _, end := range []string{"9]", "]", "01]", "1.5,7]", "999999999,4294967295]", "4294967296]", "-1,1]", ",1]", "1 2,3]", "[1],2]", "1e3,4]", "1,  2]", "1 ,2]", "1x,2]"} {
		for _, before := range []string{"", long, wide} {
			for _, after := range []string{"", strings.ReplaceAll(end, "]", ",") + long + "1]"} {
				f.Add([]byte(before + strings.ReplaceAll(end, "]", ",") + after))
				f.Add([]byte(before + end + after))
			}
		}
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		text := append([]byte(lead), list...)
		want, end, ok := each(text, len(lead), nil)
		got, at, gotOK := Read(text, len(lead), nil)
		require.Equal(t, ok, gotOK, "%q", text)
		if ok {
			require.Equal(t, end, at, "%q", text)
			require.Equal(t, want, got, "%q", text)
		}
		for name, way := range ways() {
			got, at := way(text, len(lead), nil)
			got, at, gotOK := each(text, at, got)
			require.Equal(t, ok, gotOK, "%s %q", name, text)
			if ok {
				require.Equal(t, end, at, "%s %q", name, text)
				require.Equal(t, want, got, "%s %q", name, text)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct{ name, between string }{{"compact", ","}, {"spaces", ", "}} {
		text := []byte(lead)
		for i := range 1000 {
			text = append(strconv.AppendInt(text, int64(i*37%128_000), 10), c.between...)
		}
		text = append(text, "1]"...)
		for name, way := range ways() {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				var room []uint32
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					ids, at := way(text, len(lead), room[:0])
					room, _, _ = each(text, at, ids)
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/1000, "ns/id")
			})
		}
	}
}
