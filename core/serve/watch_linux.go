package serve

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

type syscallConn = syscall.Conn

// disconnected tells whether the peer closed its side, whatever it sent before.
func disconnected(c net.Conn) bool {
	sc, ok := c.(rawConn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true // closed here
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// unsent gives how many bytes that were written the peer's host has not confirmed; -1: unknown.
func unsent(v *visitor) int {
	raw, err := v.SyscallConn()
	if err != nil {
		return -1
	}
	n := -1
	if err := raw.Control(func(fd uintptr) {
		if waits, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ); err == nil {
			n = waits
		}
	}); err != nil {
		return -1
	}
	return n
}
