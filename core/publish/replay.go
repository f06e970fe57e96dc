package publish

import (
	"encoding/binary"
	"math"
)

// answer serves one replay request: the kept batches from a sequence number on, then an end marker. A request of another
// shape gets no answer, as from the engines: the peer times out.
//
// Layout of vLLM 0.26 and later, after the peer's identity: [delimiter, topic, sequence number, payload], and at the end
// [delimiter, "", 2^64-1, ""].
func (p *Publisher) answer(request [][]byte, reply func(frames ...[]byte) error) {
	if len(request) != 2 {
		return
	}
	delimiter, start := request[0], bigEndian(request[1])
	p.mu.Lock()
	seq, payloads := p.steps.since(start)
	p.mu.Unlock()
	topic := []byte(p.cfg.Topic)
	for _, payload := range payloads {
		if reply(delimiter, topic, binary.BigEndian.AppendUint64(nil, seq), payload) != nil {
			return // the peer is gone
		}
		seq++
	}
	// An error here is the peer gone as well.
	_ = reply(delimiter, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
}

// bigEndian reads a number of any length, as the engines do; what does not fit in 64 bits is beyond every sequence number.
func bigEndian(b []byte) uint64 {
	var v uint64
	for _, x := range b {
		if v>>56 != 0 {
			return math.MaxUint64
		}
		v = v<<8 | uint64(x)
	}
	return v
}
