package block

import (
	"errors"
	"fmt"
)

// MaxSize bounds a block size. It is far above what engines use, and keeps a block's bytes far below overflow.
const MaxSize = 1 << 20

// ErrSize says that a block size is not one: the caller passes a size between 1 and MaxSize.
var ErrSize = errors.New("block size out of range")

// CheckSize gives ErrSize unless size is in [1, MaxSize].
func CheckSize(size int64) error {
	if size < 1 || size > MaxSize {
		return fmt.Errorf("%w: %d, expected 1 to %d tokens", ErrSize, size, MaxSize)
	}
	return nil
}
