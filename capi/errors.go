package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/logs"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/radix"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/serve"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// errPanic: a call panicked. The state it worked on may be lost, the process is not.
var errPanic = errors.New("internal fault")

// statuses maps each sentinel to the status that C callers see. It is the only such table: an error that wraps none of
// them is DGO_INTERNAL. The first match counts.
var statuses = []struct {
	err    error
	status int32
}{
	{errPanic, C.DGO_INTERNAL},
	{errNoMemory, C.DGO_INTERNAL},
	{errBadHandle, C.DGO_BAD_HANDLE},
	{errHandleClosed, C.DGO_CLOSED},
	{errTooManyHandles, C.DGO_OVERLOADED},
	{errArgument, C.DGO_INVALID_ARGUMENT},
	{errCannotConnect, C.DGO_CANNOT_CONNECT},

	{router.ErrNotImplemented, C.DGO_NOT_IMPLEMENTED},
	{router.ErrInvalidArgument, C.DGO_INVALID_ARGUMENT},
	{router.ErrRequestNotFound, C.DGO_REQUEST_NOT_FOUND},
	{router.ErrDuplicateRequest, C.DGO_DUPLICATE_REQUEST},
	{router.ErrWorkerNotFound, C.DGO_WORKER_NOT_FOUND},
	{router.ErrDuplicateWorker, C.DGO_DUPLICATE_WORKER},
	{router.ErrNoWorkers, C.DGO_NO_WORKERS},
	{router.ErrOverloaded, C.DGO_OVERLOADED},
	{router.ErrSessionMoved, C.DGO_SESSION_MOVED},
	{router.ErrQueueLimitExceeded, C.DGO_QUEUE_LIMIT_EXCEEDED},
	{router.ErrTimeout, C.DGO_TIMEOUT},
	{router.ErrCancelled, C.DGO_CANCELLED},
	{router.ErrEventRefused, C.DGO_EVENT_REFUSED},
	{router.ErrCannotConnect, C.DGO_CANNOT_CONNECT},
	{router.ErrFileError, C.DGO_FILE_ERROR},
	{router.ErrSnapshotRefused, C.DGO_SNAPSHOT_REFUSED},
	{router.ErrClosed, C.DGO_CLOSED},
	{stream.ErrEmpty, C.DGO_TIMEOUT},
	{stream.ErrEnded, C.DGO_ENDED},
	{stream.ErrCancelled, C.DGO_CANCELLED},
	{stream.ErrClosed, C.DGO_CLOSED},
	{stream.ErrNoBell, C.DGO_OVERLOADED},
	{logs.ErrLevel, C.DGO_INVALID_ARGUMENT},
	{mocker.ErrConfig, C.DGO_INVALID_ARGUMENT},
	{mocker.ErrRequest, C.DGO_INVALID_ARGUMENT},
	{mocker.ErrBusy, C.DGO_OVERLOADED},
	{mocker.ErrStopped, C.DGO_DISCONNECTED},
	{serve.ErrConfig, C.DGO_INVALID_ARGUMENT},
	{serve.ErrListen, C.DGO_CANNOT_CONNECT},
	{fleet.ErrDuplicate, C.DGO_DUPLICATE_WORKER},
	{publish.ErrConfig, C.DGO_INVALID_ARGUMENT},
	{publish.ErrEvent, C.DGO_INVALID_ARGUMENT},
	{publish.ErrClosed, C.DGO_CLOSED},
	{radix.ErrTier, C.DGO_INVALID_ARGUMENT},
	{radix.ErrRanks, C.DGO_OVERLOADED},
	{radix.ErrUnknownBlock, C.DGO_EVENT_REFUSED},
	{index.ErrUnknownParent, C.DGO_EVENT_REFUSED},
	{index.ErrBadChain, C.DGO_EVENT_REFUSED},
	{index.ErrClosed, C.DGO_CLOSED},
	{fleet.ErrNotFound, C.DGO_WORKER_NOT_FOUND},
	{fleet.ErrInvalid, C.DGO_INVALID_ARGUMENT},
	{fleet.ErrClosed, C.DGO_CLOSED},
	{relay.ErrRank, C.DGO_WORKER_NOT_FOUND},
	{relay.ErrRelayed, C.DGO_INVALID_ARGUMENT},
	{zmq.ErrEndpoint, C.DGO_INVALID_ARGUMENT},

	{mailbox.ErrUnknown, C.DGO_REQUEST_NOT_FOUND},
	{mailbox.ErrAhead, C.DGO_OVERLOADED},
	{plane.ErrInvalidArgument, C.DGO_INVALID_ARGUMENT},
	{plane.ErrNoInstances, C.DGO_NO_WORKERS},
	{plane.ErrInstanceNotFound, C.DGO_WORKER_NOT_FOUND},
	{plane.ErrCannotConnect, C.DGO_CANNOT_CONNECT},
	{plane.ErrNoServer, C.DGO_CANNOT_CONNECT},
	{plane.ErrTimeout, C.DGO_TIMEOUT},
	{plane.ErrOverloaded, C.DGO_OVERLOADED},
	{plane.ErrUnavailable, C.DGO_CANNOT_CONNECT},
	{plane.ErrDisconnected, C.DGO_DISCONNECTED},
	{plane.ErrCancelled, C.DGO_CANCELLED},
	{plane.ErrWorker, C.DGO_WORKER_ERROR}, // after what its type means besides
	{plane.ErrProtocol, C.DGO_DISCONNECTED},
	{plane.ErrTooLarge, C.DGO_INVALID_ARGUMENT},
	{plane.ErrClosed, C.DGO_CLOSED},
	{discovery.ErrInvalid, C.DGO_INVALID_ARGUMENT},
	{discovery.ErrExists, C.DGO_INVALID_ARGUMENT},
	{discovery.ErrNotFound, C.DGO_REQUEST_NOT_FOUND},
	{discovery.ErrUnreachable, C.DGO_CANNOT_CONNECT},
	{discovery.ErrUnavailable, C.DGO_FILE_ERROR},
	{discovery.ErrClosed, C.DGO_CLOSED},
}

func statusOf(err error) int32 {
	if err == nil {
		return C.DGO_OK
	}
	for i := range statuses {
		if errors.Is(err, statuses[i].err) {
			return statuses[i].status
		}
	}
	return C.DGO_INTERNAL
}
