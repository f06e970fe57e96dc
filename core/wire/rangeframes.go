package wire

import (
	"encoding/binary"
	"fmt"
)

// RangeChunkBytes is how much of an answer goes into one message.
const RangeChunkBytes = 1 << 20

// rangeHead is the bytes of the frame before a chunk.
const rangeHead = 16

// SendRangeAnswer cuts an encoded answer into messages. On a query socket (ROUTER) a DEALER peer sends an empty delimiter
// and a query, and gets, after a delimiter, two frames per message: the publisher's number and the bytes that
// follow in later messages, 8 bytes big-endian each; and a chunk of the answer. The last message has 0 bytes left. A publisher's
// number is drawn anew whenever one starts: another number is another process, whose events are numbered anew. The first error of send ends it
// and is returned.
func SendRangeAnswer(publisher uint64, answer []byte, send func(head, chunk []byte) error) error {
	for first := true; first || len(answer) > 0; first = false {
		chunk := answer[:min(len(answer), RangeChunkBytes)]
		answer = answer[len(chunk):]
		head := binary.BigEndian.AppendUint64(make([]byte, 0, rangeHead), publisher)
		if err := send(binary.BigEndian.AppendUint64(head, uint64(len(answer))), chunk); err != nil {
			return err
		}
	}
	return nil
}

// RangeReceiver puts an answer together again. Its memory is that of the chunks that came, and bounded by MaxRangeAnswerBytes.
type RangeReceiver struct {
	publisher uint64
	answer    []byte
	left      uint64
	started   bool
}

// Add takes the frames of a message, with or without the delimiter, and tells whether the answer is complete. Errors: ErrFrames
// if they are not the next ones of an answer, ErrRange if it is too large; nothing of it can be used then.
func (r *RangeReceiver) Add(frames [][]byte) (done bool, err error) {
	publisher, left, chunk, err := rangePart(frames)
	if err != nil {
		return false, err
	}
	switch n := uint64(len(chunk)); {
	case r.started && (publisher != r.publisher || left+n != r.left):
		return false, fmt.Errorf("%w: a part of another answer", ErrFrames)
	}
	r.started, r.publisher, r.left = true, publisher, left
	r.answer = append(r.answer, chunk...)
	return left == 0, nil
}

// rangePart reads the frames of a message.
func rangePart(frames [][]byte) (publisher, left uint64, chunk []byte, err error) {
	if len(frames) == 3 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) != 2 || len(frames[0]) != rangeHead {
		return 0, 0, nil, fmt.Errorf("%w: %d frames, expected delimiter, 16 bytes and a part of an answer", ErrFrames, len(frames))
	}
	publisher, left = binary.BigEndian.Uint64(frames[0]), binary.BigEndian.Uint64(frames[0][8:])
	chunk = frames[1]
	switch n := uint64(len(chunk)); {
	case n > MaxRangeAnswerBytes || left > MaxRangeAnswerBytes-n:
		return 0, 0, nil, fmt.Errorf("%w: an answer of %d bytes and %d more, at most %d", ErrRange, n, left, MaxRangeAnswerBytes)
	case n == 0 && left > 0:
		return 0, 0, nil, fmt.Errorf("%w: an empty part of an answer with %d bytes left", ErrFrames, left)
	}
	return publisher, left, chunk, nil
}

// RangeAnswerSize tells how many bytes an answer has that begins with the frames of a message. Errors: those of Add.
func RangeAnswerSize(frames [][]byte) (int, error) {
	_, left, chunk, err := rangePart(frames)
	return len(chunk) + int(left), err
}

// Len is how many bytes of the answer have come.
func (r *RangeReceiver) Len() int { return len(r.answer) }

// Answer gives what was put together, for DecodeRangeAnswer, and who sent it.
func (r *RangeReceiver) Answer() (publisher uint64, answer []byte) { return r.publisher, r.answer }
