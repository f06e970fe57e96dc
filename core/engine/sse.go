package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// events reads server-sent events.
type events struct {
	r    *bufio.Reader
	most int    // bytes of an event, and of what is between two
	long []byte // a line that is longer than r's buffer
	data []byte // of the event that is being read
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 16<<10) }}

func newEvents(from io.Reader, most int) *events {
	r := readers.Get().(*bufio.Reader)
	r.Reset(from)
	return &events{r: r, most: most}
}

// free gives the buffer back; next must not be called any more.
func (v *events) free() {
	v.r.Reset(nil)
	readers.Put(v.r)
	v.r = nil
}

// next gives the data of the next event, until the next call. What is no data (comments, names, numbers) is skipped. An event that the end cuts off is
// one all the same. Errors: io.EOF, ErrTooLarge, and those of the reader.
func (v *events) next() ([]byte, error) {
	v.data = v.data[:0]
	begun, skipped := false, 0
	for {
		line, err := v.line()
		if err != nil && (err != io.EOF || len(line) == 0 && !begun) {
			return nil, err
		}
		value, is := bytes.CutPrefix(line, []byte("data:"))
		switch {
		case is:
			if begun {
				v.data = append(v.data, '\n')
			}
			begun = true
			v.data = append(v.data, bytes.TrimPrefix(value, []byte(" "))...)
		case len(line) == 0 && begun:
			return v.data, nil
		default:
			skipped += len(line) + 1
		}
		if len(v.data) > v.most || skipped > v.most {
			return nil, fmt.Errorf("%w: an event, or what is between two, has more than %d bytes", ErrTooLarge, v.most)
		}
		if err == io.EOF {
			if begun {
				return v.data, nil
			}
			return nil, io.EOF
		}
	}
}

// line gives one line without its end, until the next call. The last one comes with io.EOF if nothing ends it.
func (v *events) line() ([]byte, error) {
	line, err := v.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		v.long = v.long[:0]
		for errors.Is(err, bufio.ErrBufferFull) {
			if v.long = append(v.long, line...); len(v.long) > v.most {
				return nil, fmt.Errorf("%w: a line of events has more than %d bytes", ErrTooLarge, v.most)
			}
			line, err = v.r.ReadSlice('\n')
		}
		v.long = append(v.long, line...)
		line = v.long
	}
	if err == nil {
		line = bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))
	}
	return line, err
}
