package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A Reader reads one file. It is not safe for concurrent use.
type Reader struct {
	from    io.Reader
	crc     uint32
	offset  int64 // of the section that is read
	at      int64 // bytes read
	payload bytes.Buffer

	header Header
	ranks  []Rank

	// What of a section of runs is used again.
	sets    [][]worker.Slot
	members []worker.Slot
	blocks  []event.Block
}

// NewReader reads the header and the ranks. Every error but one of from itself is one of errors.go.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{from: from}
	start := make([]byte, len(magic)+4)
	n, err := r.fill(start)
	switch {
	case err != nil && !errors.Is(err, ErrTorn):
		return nil, err
	case string(start[:min(n, len(magic))]) != magic[:min(n, len(magic))]:
		return nil, fmt.Errorf("%w: it begins with %q, expected %q", ErrForeign, start[:min(n, len(magic))], magic)
	case err != nil && n == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrForeign)
	case err != nil:
		return nil, err
	}
	if v := binary.LittleEndian.Uint32(start[len(magic):]); v > Version {
		return nil, fmt.Errorf("%w: version %d, newer than %d, the only one that is read here", ErrVersion, v, Version)
	} else if v < Version {
		return nil, fmt.Errorf("%w: version %d, older than %d, the only one that is read here", ErrVersion, v, Version)
	}
	r.crc = crc32.Checksum(start, castagnoli)
	ranks, err := r.readHeader()
	if err != nil {
		return nil, err
	}
	for range ranks {
		if err := r.readRank(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Header says what the file is about.
func (r *Reader) Header() Header { return r.header }

// Ranks gives the ranks in ascending order; the slot of each is its position. The reader goes on using the slice.
func (r *Reader) Ranks() []Rank { return r.ranks }

// fill reads exactly len(b) bytes, and tells how many there were.
func (r *Reader) fill(b []byte) (int, error) {
	n, err := io.ReadFull(r.from, b)
	r.at += int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return n, r.torn()
	}
	return n, err
}

func (r *Reader) torn() error {
	return fmt.Errorf("%w: %d bytes, and no end", ErrTorn, r.at)
}

func (r *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: section at byte %d: %s", ErrCorrupt, r.offset, fmt.Sprintf(format, args...))
}

// next reads a section into r.payload, its checksum verified.
func (r *Reader) next() (kind byte, err error) {
	r.offset = r.at
	var prefix [sectionPrefix]byte
	if _, err := r.fill(prefix[:]); err != nil {
		return 0, err
	}
	length := int64(binary.LittleEndian.Uint32(prefix[1:]))
	if length > maxSection {
		return 0, r.corrupt("%d bytes, expected at most %d", length, maxSection)
	}
	r.payload.Reset()
	n, err := io.CopyN(&r.payload, r.from, length) // grows with what is there
	r.at += n
	if err == io.EOF {
		return 0, r.torn()
	} else if err != nil {
		return 0, err
	}
	var sum [4]byte
	if _, err := r.fill(sum[:]); err != nil {
		return 0, err
	}
	r.crc = crc32.Update(crc32.Update(r.crc, castagnoli, prefix[:]), castagnoli, r.payload.Bytes())
	if got := binary.LittleEndian.Uint32(sum[:]); got != r.crc {
		return 0, r.corrupt("checksum %08x, expected %08x", got, r.crc)
	}
	return prefix[0], nil
}

// open reads the next section, which must be of a kind.
func (r *Reader) open(want byte) (cursor, error) {
	kind, err := r.next()
	if err == nil && kind != want {
		err = r.corrupt("kind %d, expected %d", kind, want)
	}
	return cursor{rest: r.payload.Bytes()}, err
}

func (r *Reader) readHeader() (ranks uint64, err error) {
	c, err := r.open(sectionHeader)
	if err != nil {
		return 0, err
	}
	size := c.uvarint(block.MaxSize)
	r.header = Header{BlockSize: int(size), Created: time.UnixMicro(int64(c.uint64()))}
	identity := string(c.string(maxReason))
	ranks = c.uvarint(maxRanks)
	switch {
	case c.bad != "":
		return 0, r.corrupt("%s", c.bad)
	case identity != Identity:
		return 0, fmt.Errorf("%w: %q, expected %q", ErrIdentity, identity, Identity)
	case len(c.rest) > 0 || size == 0:
		return 0, r.corrupt("block size %d, %d bytes too many", size, len(c.rest))
	}
	return ranks, nil
}

func (r *Reader) readRank() error {
	c, err := r.open(sectionRank)
	if err != nil {
		return err
	}
	rank := Rank{ID: worker.Rank{ID: c.uint64(), DPRank: c.uint32()}, Slot: worker.Slot(len(r.ranks))}
	flags := c.byte()
	rank.Blocks = int(c.uvarint(1 << 48))
	rank.Partial = string(c.string(maxReason))
	if flags == rankHasFeed {
		at := &feed.Position{Last: c.uint64(), Seed: c.uint64()}
		for range c.uvarint(uint64(len(c.rest) / 8)) {
			at.Prints = append(at.Prints, c.uint64())
		}
		at.Partial = string(c.string(maxReason))
		at.Streams = bytes.Clone(c.string(len(c.rest)))
		rank.Feed = at
	}
	switch n := len(r.ranks); {
	case c.bad != "" || len(c.rest) > 0 || flags > rankHasFeed:
		return r.corrupt("rank %d, flags %d: %s, %d bytes too many", n, flags, c.bad, len(c.rest))
	case n > 0 && r.ranks[n-1].ID.Compare(rank.ID) >= 0:
		return r.corrupt("rank %v follows %v", rank.ID, r.ranks[n-1].ID)
	}
	if rank.Feed != nil {
		if err := rank.Feed.Check(); err != nil {
			return r.corrupt("rank %v: %v", rank.ID, err)
		}
	}
	r.ranks = append(r.ranks, rank)
	return nil
}

// Runs gives every run to f, once, parents first; its slots are positions in Ranks, ascending. Slots and blocks are valid
// during the call only. It returns the first error of f as it is. What was given out is right only if it returns nil.
func (r *Reader) Runs(f func(event.Tier, *index.Run) error) error {
	var runs, blocks uint64
	for {
		kind, err := r.next()
		if err != nil {
			return err
		}
		c := cursor{rest: r.payload.Bytes()}
		switch kind {
		case sectionRuns:
			r.sets, r.members = r.sets[:0], r.members[:0]
			for len(c.rest) > 0 {
				tier, run := r.run(&c)
				if c.bad != "" {
					return r.corrupt("run %d: %s", runs, c.bad)
				}
				runs++
				blocks += uint64(len(run.Blocks))
				if err := f(tier, &run); err != nil {
					return err
				}
			}
		case sectionEnd:
			wantRuns, wantBlocks := c.uvarint(1<<63), c.uvarint(1<<63)
			if c.bad != "" || len(c.rest) > 0 || wantRuns != runs || wantBlocks != blocks {
				return r.corrupt("%d runs with %d blocks, expected %d with %d", runs, blocks, wantRuns, wantBlocks)
			}
			return r.end()
		default:
			return r.corrupt("kind %d, expected %d or %d", kind, sectionRuns, sectionEnd)
		}
	}
}

func (r *Reader) end() error {
	r.offset = r.at
	switch n, err := io.ReadFull(r.from, make([]byte, 1)); {
	case n > 0:
		return r.corrupt("data after its end")
	case err != io.EOF:
		return err
	}
	return nil
}

// run reads one run; c.bad says what is wrong with it.
func (r *Reader) run(c *cursor) (event.Tier, index.Run) {
	flags := c.byte()
	if flags&^flagsKnown != 0 {
		c.fail("flags %#x", flags)
	}
	run := index.Run{HasParent: flags&flagParent != 0}
	if flags&flagSet != 0 {
		r.sets = append(r.sets, r.readSet(c))
		run.Slots = r.sets[len(r.sets)-1]
	} else if number := c.uvarint(uint64(len(r.sets))); number < uint64(len(r.sets)) {
		run.Slots = r.sets[number]
	} else {
		c.fail("set %d of %d", number, len(r.sets))
	}
	run.References = uint32(c.uvarint(MaxReferences))
	if run.HasParent {
		run.Parent = block.EngineHash(c.uint64())
	}
	n := c.uvarint(uint64(min(maxRunParts, len(c.rest)/16)))
	if c.bad == "" && (n == 0 || run.References == 0) {
		c.fail("%d blocks with %d references", n, run.References)
	}
	r.blocks = r.blocks[:0]
	for range n {
		r.blocks = append(r.blocks, event.Block{Hash: block.Hash(c.uint64()), Engine: block.EngineHash(c.uint64())})
	}
	run.Blocks = r.blocks
	return event.Tier(flags >> tierShift), run
}

func (r *Reader) readSet(c *cursor) []worker.Slot {
	n := c.uvarint(uint64(min(len(r.ranks), len(c.rest))))
	from, place := len(r.members), uint64(0)
	for i := range n {
		step := c.uvarint(uint64(len(r.ranks)))
		if place += step; place >= uint64(len(r.ranks)) || i > 0 && step == 0 {
			c.fail("rank %d of %d in a set", place, len(r.ranks))
			return nil
		}
		r.members = append(r.members, worker.Slot(place))
	}
	if n == 0 {
		c.fail("an empty set")
	}
	return r.members[from:len(r.members):len(r.members)]
}
