//go:build !linux

package stream

// A Bell needs Linux.
type Bell struct{}

// NewBell fails: there is no eventfd here.
func NewBell() (*Bell, error) { return nil, ErrNoBell }

// Descriptor is of no use without one.
func (*Bell) Descriptor() int { return -1 }

// Ring does nothing.
func (*Bell) Ring() {}

// Silence does nothing.
func (*Bell) Silence() {}

// Close does nothing.
func (*Bell) Close() {}
