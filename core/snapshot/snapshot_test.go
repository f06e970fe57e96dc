package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// tierRun is a run with its tier, as Runs gives both.
type tierRun struct {
	tier event.Tier
	index.Run
}

// content is all that a file holds.
type content struct {
	header Header
	ranks  []Rank
	runs   []tierRun
}

func blocksOf(pairs ...uint64) (list []event.Block) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, event.Block{Hash: block.Hash(pairs[i]), Engine: block.EngineHash(pairs[i+1])})
	}
	return list
}

// golden is what testdata/golden/snapshot/v1.snapshot holds.
func golden() content {
	return content{
		Header{BlockSize: 16, Created: time.UnixMicro(1767323045678901)},
		[]Rank{
			{ID: worker.Rank{ID: 7}, Slot: 0, Blocks: 3},
			{ID: worker.Rank{ID: 7, DPRank: 1}, Slot: 1, Blocks: 300, Partial: "snapshot: hidden"},
			{ID: worker.Rank{ID: 1<<64 - 1, DPRank: 3}, Slot: 2, Blocks: 2, Feed: &feed.Position{
				Last: 1000, Seed: 99, Prints: []uint64{0xaaaa, 0xbbbb}, Partial: "history_gone: 5", Streams: []byte{0, 0, 0}}},
		},
		[]tierRun{
			{event.Device, index.Run{Slots: []worker.Slot{0, 2}, Blocks: blocksOf(11, 111, 1<<64-1, 1<<63), References: 1}},
			{event.Device, index.Run{Slots: []worker.Slot{0}, HasParent: true, Parent: 1 << 63, Blocks: blocksOf(33, 333), References: 2}},
			{event.Disk, index.Run{Slots: []worker.Slot{0, 2}, Blocks: blocksOf(44, 444), References: 1}},
			{event.HostPinned, index.Run{Slots: []worker.Slot{0, 2}, HasParent: true, Parent: 444, Blocks: blocksOf(55, 555), References: 1}},
			{event.Device, index.Run{Slots: []worker.Slot{1}, Blocks: blocksOf(66, 666), References: MaxReferences}},
		},
	}
}

