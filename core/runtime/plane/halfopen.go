package plane

import (
	"container/list"
	"net"
)

// HalfOpen are the connections of a listener whose other side has not said yet what it wants. There are at most so many: one more ends the oldest,
// so that a flood of silent ones keeps nobody out who speaks at once. Its owner's lock guards it.
type HalfOpen struct {
	most  int
	order list.List // of net.Conn, the oldest first
	at    map[net.Conn]*list.Element
}

// NewHalfOpen has room for so many, at least one.
func NewHalfOpen(most int) *HalfOpen {
	return &HalfOpen{most: max(1, most), at: make(map[net.Conn]*list.Element)}
}

// Add takes a connection, and tells whether another one was closed for it.
func (h *HalfOpen) Add(c net.Conn) (closed bool) {
	if closed = h.order.Len() >= h.most; closed {
		oldest := h.order.Front().Value.(net.Conn)
		oldest.Close()
		h.Remove(oldest)
	}
	h.at[c] = h.order.PushBack(c)
	return closed
}

// Remove says that a connection has spoken, or ended. Again, it does nothing.
func (h *HalfOpen) Remove(c net.Conn) {
	if e := h.at[c]; e != nil {
		h.order.Remove(e)
		delete(h.at, c)
	}
}

// Len is how many there are.
func (h *HalfOpen) Len() int { return h.order.Len() }
