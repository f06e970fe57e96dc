package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrFrames says that a ZeroMQ message is not one of an engine's: count it and go on with the next.
var ErrFrames = errors.New("malformed message frames")

// endSeq is the sequence number of the end marker, which no batch has.
const endSeq = math.MaxUint64

// Message is one published batch, or the end of a replay (End), which carries nothing and numbers nothing. Topic and
// Payload alias the frames.
type Message struct {
	Topic   []byte
	Seq     uint64
	Payload []byte
	End     bool
}

// ParseLive reads a message of a publisher's socket: topic, sequence number, payload. The topic frame may be missing. An
// end marker is recognised here too, so that it is never taken for a batch.
func ParseLive(frames [][]byte) (Message, error) {
	if len(frames) < 2 || len(frames) > 3 {
		return Message{}, fmt.Errorf("%w: %d frames, expected topic, sequence number, payload", ErrFrames, len(frames))
	}
	return parse(frames)
}

// ParseReplay reads a reply of a replay socket as a DEALER gets it: an empty delimiter, then the frames of the live
// message, whose topic vLLM before 0.26 and SGLang before 0.5.22 leave out. A client that has taken the delimiter off
// gets the same result.
func ParseReplay(frames [][]byte) (Message, error) {
	if len(frames) == 4 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) < 2 || len(frames) > 3 {
		return Message{}, fmt.Errorf("%w: %d frames, expected delimiter, topic, sequence number, payload", ErrFrames, len(frames))
	}
	return parse(frames)
}

// parse reads from the back, where every layout is the same.
func parse(frames [][]byte) (Message, error) {
	n := len(frames)
	number := frames[n-2]
	if len(number) != 8 {
		return Message{}, fmt.Errorf("%w: sequence number of %d bytes, expected 8", ErrFrames, len(number))
	}
	m := Message{Seq: binary.BigEndian.Uint64(number), Payload: frames[n-1]}
	if n > 2 {
		m.Topic = frames[n-3]
	}
	if m.Seq == endSeq {
		if len(m.Payload) != 0 {
			return Message{}, fmt.Errorf("%w: a payload of %d bytes in an end marker", ErrFrames, len(m.Payload))
		}
		return Message{End: true}, nil
	}
	return m, nil
}
