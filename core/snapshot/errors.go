package snapshot

import "errors"

// Why a file is refused. Each error that is returned wraps one of them, and says what was found and what was expected.
var (
	// ErrForeign: it is no snapshot.
	ErrForeign = errors.New("not a snapshot of a router")
	// ErrVersion: it is a snapshot, of a format that this version does not read.
	ErrVersion = errors.New("snapshot of another version")
	// ErrTorn: it ends early. The writer was interrupted, or the copy of the file was.
	ErrTorn = errors.New("snapshot ends early")
	// ErrCorrupt: a checksum is wrong, or a number contradicts the format.
	ErrCorrupt = errors.New("snapshot is corrupt")
	// ErrIdentity: the blocks are hashed in another way than this version does, so they could never match.
	ErrIdentity = errors.New("snapshot of other block hashes")
)
