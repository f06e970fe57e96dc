package serve

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDeadlineOfReadingFiresOnlyAtItsTime: though the one that is set may be earlier, and one that is earlier counts at once.
func TestDeadlineOfReadingFiresOnlyAtItsTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer peer.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	d := &door{most: 1, inside: map[*visitor]struct{}{}}
	v := d.enter(c.(*net.TCPConn))
	defer v.Close()

	past, later := time.Unix(1, 0), time.Now().Add(time.Hour)
	for _, end := range []time.Time{later, later.Add(time.Hour), {}} {
		require.NoError(t, v.SetReadDeadline(end))
		require.NoError(t, v.Conn.SetReadDeadline(past)) // fires now
		v.armed = past
		require.NoError(t, v.SetReadDeadline(end))
		require.Equal(t, past, v.armed, "left as it is")
		_, err = peer.Write([]byte("x"))
		require.NoError(t, err)
		n, err := v.Read(make([]byte, 10))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, end, v.armed)
	}
	require.NoError(t, v.SetReadDeadline(past))
	_, err = v.Read(make([]byte, 10))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	d.hurry(past)
	require.NoError(t, v.SetReadDeadline(later))
	_, err = v.Read(make([]byte, 10))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the door is in a hurry")
}
