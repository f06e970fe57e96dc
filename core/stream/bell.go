package stream

import "errors"

// ErrNoBell: no descriptor can be had, for want of descriptors or of eventfd on this system. Wait with Next instead.
var ErrNoBell = errors.New("no descriptor to wait on")
