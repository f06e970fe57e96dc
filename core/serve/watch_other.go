//go:build !linux

package serve

import (
	"net"
	"syscall"
)

type syscallConn = syscall.Conn

// disconnected cannot tell here: a client that is gone is noticed when something is written to it.
func disconnected(net.Conn) bool { return false }

// unsent cannot tell here: a client takes something when the socket's buffer has room again.
func unsent(*visitor) int { return -1 }
