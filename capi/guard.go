package main

/*
#cgo CFLAGS: -I${SRCDIR}/../include -fvisibility=hidden -Wall -Wextra -Werror=incompatible-pointer-types -Werror=int-conversion
#cgo LDFLAGS: ${SRCDIR}/exports.so
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/logs"
)

// call runs one exported function's body and reports how it ended.
//
// A panic becomes DGO_INTERNAL, and so does a fault: a pointer with a length beyond what it points to must not end the
// host. Memory of the caller is only read before any lock is taken, so nothing stays locked.
func call(e *C.dgo_error, body func() error) (status C.dgo_status) {
	debug.SetPanicOnFault(true)
	usable, ended := e == nil, false // whether e can be written to, and whether the call came to its end
	defer func() {
		if !ended {
			status = recovered(e, usable, recover())
		}
	}()
	status = C.DGO_INVALID_ARGUMENT
	if e == nil || !misaligned(unsafe.Pointer(e), unsafe.Alignof(*e)) && e.struct_size == C.uint32_t(unsafe.Sizeof(*e)) {
		usable, status = true, C.DGO_OK
		if err := body(); err != nil {
			usable = false // unless report ends
			status = report(e, err)
		}
	}
	ended = true
	return status
}

// recovered reports a panic.
func recovered(e *C.dgo_error, usable bool, cause any) (status C.dgo_status) {
	if status = C.DGO_INVALID_ARGUMENT; !usable {
		return status
	}
	defer func() { _ = recover() }() // e cannot be written to, after all
	logs.ReportFault(cause)
	return report(e, fmt.Errorf("%w: %v", errPanic, cause))
}

// report fills the caller's error struct.
func report(e *C.dgo_error, err error) C.dgo_status {
	status := C.dgo_status(statusOf(err))
	if e == nil {
		return status
	}
	e.status = status
	room := unsafe.Slice((*byte)(unsafe.Pointer(&e.message[0])), len(e.message))
	text := strings.ReplaceAll(err.Error(), "\x00", `\x00`) // a caller's text may have a NUL; the message ends at one
	if len(text) > len(room)-1 {
		text = text[:len(room)-1]
		for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) && !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	room[copy(room, text)] = 0
	return status
}
