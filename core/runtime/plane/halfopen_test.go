package plane

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHalfOpen(t *testing.T) {
	h := NewHalfOpen(2)
	var all, others [4]net.Conn
	for i := range all {
		all[i], others[i] = net.Pipe()
		defer others[i].Close()
	}
	require.False(t, h.Add(all[0]))
	require.False(t, h.Add(all[1]))
	h.Remove(all[0])
	h.Remove(all[0])
	require.False(t, h.Add(all[2]))
	require.True(t, h.Add(all[3]), "the oldest goes")
	require.Equal(t, 2, h.Len())
	_, err := all[1].Write([]byte{1})
	require.Error(t, err, "it is closed")
	go others[2].Read(make([]byte, 1))
	_, err = all[2].Write([]byte{1})
	require.NoError(t, err, "nobody else is")
	for _, c := range all {
		h.Remove(c)
	}
	require.Zero(t, h.Len())
	require.Empty(t, h.at)
}
