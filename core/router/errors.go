package router

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Errors of this package. Each returned error wraps one of them and names the offending value and what was expected.
var (
	// ErrInvalidArgument: a value is out of its range or malformed. Nothing changed; correct the call.
	ErrInvalidArgument = schedule.ErrInvalid
	// ErrNotImplemented: the value asks for a feature this version does not have. Nothing changed.
	ErrNotImplemented = errors.New("not implemented")
	// ErrRequestNotFound: the request id is not booked, or was freed before.
	ErrRequestNotFound = load.ErrRequestNotFound
	// ErrDuplicateRequest: the request id is booked already. Nothing changed; free it first or use another id.
	ErrDuplicateRequest = load.ErrDuplicateRequest
	// ErrWorkerNotFound: no such worker, or the worker has no such rank.
	ErrWorkerNotFound = errors.New("worker not found")
	// ErrDuplicateWorker: the worker id is registered with other endpoints. Remove it first.
	ErrDuplicateWorker = errors.New("duplicate worker")
	// ErrNoWorkers: no registered worker is eligible for the request. It may succeed when one joins.
	ErrNoWorkers = schedule.ErrNoWorkers
	// ErrOverloaded: every rank that fits the request, or the pinned one, is beyond a limit (active_*_threshold). It may succeed
	// when requests end. It is never ErrNoWorkers.
	ErrOverloaded = schedule.ErrOverloaded
	// ErrSessionMoved: with session_affinity_mode "hard", the session's own rank could not be chosen. Nothing was booked, and the
	// session is tied to no rank any more: asked again, it is tied anew.
	ErrSessionMoved = affinity.ErrMoved
	// ErrQueueLimitExceeded: the request would have to wait, and as many wait as may. It is a *queue.LimitError. Try again later.
	ErrQueueLimitExceeded = queue.ErrQueueLimit
	// ErrTimeout: the request would have to wait, or waited, longer than it may.
	ErrTimeout = errors.New("timeout")
	// ErrCancelled: the request was cancelled while it waited.
	ErrCancelled = errors.New("cancelled")
	// ErrEventRefused: the event contradicts what the rank holds (unknown parent, broken chain). Nothing changed.
	ErrEventRefused = errors.New("event refused")
	// ErrFileError: a file cannot be read or written, or is no regular file. Nothing changed, of the file either.
	ErrFileError = errors.New("file error")
	// ErrSnapshotRefused: the file is no snapshot that this router can load: foreign, of another version or block size, torn or
	// corrupt. No rank has anything of it.
	ErrSnapshotRefused = errors.New("snapshot refused")
	// ErrCannotConnect: an endpoint cannot be bound. Nothing was started; use another.
	ErrCannotConnect = errors.New("cannot bind")
	// ErrClosed: the router was closed.
	ErrClosed = errors.New("the router is closed")
)
