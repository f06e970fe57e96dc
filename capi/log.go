package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/dynamo-go/dynamo-go/core/logs"
)

// The log of the process. It goes nowhere until DYN_LOG or dgo_log says where to.
var (
	logged  logs.Log
	journal = slog.New(&logged)
)

func init() {
	logs.Faults(journal)
	if level, on := logs.ParseDirectives(os.Getenv("DYN_LOG")); on {
		logged.To(standardError{}, level)
	}
}

// standardError writes past os.Stderr, which ends the process when nobody reads it any more.
type standardError struct{}

func (standardError) Write(line []byte) (int, error) { return syscall.Write(syscall.Stderr, line) }

//export dgo_go_log
func dgo_go_log(p *C.char, n C.size_t, result *C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		name, given, err := text(p, n, "level")
		if err == nil && !given {
			err = fmt.Errorf("%w: level is NULL", errArgument)
		}
		if err != nil {
			return err
		}
		level, on, err := logs.ParseLevel(name)
		if err != nil {
			return err
		}
		if result != nil {
			if err := out(result, "lines"); err != nil {
				return err
			}
		}
		switch {
		case !on:
			logged.Off()
			if result != nil {
				*result = 0
			}
		case result == nil:
			logged.To(standardError{}, level)
		default:
			s := logged.Stream(level)
			return addStream(s, s.Close, result)
		}
		return nil
	})
}
