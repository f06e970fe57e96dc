package snapshot

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Version is the format that is written, and the only one that is read.
const Version = 1

// Identity names the way in which blocks are hashed: the function, its seed, and how a prompt's blocks are chained.
const Identity = "xxh3-64/1337/chained"

// MaxReferences is the most that a file says of a name. More are written as so many: the block may then be removed too
// early, never too late.
const MaxReferences = 1 << 12

const (
	magic       = "DGOSNAP\x1a"
	maxRanks    = 1 << 16
	maxSection  = 64 << 20 // of a payload; a rank with a million cache salts may need so much
	maxReason   = 4096     // bytes of a reason
	flushAt     = 256 << 10
	maxRunParts = 4096 // blocks of a run; a longer one is cut
)

// The kinds of section.
const (
	sectionHeader = 1 + iota
	sectionRank
	sectionRuns
	sectionEnd
)

// Flags of a run.
const (
	flagParent    = 1 << 0
	flagSet       = 1 << 1
	tierShift     = 4
	flagsKnown    = flagParent | flagSet | 3<<tierShift
	rankHasFeed   = 1
	sectionPrefix = 5 // bytes before a payload
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header says what a file is about.
type Header struct {
	BlockSize int
	Created   time.Time // to the microsecond
}

// Rank is one worker rank of a file.
type Rank struct {
	ID      worker.Rank
	Slot    worker.Slot    // for a Writer: where the index has it. A Reader gives its position in the file
	Blocks  int            // held on the device when it was saved; hidden ones, which no run gives, are counted
	Feed    *feed.Position // where its feed stood; nil: the host applied its events
	Partial string         // without a feed: why its view is partial, or ""
}

// preamble is what stands before the first section.
func preamble() []byte {
	return binary.LittleEndian.AppendUint32([]byte(magic), Version)
}
