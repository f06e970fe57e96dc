package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/stream"
)

// source is a stream with what closes it and whatever fills it.
type source struct {
	*stream.Stream
	close func()
}

var streams table[source]

// addStream gives a stream its handle.
func addStream(s *stream.Stream, shut func(), result *C.dgo_stream) error {
	h, err := streams.add(&source{s, shut})
	if err != nil {
		shut()
		return err
	}
	*result = C.dgo_stream(h)
	return nil
}

// streamCall is call with the stream of a handle.
func streamCall(h C.dgo_stream, e *C.dgo_error, body func(s *source) error) C.dgo_status {
	return call(e, func() error {
		s, err := streams.find(handle(h))
		if err != nil {
			return err
		}
		return body(s)
	})
}

// taken has batches between two calls.
var taken = sync.Pool{New: func() any { return new(stream.Batch) }}

//export dgo_go_stream_next
func dgo_go_stream_next(h C.dgo_stream, timeout C.uint32_t, items *C.dgo_buffer, ends *C.size_t, capacity C.size_t, count *C.size_t, e *C.dgo_error) C.dgo_status {
	return streamCall(h, e, func(s *source) error {
		if err := checkBuffer(items, "items"); err != nil {
			return err
		}
		if err := out(count, "count"); err != nil {
			return err
		}
		if capacity == 0 || capacity > C.DGO_STREAM_ITEMS_MAX {
			return fmt.Errorf("%w: capacity=%d, expected 1 .. %d", errArgument, capacity, C.DGO_STREAM_ITEMS_MAX)
		}
		var room []C.size_t
		if ends != nil {
			var err error
			if room, err = view[C.size_t](ends, capacity, C.DGO_STREAM_ITEMS_MAX, "ends"); err != nil {
				return err
			}
		}
		if err := checkWait(timeout); err != nil {
			return err
		}
		b := taken.Get().(*stream.Batch)
		defer taken.Put(b)
		b.Reset()
		if err := nextItems(s, b, int(capacity), time.Duration(timeout)*time.Millisecond); err != nil {
			return err
		}
		if err := give(items, b.Data); err != nil {
			return err
		}
		for i := range min(len(room), len(b.Ends)) {
			room[i] = C.size_t(b.Ends[i])
		}
		*count = C.size_t(len(b.Ends))
		return nil
	})
}

func nextItems(s *source, b *stream.Batch, n int, limit time.Duration) error {
	if limit == 0 {
		return s.Take(b, n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.Next(ctx, b, n)
}

// checkWait checks how long a call may wait.
func checkWait(timeout C.uint32_t) error {
	if timeout > C.DGO_WAIT_MS_MAX {
		return fmt.Errorf("%w: timeout_ms=%d, expected 0 .. %d", errArgument, uint32(timeout), C.DGO_WAIT_MS_MAX)
	}
	return nil
}

//export dgo_go_stream_fd
func dgo_go_stream_fd(h C.dgo_stream, result *C.int, e *C.dgo_error) C.dgo_status {
	return streamCall(h, e, func(s *source) error {
		if err := out(result, "fd"); err != nil {
			return err
		}
		fd, err := s.Descriptor()
		if err == nil {
			*result = C.int(fd)
		}
		return err
	})
}

//export dgo_go_stream_cancel
func dgo_go_stream_cancel(h C.dgo_stream, flags C.uint32_t, e *C.dgo_error) C.dgo_status {
	return streamCall(h, e, func(s *source) error {
		switch flags {
		case 0:
			s.Stop()
		case C.DGO_CANCEL_KILL:
			s.Kill()
		default:
			return fmt.Errorf("%w: flags=%#x, expected 0 or DGO_CANCEL_KILL", errArgument, uint32(flags))
		}
		return nil
	})
}

//export dgo_go_stream_close
func dgo_go_stream_close(h C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := streams.remove(handle(h))
		if s != nil {
			s.close()
		}
		return err
	})
}