// written gives the file of a content; flush tells after which runs a section ends.
func written(t testing.TB, c content, flush ...int) []byte {
	var out bytes.Buffer
	w, err := NewWriter(&out, c.header, c.ranks)
	require.NoError(t, err)
	for i := range c.runs {
		require.NoError(t, w.Run(c.runs[i].tier, &c.runs[i].Run))
		if slices.Contains(flush, i) {
			w.flush()
		}
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// read gives all that a file holds, or why it is refused.
func read(from io.Reader) (c content, err error) {
	r, err := NewReader(from)
	if err != nil {
		return c, err
	}
	c.header, c.ranks = r.Header(), r.Ranks()
	return c, r.Runs(func(tier event.Tier, run *index.Run) error {
		kept := tierRun{tier, *run}
		kept.Slots, kept.Blocks = slices.Clone(run.Slots), slices.Clone(run.Blocks)
		c.runs = append(c.runs, kept)
		return nil
	})
}

func goldenFile(t testing.TB) []byte {
	file, err := os.ReadFile("../../testdata/golden/snapshot/v1.snapshot")
	require.NoError(t, err)
	return file
}

func TestGoldenFile(t *testing.T) {
	file := goldenFile(t)
	got, err := read(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, golden(), got)
	require.Equal(t, file, written(t, golden(), 3))
	got, err = read(iotest.OneByteReader(bytes.NewReader(file)))
	require.NoError(t, err)
	require.Equal(t, golden(), got)
}

// typed tells whether an error is one of the package's.
func typed(err error) bool {
	for _, known := range []error{ErrForeign, ErrVersion, ErrTorn, ErrCorrupt, ErrIdentity} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

func TestFileCutAnywhereIsTorn(t *testing.T) {
	file := goldenFile(t)
	for n := range file {
		_, err := read(bytes.NewReader(file[:n]))
		want := ErrTorn
		if n == 0 {
			want = ErrForeign
		}
		require.ErrorIs(t, err, want, "cut at %d", n)
	}
	_, err := read(bytes.NewReader(append(file, 0)))
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "data after its end")
}

func TestFileWithAnyBitFlippedIsRefused(t *testing.T) {
	file := goldenFile(t)
	for at := range file {
		for bit := range 8 {
			bad := slices.Clone(file)
			bad[at] ^= 1 << bit
			_, err := read(bytes.NewReader(bad))
			require.True(t, typed(err), "byte %d, bit %d: %v", at, bit, err)
			switch {
			case at < len(magic):
				require.ErrorIs(t, err, ErrForeign)
			case at < len(magic)+4:
				require.ErrorIs(t, err, ErrVersion)
			default:
				require.False(t, errors.Is(err, ErrIdentity), "the checksum is looked at first")
			}
		}
	}
}

// sections gives where each section of a file begins, and its end.
func sections(file []byte) (starts []int) {
	for at := len(magic) + 4; at < len(file); {
		starts = append(starts, at)
		at += sectionPrefix + int(binary.LittleEndian.Uint32(file[at+1:])) + 4
	}
	return append(starts, len(file))
}

func TestSectionMissingDoubledOrMovedIsRefused(t *testing.T) {
	file := goldenFile(t)
	at := sections(file)
	part := func(i int) []byte { return file[at[i]:at[i+1]] }
	join := func(order ...int) (out []byte) {
		out = slices.Clone(file[:at[0]])
		for _, i := range order {
			out = append(out, part(i)...)
		}
		return out
	}
	require.Len(t, at, 8)
	require.Equal(t, file, join(0, 1, 2, 3, 4, 5, 6))
	for _, order := range [][]int{{0, 1, 2, 3, 5, 6}, {0, 1, 2, 3, 4, 4, 5, 6}, {0, 1, 2, 3, 5, 4, 6}, {0, 2, 1, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}, {6}} {
		_, err := read(bytes.NewReader(join(order...)))
		require.ErrorIs(t, err, ErrCorrupt, "%v", order)
	}
}

// sealed gives a file of sections whose checksums are right, whatever they hold.
func sealed(parts ...[]byte) []byte {
	out := preamble()
	crc := crc32.Checksum(out, castagnoli)
	for _, p := range parts {
		framed := append(binary.LittleEndian.AppendUint32([]byte{p[0]}, uint32(len(p)-1)), p[1:]...)
		crc = crc32.Update(crc, castagnoli, framed)
		out = binary.LittleEndian.AppendUint32(append(out, framed...), crc)
	}
	return out
}

func TestContradictionsUnderRightChecksumsAreRefused(t *testing.T) {
	header := func(size, ranks uint64, identity string) []byte {
		b := binary.AppendUvarint([]byte{sectionHeader}, size)
		b = appendString(append(b, make([]byte, 8)...), identity)
		return binary.AppendUvarint(b, ranks)
	}
	good := header(16, 1, Identity)
	rank := func(change func(*Rank)) []byte {
		r := golden().ranks[2]
		change(&r)
		return appendRank([]byte{sectionRank}, &r)
	}
	same := func(*Rank) {}
	runs := func(b ...byte) []byte { return append([]byte{sectionRuns}, b...) }
	one := make([]byte, 16)
	end := []byte{sectionEnd, 0, 0}
	_, err := read(bytes.NewReader(sealed(good, rank(same), end)))
	require.NoError(t, err)
	_, err = read(bytes.NewReader(sealed(good, rank(same), runs(append([]byte{2, 1, 0, 1, 1}, one...)...), []byte{sectionEnd, 1, 1})))
	require.NoError(t, err)
	for name, file := range map[string][]byte{
		"block size 0":        sealed(header(0, 0, Identity), end),
		"block size":          sealed(header(block.MaxSize+1, 0, Identity), end),
		"ranks":               sealed(header(16, maxRanks+1, Identity), end),
		"header too long":     sealed(append(header(16, 0, Identity), 0), end),
		"no rank":             sealed(good, end),
		"rank twice":          sealed(header(16, 2, Identity), rank(same), rank(same), end),
		"rank flags":          sealed(good, append([]byte{sectionRank}, append(make([]byte, 12), 2, 0, 0)...), end),
		"position":            sealed(good, rank(func(r *Rank) { r.Feed.Prints = nil }), end),
		"position at the end": sealed(good, rank(func(r *Rank) { r.Feed.Last = 1<<64 - 1 }), end),
		"streams":             sealed(good, rank(func(r *Rank) { r.Feed.Streams = []byte{9} }), end),
		"run flags":           sealed(good, rank(same), runs(append([]byte{0x82, 1, 0, 1, 1}, one...)...), end),
		"empty set":           sealed(good, rank(same), runs(append([]byte{2, 0, 1, 1}, one...)...), end),
		"member":              sealed(good, rank(same), runs(append([]byte{2, 1, 1, 1, 1}, one...)...), end),
		"set number":          sealed(good, rank(same), runs(append([]byte{0, 0, 1, 1}, one...)...), end),
		"no reference":        sealed(good, rank(same), runs(append([]byte{2, 1, 0, 0, 1}, one...)...), end),
		"references":          sealed(good, rank(same), runs(append([]byte{2, 1, 0, 0x81, 0x20, 1}, one...)...), end),
		"no block":            sealed(good, rank(same), runs(append([]byte{2, 1, 0, 1, 0}, one...)...), end),
		"more blocks":         sealed(good, rank(same), runs(append([]byte{2, 1, 0, 1, 2}, one...)...), end),
		"half a run":          sealed(good, rank(same), runs(2, 1), end),
		"totals":              sealed(good, rank(same), runs(append([]byte{2, 1, 0, 1, 1}, one...)...), []byte{sectionEnd, 1, 2}),
		"run count":           sealed(good, rank(same), runs(append([]byte{2, 1, 0, 1, 1}, one...)...), []byte{sectionEnd, 2, 1}),
		"end too long":        sealed(good, rank(same), []byte{sectionEnd, 0, 0, 0}),
		"kind":                sealed(good, rank(same), []byte{9}, end),
	} {
		_, err := read(bytes.NewReader(file))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	_, err = read(bytes.NewReader(sealed(header(16, 0, "xxh3-64/7"), end)))
	require.ErrorIs(t, err, ErrIdentity)
	require.ErrorContains(t, err, `"xxh3-64/7", expected "xxh3-64/1337/chained"`)
}

func TestOtherFilesAndVersions(t *testing.T) {
	for _, text := range []string{"", "\x7fELF and so on", "DGOSNAP", "[]", string(magic[:4]) + "x"} {
		_, err := read(bytes.NewReader([]byte(text)))
		if text == "DGOSNAP" {
			require.ErrorIs(t, err, ErrTorn)
		} else {
			require.ErrorIs(t, err, ErrForeign, text)
		}
	}
	for version, want := range map[byte]string{0: "version 0, older than 1", 2: "version 2, newer than 1"} {
		file := goldenFile(t)
		file[len(magic)] = version
		_, err := read(bytes.NewReader(file))
		require.ErrorIs(t, err, ErrVersion)
		require.ErrorContains(t, err, want)
	}
}

func TestErrorsOfTheSourceAreGivenAsTheyAre(t *testing.T) {
	file, fault := goldenFile(t), errors.New("disk on fire")
	for n := range file {
		_, err := read(io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(fault)))
		require.ErrorIs(t, err, fault, "after %d bytes", n)
	}
	r, err := NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, fault, r.Runs(func(event.Tier, *index.Run) error { return fault }))
}

func TestWriterRefusesWhatCannotBeRead(t *testing.T) {
	for _, ranks := range [][]Rank{
		{{ID: worker.Rank{ID: 2}}, {ID: worker.Rank{ID: 1}, Slot: 1}},
		{{ID: worker.Rank{ID: 2}}, {ID: worker.Rank{ID: 2}, Slot: 1}},
		{{ID: worker.Rank{ID: 2}}, {ID: worker.Rank{ID: 3}}},
	} {
		_, err := NewWriter(io.Discard, Header{BlockSize: 1}, ranks)
		require.Error(t, err)
	}
	w, err := NewWriter(io.Discard, Header{BlockSize: 1}, []Rank{{}})
	require.NoError(t, err)
	require.Error(t, w.Run(event.Device, &index.Run{Slots: []worker.Slot{0}, References: 1}))
	require.Error(t, w.Run(event.Device, &index.Run{Slots: []worker.Slot{0}, Blocks: blocksOf(1, 1)}))

	fault := errors.New("disk full")
	for n := range goldenFile(t) {
		w, err := NewWriter(&limited{n, fault}, golden().header, golden().ranks)
		for i, run := range golden().runs {
			if err == nil {
				err = w.Run(run.tier, &run.Run)
			}
			if err == nil && i == 3 {
				w.flush()
			}
		}
		if err == nil {
			err = w.Close()
		}
		require.ErrorIs(t, err, fault, "%d bytes", n)
	}
}

// limited takes so many bytes.
type limited struct {
	left int
	err  error
}

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.left {
		return l.left, l.err
	}
	l.left -= len(b)
	return len(b), nil
}

