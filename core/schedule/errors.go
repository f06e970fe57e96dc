package schedule

import "errors"

// ErrInvalid: a weight, an override or a constraint is out of range. The message names each field, its value and the
// range; the caller passes it on.
var ErrInvalid = errors.New("invalid argument")

// Errors of Eligible. For a pinned worker they are tried in this order, and the first that holds is returned.
var (
	// ErrNotAllowed: the pinned worker is not in the request's own allow set. The request contradicts itself.
	ErrNotAllowed = errors.New("pinned worker is not allowed")
	// ErrUnknownWorker: the pinned worker is not registered. Pin another, or none.
	ErrUnknownWorker = errors.New("pinned worker is not registered")
	// ErrUnknownRank: the pinned worker does not have the pinned rank.
	ErrUnknownRank = errors.New("pinned worker does not have this rank")
	// ErrMissingTaint: the pinned worker lacks a required taint.
	ErrMissingTaint = errors.New("pinned worker lacks a required taint")

	// ErrOverloaded: every rank that fits, or the pinned one, is beyond a limit. Try again when it has less to do.
	ErrOverloaded = errors.New("overloaded")
	// ErrNoWorkers: no worker is pinned and none fits. Try again when one has joined.
	ErrNoWorkers = errors.New("no eligible worker")
)
