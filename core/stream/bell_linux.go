package stream

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Bell is a descriptor, an eventfd, that is readable while it rings. It has no lock: its owner's guards it, so that it cannot be
// closed under a write.
type Bell struct {
	fd      int
	ringing bool
	count   [8]byte // what is written or read
}

// NewBell gives a silent bell. Errors: ErrNoBell.
func NewBell() (*Bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w: eventfd: %w", ErrNoBell, err)
	}
	return &Bell{fd: fd}, nil
}

// Descriptor gives the number to poll.
func (b *Bell) Descriptor() int { return b.fd }

// Ring makes the descriptor readable; it costs a system call only if the bell is silent.
func (b *Bell) Ring() {
	if b.ringing {
		return
	}
	b.ringing = true
	binary.NativeEndian.PutUint64(b.count[:], 1)
	_, _ = unix.Write(b.fd, b.count[:]) // fails only at the counter's end, when it is readable
}

// Silence makes the descriptor unreadable again.
func (b *Bell) Silence() {
	if !b.ringing {
		return
	}
	b.ringing = false
	_, _ = unix.Read(b.fd, b.count[:]) // does not block
}

// Close closes the descriptor; the bell is of no use then.
func (b *Bell) Close() { _ = unix.Close(b.fd) }
