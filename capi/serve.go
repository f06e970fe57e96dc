package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/serve"
)

var servers table[serve.Server]

//export dgo_go_serve_new
func dgo_go_serve_new(p *C.char, n C.size_t, result *C.dgo_server, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "server"); err != nil {
			return err
		}
		raw, err := bytesView(p, n, "config")
		if err != nil {
			return err
		}
		if raw == nil {
			return fmt.Errorf("%w: config is NULL", errArgument)
		}
		cfg, err := serve.ParseConfig(raw)
		if err != nil {
			return err
		}
		s, err := serve.New(cfg, journal)
		if err != nil {
			return err
		}
		h, err := servers.add(s)
		if err != nil {
			s.Close()
			return err
		}
		*result = C.dgo_server(h)
		return nil
	})
}

//export dgo_go_serve_info
func dgo_go_serve_info(h C.dgo_server, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := servers.find(handle(h))
		if err != nil {
			return err
		}
		if err := checkBuffer(b, "info"); err != nil {
			return err
		}
		drained := false
		select {
		case <-s.Drained():
			drained = true
		default:
		}
		return giveJSON(b, struct {
			serve.Status
			Drained bool `json:"drained"`
		}{s.Status(), drained})
	})
}

//export dgo_go_serve_texts
func dgo_go_serve_texts(h C.dgo_server, result *C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := servers.find(handle(h))
		if err != nil {
			return err
		}
		if err := out(result, "stream"); err != nil {
			return err
		}
		texts := s.Texts()
		if texts == nil {
			return fmt.Errorf("%w: the server's tokenizer is not \"host\": there are no texts", errArgument)
		}
		return addStream(texts, func() {}, result) // the stream is the server's
	})
}

//export dgo_go_serve_tokens
func dgo_go_serve_tokens(h C.dgo_server, id C.uint64_t, tokens *C.uint32_t, n C.size_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := servers.find(handle(h))
		if err != nil {
			return err
		}
		given, err := tokenView(tokens, n)
		if err != nil {
			return err
		}
		if tokens != nil && given == nil {
			given = unsafe.Slice((*uint32)(unsafe.Pointer(tokens)), 0)
		}
		s.Tell(uint64(id), given)
		return nil
	})
}

//export dgo_go_serve_stop
func dgo_go_serve_stop(h C.dgo_server, grace C.int64_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := servers.find(handle(h))
		if err != nil {
			return err
		}
		if grace < 0 {
			return fmt.Errorf("%w: grace_ms is %d, must be at least 0", errArgument, int64(grace))
		}
		s.Stop(time.Duration(min(int64(grace), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond)
		return nil
	})
}

//export dgo_go_serve_close
func dgo_go_serve_close(h C.dgo_server, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		s, err := servers.remove(handle(h))
		if s == nil {
			return err
		}
		s.Close()
		return errors.Join(err)
	})
}
