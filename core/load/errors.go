package load

import "errors"

// Errors of a Ledger. After any of them nothing has changed.
var (
	// ErrDuplicateRequest: Book of an id that is booked. The first booking stands; use another id, or free it first.
	ErrDuplicateRequest = errors.New("request is already booked")
	// ErrRequestNotFound: the id was never booked, or is freed. There is nothing to do for it.
	ErrRequestNotFound = errors.New("request not found")
	// ErrInvalid: a number is outside the range that the message gives.
	ErrInvalid = errors.New("invalid booking")
)
