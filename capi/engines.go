package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
)

// enginesCall is endpointCall with the engines that serve the endpoint.
func enginesCall(h C.dgo_runtime, p *C.char, n C.size_t, e *C.dgo_error, create bool, body func(s *engineworker.Set) error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		s, err := m.Engines(at, engineworker.Options{Log: journal}, create)
		if errors.Is(err, mailbox.ErrUnknown) {
			return fmt.Errorf("%w: %w", fleet.ErrNotFound, err)
		}
		if err != nil {
			return err
		}
		return body(s)
	})
}

//export dgo_go_runtime_add_engine
func dgo_go_runtime_add_engine(h C.dgo_runtime, p *C.char, n C.size_t, config *C.char, size C.size_t, id *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return enginesCall(h, p, n, e, true, func(s *engineworker.Set) error {
		if err := out(id, "worker_id"); err != nil {
			return err
		}
		raw, err := jsonView(config, size, "config")
		if err != nil {
			return err
		}
		spec, err := fleet.ParseSpec(raw)
		if err != nil {
			return err
		}
		worker, err := s.Add(spec)
		if err == nil {
			*id = C.uint64_t(worker)
		}
		return connected(err)
	})
}

//export dgo_go_runtime_watch_engines
func dgo_go_runtime_watch_engines(h C.dgo_runtime, p *C.char, n C.size_t, path *C.char, size C.size_t, e *C.dgo_error) C.dgo_status {
	return enginesCall(h, p, n, e, true, func(s *engineworker.Set) error {
		name, ok, err := text(path, size, "path")
		if err == nil && !ok {
			err = fmt.Errorf("%w: path is NULL", errArgument)
		}
		if err == nil {
			err = s.Watch(name)
		}
		var file *fs.PathError
		if errors.As(err, &file) {
			return fmt.Errorf("%w: %w", router.ErrFileError, err)
		}
		return err
	})
}

//export dgo_go_runtime_engines
func dgo_go_runtime_engines(h C.dgo_runtime, p *C.char, n C.size_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return enginesCall(h, p, n, e, true, func(s *engineworker.Set) error {
		if err := checkBuffer(b, "engines"); err != nil {
			return err
		}
		return giveJSON(b, s.State())
	})
}

//export dgo_go_runtime_drain_engine
func dgo_go_runtime_drain_engine(h C.dgo_runtime, p *C.char, n C.size_t, id C.uint64_t, draining C.int32_t, e *C.dgo_error) C.dgo_status {
	return enginesCall(h, p, n, e, false, func(s *engineworker.Set) error { return s.Drain(uint64(id), draining != 0) })
}

//export dgo_go_runtime_remove_engine
func dgo_go_runtime_remove_engine(h C.dgo_runtime, p *C.char, n C.size_t, id C.uint64_t, flags C.uint32_t, e *C.dgo_error) C.dgo_status {
	return enginesCall(h, p, n, e, false, func(s *engineworker.Set) error {
		kill, err := killFlag(flags)
		if err != nil {
			return err
		}
		return s.Remove(uint64(id), !kill)
	})
}
