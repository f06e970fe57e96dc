package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A Writer writes one file: the ranks first, then their runs, then the end. It is not safe for concurrent use.
type Writer struct {
	to  io.Writer
	crc uint32
	err error // the first one; nothing is written after it

	places map[worker.Slot]uint32 // a rank's position by its slot
	runs   []byte                 // the payload of a section to come
	sets   map[string]uint64      // those of that section, by their encoding
	work   []uint32
	set    []byte
	nRuns  uint64
	blocks uint64
}

// NewWriter begins a file. The ranks must be in ascending order, each once. A rank whose feed learnt so much that it does
// not fit is left out, and so are its blocks.
func NewWriter(to io.Writer, h Header, ranks []Rank) (*Writer, error) {
	w := &Writer{to: to, places: make(map[worker.Slot]uint32, len(ranks)), sets: make(map[string]uint64)}
	var sections [][]byte
	for i := range ranks {
		if i > 0 && ranks[i-1].ID.Compare(ranks[i].ID) >= 0 {
			return nil, fmt.Errorf("ranks %v and %v are not in ascending order", ranks[i-1].ID, ranks[i].ID)
		}
		if payload := appendRank(nil, &ranks[i]); len(payload) <= maxSection {
			w.places[ranks[i].Slot] = uint32(len(sections))
			sections = append(sections, payload)
		}
	}
	if len(sections) > maxRanks || len(w.places) != len(sections) {
		return nil, fmt.Errorf("%d ranks in %d slots: expected at most %d, each with a slot of its own", len(sections), len(w.places), maxRanks)
	}
	start := preamble()
	w.crc = crc32.Checksum(start, castagnoli)
	w.write(start)
	header := binary.AppendUvarint(nil, uint64(h.BlockSize))
	header = binary.LittleEndian.AppendUint64(header, uint64(h.Created.UnixMicro()))
	header = appendString(header, Identity)
	w.section(sectionHeader, binary.AppendUvarint(header, uint64(len(sections))))
	for _, payload := range sections {
		w.section(sectionRank, payload)
	}
	return w, w.err
}

func appendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendRank(dst []byte, r *Rank) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, r.ID.ID)
	dst = binary.LittleEndian.AppendUint32(dst, r.ID.DPRank)
	flags := byte(0)
	if r.Feed != nil {
		flags = rankHasFeed
	}
	dst = binary.AppendUvarint(append(dst, flags), uint64(r.Blocks))
	dst = appendString(dst, clip(r.Partial))
	if p := r.Feed; p != nil {
		dst = binary.LittleEndian.AppendUint64(dst, p.Last)
		dst = binary.LittleEndian.AppendUint64(dst, p.Seed)
		dst = binary.AppendUvarint(dst, uint64(len(p.Prints)))
		for _, print := range p.Prints {
			dst = binary.LittleEndian.AppendUint64(dst, print)
		}
		dst = appendString(appendString(dst, clip(p.Partial)), p.Streams)
	}
	return dst
}

func clip(reason string) string { return reason[:min(len(reason), maxReason)] }

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(b)
	}
}

func (w *Writer) section(kind byte, payload []byte) {
	var prefix [sectionPrefix]byte
	prefix[0] = kind
	binary.LittleEndian.PutUint32(prefix[1:], uint32(len(payload)))
	w.crc = crc32.Update(crc32.Update(w.crc, castagnoli, prefix[:]), castagnoli, payload)
	w.write(prefix[:])
	w.write(payload)
	w.write(binary.LittleEndian.AppendUint32(nil, w.crc))
}

var errEmptyRun = errors.New("a run without blocks or references")

// Run writes a run of one tier, for those of its slots that are ranks of the file. Runs come parents first. It keeps
// nothing of the run.
func (w *Writer) Run(tier event.Tier, r *index.Run) error {
	if len(r.Blocks) == 0 || r.References == 0 || tier > event.External {
		return errEmptyRun
	}
	w.work = w.work[:0]
	for _, slot := range r.Slots {
		if place, ok := w.places[slot]; ok {
			w.work = append(w.work, place)
		}
	}
	if len(w.work) == 0 {
		return w.err
	}
	slices.Sort(w.work)
	hasParent, parent := r.HasParent, r.Parent
	for part := range slices.Chunk(r.Blocks, maxRunParts) {
		flags := byte(tier) << tierShift
		if hasParent {
			flags |= flagParent
		}
		w.appendSet(flags)
		w.runs = binary.AppendUvarint(w.runs, uint64(min(r.References, MaxReferences)))
		if hasParent {
			w.runs = binary.LittleEndian.AppendUint64(w.runs, uint64(parent))
		}
		w.runs = binary.AppendUvarint(w.runs, uint64(len(part)))
		for i := range part {
			w.runs = binary.LittleEndian.AppendUint64(w.runs, uint64(part[i].Hash))
			w.runs = binary.LittleEndian.AppendUint64(w.runs, uint64(part[i].Engine))
		}
		w.nRuns++
		w.blocks += uint64(len(part))
		hasParent, parent = true, part[len(part)-1].Engine
		if len(w.runs) >= flushAt {
			w.flush()
		}
	}
	return w.err
}

// appendSet appends a run's flags and the set of w.work.
func (w *Writer) appendSet(flags byte) {
	w.set = binary.AppendUvarint(w.set[:0], uint64(len(w.work)))
	before := uint32(0)
	for _, place := range w.work {
		w.set = binary.AppendUvarint(w.set, uint64(place-before))
		before = place
	}
	if number, known := w.sets[string(w.set)]; known {
		w.runs = binary.AppendUvarint(append(w.runs, flags), number)
		return
	}
	w.sets[string(w.set)] = uint64(len(w.sets))
	w.runs = append(append(w.runs, flags|flagSet), w.set...)
}

func (w *Writer) flush() {
	w.section(sectionRuns, w.runs)
	w.runs = w.runs[:0]
	clear(w.sets)
}

// Close writes the end. The file is whole only then. It does not close what is written to.
func (w *Writer) Close() error {
	if len(w.runs) > 0 {
		w.flush()
	}
	w.section(sectionEnd, binary.AppendUvarint(binary.AppendUvarint(nil, w.nRuns), w.blocks))
	return w.err
}