func TestLongRunsAndForeignSlots(t *testing.T) {
	c := content{header: golden().header, ranks: []Rank{{ID: worker.Rank{ID: 1}, Slot: 40}, {ID: worker.Rank{ID: 2}, Slot: 7}}}
	var long []event.Block
	for i := range uint64(3*maxRunParts + 5) {
		long = append(long, event.Block{Hash: block.Hash(i), Engine: block.EngineHash(i + 1)})
	}
	c.runs = []tierRun{
		{event.Device, index.Run{Slots: []worker.Slot{40, 9, 7}, Blocks: long, References: 1 << 20}},
		{event.Device, index.Run{Slots: []worker.Slot{9}, Blocks: long, References: 1}},
		{event.Disk, index.Run{Slots: []worker.Slot{7, 40}, Blocks: blocksOf(1, 2), References: MaxReferences}},
	}
	file := written(t, c, 0) // the same set is told again in the next section
	require.Less(t, len(file), 17*len(long))
	got, err := read(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, event.Disk, got.runs[len(got.runs)-1].tier)
	var together []event.Block
	for i, run := range got.runs[:len(got.runs)-1] {
		require.Equal(t, []worker.Slot{0, 1}, run.Slots, "by position")
		require.EqualValues(t, MaxReferences, run.References)
		require.Equal(t, i > 0, run.HasParent)
		if i > 0 {
			require.Equal(t, together[len(together)-1].Engine, run.Parent)
		}
		together = append(together, run.Blocks...)
	}
	require.Equal(t, long, together)
}

func TestSaveIsAllOrNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "router.snapshot")
	require.NoError(t, Save(path, text("first")))
	fault := errors.New("no")
	require.ErrorIs(t, Save(path, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 5<<20))
		return errors.Join(err, fault)
	}), fault)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	require.NoError(t, Save(path, text("second")))
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, fmt.Sprint(left))
	require.ErrorIs(t, Save(filepath.Join(t.TempDir(), "none", "x"), text("x")), os.ErrNotExist, "no folder")
}

// FuzzRead: whatever the bytes, a typed error or a content that is written as it was read.
func FuzzRead(f *testing.F) {
	f.Add(goldenFile(f))
	f.Add(sealed([]byte{sectionEnd, 0, 0}))
	f.Fuzz(func(t *testing.T, data []byte) {
		check := func(file []byte) {
			c, err := read(bytes.NewReader(file))
			if err != nil {
				require.True(t, typed(err), "%v", err)
				return
			}
			again, err := read(bytes.NewReader(written(t, c)))
			require.NoError(t, err)
			require.Equal(t, c, again)
		}
		check(data)
		// The same bytes as the payloads of sections whose checksums are right.
		var parts [][]byte
		for rest := data; len(rest) > 1; {
			n := min(len(rest), 1+int(rest[0])|int(rest[len(rest)-1])&1<<8)
			parts = append(parts, slices.Concat([]byte{1 + rest[0]%4}, rest[1:n]))
			rest = rest[n:]
		}
		check(sealed(parts...))
	})
}
