package approx

import "errors"

// Errors; whoever gets one has changed nothing.
var (
	ErrInvalid        = errors.New("invalid argument")                 // hashes and sequence hashes differ in number; a negative count; a slot out of range
	ErrDuplicateLease = errors.New("request holds blocks already")     // Acquire of an id that was not released
	ErrLeaseNotFound  = errors.New("request holds no presumed blocks") // an id never acquired, released, on a TTL rank, or of a rank cleared since
)
