package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/mockworker"
	"github.com/dynamo-go/dynamo-go/core/runtime"
)

// errCannotConnect: an address cannot be listened on. Use another.
var errCannotConnect = errors.New("cannot listen")

var mockers table[engine]

// engine is a mocker, by itself or behind an endpoint.
type engine struct {
	*mocker.Mocker
	worker *mockworker.Worker // nil: by itself
}

func (e *engine) close() error {
	if e.worker != nil {
		e.worker.Close()
		return nil
	}
	return e.Mocker.Close()
}

// addEngine gives an engine a handle, or closes it.
func addEngine(m *engine, result *C.dgo_mocker) error {
	h, err := mockers.add(m)
	if err != nil {
		return errors.Join(err, m.close())
	}
	*result = C.dgo_mocker(h)
	return nil
}

//export dgo_go_mocker_new
func dgo_go_mocker_new(p *C.char, n C.size_t, result *C.dgo_mocker, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "mocker"); err != nil {
			return err
		}
		raw, err := bytesView(p, n, "config")
		if err != nil {
			return err
		}
		cfg := mocker.DefaultConfig()
		if raw != nil {
			if cfg, err = mocker.ParseConfig(raw); err != nil {
				return err
			}
		}
		m, err := mocker.New(cfg)
		if err != nil && statusOf(err) == C.DGO_INTERNAL {
			err = fmt.Errorf("%w: %w", errCannotConnect, err)
		}
		if err != nil {
			return err
		}
		return addEngine(&engine{Mocker: m}, result)
	})
}

//export dgo_go_runtime_mocker
func dgo_go_runtime_mocker(h C.dgo_runtime, p *C.char, n C.size_t, id C.uint64_t, config *C.char, size C.size_t, result *C.dgo_mocker, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(_ *mailbox.Mailbox, at *runtime.Endpoint) error {
		if err := out(result, "mocker"); err != nil {
			return err
		}
		raw, err := bytesView(config, size, "config")
		if err != nil {
			return err
		}
		cfg := mocker.DefaultConfig()
		if raw != nil {
			if cfg, err = mocker.ParseConfig(raw); err != nil {
				return err
			}
		}
		w, err := mockworker.Start(at, uint64(id), cfg)
		if err != nil {
			return connected(err)
		}
		return addEngine(&engine{w.Engine(), w}, result)
	})
}

//export dgo_go_mocker_leave
func dgo_go_mocker_leave(h C.dgo_mocker, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		m, err := mockers.find(handle(h))
		if err != nil || m.worker == nil {
			return err
		}
		return m.worker.Leave()
	})
}

//export dgo_go_mocker_info
func dgo_go_mocker_info(h C.dgo_mocker, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		m, err := mockers.find(handle(h))
		if err != nil {
			return err
		}
		if err := checkBuffer(b, "info"); err != nil {
			return err
		}
		return giveJSON(b, struct {
			mocker.Info
			Stats mocker.Stats `json:"stats"`
		}{m.Info(), m.Stats()})
	})
}

//export dgo_go_mocker_generate
func dgo_go_mocker_generate(h C.dgo_mocker, tokens *C.uint32_t, n C.size_t, options *C.char, size C.size_t, result *C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		m, err := mockers.find(handle(h))
		if err != nil {
			return err
		}
		if err := out(result, "stream"); err != nil {
			return err
		}
		prompt, err := tokenView(tokens, n)
		if err != nil {
			return err
		}
		raw, err := bytesView(options, size, "options")
		if err != nil {
			return err
		}
		o := mocker.DefaultGenerateOptions()
		if raw != nil {
			if o, err = mocker.ParseGenerateOptions(raw); err != nil {
				return err
			}
		}
		s, err := m.Generate(slices.Clone(prompt), o)
		if err != nil {
			return err
		}
		return addStream(s, s.Close, result)
	})
}

//export dgo_go_mocker_close
func dgo_go_mocker_close(h C.dgo_mocker, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		m, err := mockers.remove(handle(h))
		if m == nil {
			return err
		}
		return m.close()
	})
}
