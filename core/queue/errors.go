package queue

import (
	"errors"
	"fmt"
)

// Errors of this package. After any of them nothing has changed.
var (
	// ErrQueueLimit: the class, or the whole queue, holds as much as it may. It is a *LimitError. Try again later, or
	// elsewhere.
	ErrQueueLimit = errors.New("queue limit reached")
	// ErrDeadline: the request's deadline has passed already.
	ErrDeadline = errors.New("deadline passed")
	// ErrInvalid: a value is out of its range, or a policy file is malformed. The message names it.
	ErrInvalid = errors.New("invalid")
)

// Limit names what a LimitError is about.
type Limit string

// Limits, in the order in which they are checked.
const (
	LimitRequests     Limit = "requests"
	LimitISLTokens    Limit = "raw_isl_tokens"
	LimitCachedTokens Limit = "cached_tokens"
	LimitTotal        Limit = "total_requests" // of all classes together
)

// LimitError says which limit refused a request.
type LimitError struct {
	Class   string
	Kind    Limit
	Current int64 // what the class held before the request
	Limit   int64 // the configured limit times the workers
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("router policy class %q queue %s limit reached (current=%d, limit=%d)", e.Class, e.Kind, e.Current, e.Limit)
}

// Is makes a LimitError an ErrQueueLimit.
func (e *LimitError) Is(target error) bool { return target == ErrQueueLimit }
