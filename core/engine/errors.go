package engine

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Errors of requests. Each returned error wraps one of them, or is the error of the caller's context.
var (
	// ErrInvalid: a configuration or a request cannot be used as it is. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnreachable: no connection to the engine. Nothing was computed; another one may do.
	ErrUnreachable = errors.New("engine unreachable")
	// ErrBroken: the connection broke before the answer was complete.
	ErrBroken = errors.New("engine disconnected before the answer was complete")
	// ErrTimeout: the engine did not go on in time (Limits).
	ErrTimeout = errors.New("engine timeout")
	// ErrProtocol: what the engine sends is not what it should be. It may be another server.
	ErrProtocol = errors.New("engine protocol")
	// ErrTooLarge: the engine sends more than Limits allow.
	ErrTooLarge = errors.New("engine answer too large")
	// ErrStatus: the engine answered with an error. errors.As finds a *StatusError.
	ErrStatus = errors.New("engine error")
	// ErrFull: as many requests run as Limits allow. Nothing was sent.
	ErrFull = errors.New("too many requests to the engine")
	// ErrLocal: this process has not what it takes to ask (descriptors, ports). Nothing was sent.
	ErrLocal = errors.New("cannot ask the engine")
	// ErrClosed: the engine was closed here.
	ErrClosed = errors.New("closed")
)

// StatusError is an answer that is an error, or an error within an answer. It is an ErrStatus.
type StatusError struct {
	Code    int    // HTTP status, or that of an error within a stream; 0 if that told none
	Message string // of the engine
	Type    string // as the engine calls it; may be ""
	Header  http.Header
	Body    []byte // as it came, at most Limits.ErrorBytes; of an error within a stream, its event
}

// Error gives the status and the message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("engine error %d: %s", e.Code, clip(e.Message, 1000))
}

// Is makes it an ErrStatus.
func (e *StatusError) Is(target error) bool { return target == ErrStatus }

// clip gives valid text of at most so many bytes.
func clip(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "..."
}

// Elsewhere tells whether another engine may do what this one did not: it was not asked, failed, or has too much to do. Who has given a piece of the
// answer away does not ask elsewhere.
func Elsewhere(err error) bool {
	var told *StatusError
	if errors.As(err, &told) {
		return told.Code == 0 || elsewhere(told.Code)
	}
	for _, fault := range []error{ErrUnreachable, ErrBroken, ErrTimeout, ErrProtocol, ErrFull, ErrLocal, ErrClosed} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// elsewhere tells whether a status says that another engine may do. 501 and 505 are about the request.
func elsewhere(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// faulty tells whether an error counts against the engine, and whether it alone is reason enough to leave it alone.
func faulty(err error) (fault, severe bool) {
	var told *StatusError
	if errors.As(err, &told) {
		return told.Code == 0 || told.Code >= 500 && elsewhere(told.Code), false
	}
	if errors.Is(err, ErrUnreachable) {
		return true, true
	}
	return errors.Is(err, ErrBroken) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrTooLarge), false
}

// local tells whether it is this process that lacks something.
func local(err error) bool {
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// sending gives an error of an exchange, before the answer has begun, its kind.
func sending(err error) error {
	var op *net.OpError
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case local(err):
		return fmt.Errorf("%w: %w", ErrLocal, err)
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case strings.Contains(err.Error(), "server response headers exceeded"):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case strings.Contains(err.Error(), "malformed"), strings.Contains(err.Error(), "tls:"), strings.Contains(err.Error(), "x509:"):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}
