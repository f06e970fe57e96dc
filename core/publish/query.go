package publish

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/replay"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// maxDumps bounds the different large answers that are in memory at a time: a dump of a million blocks takes 50 MB.
const maxDumps = 8

// smallBlocks bounds the blocks and events of an answer that anybody gets at once: it fits into about one message.
const smallBlocks = 1 << 14

// patience is how long a peer may take for a part of an answer. For a whole one it may take as long, and a second more for each leastRate bytes.
const (
	patience  = 5 * time.Second
	leastRate = 1 << 20
)

// errSlow: the peer took too long for an answer, which is not finished.
var errSlow = errors.New("publish: peer is too slow for its answer")

// answer serves one query: see wire.SendRangeAnswer for the frames. A request of another shape gets no answer, one that
// is no query gets one that says so. A peer that reads slowly keeps nobody else waiting: small answers take no place among the
// large ones, and whoever finds no place shares an answer that is on its way already.
func (s *Source) answer(request [][]byte, reply func(frames ...[]byte) error) {
	if len(request) != 2 {
		return
	}
	// An error is the peer gone, or too slow: it will ask again.
	_ = s.Answer(request[1], func(answer []byte) error {
		return s.transmit(answer, time.Now, func(head, chunk []byte) error { return reply(request[0], head, chunk) })
	})
}

// Answer gives the answer to a query (wire.AppendRangeQuery), which may be large, to send: valid for the call only. The error is that of send, or ErrClosed.
func (s *Source) Answer(query []byte, send func(answer []byte) error) error {
	if a := s.small(query); a != nil {
		return send(wire.AppendRangeAnswer(nil, s.cfg.Rank.ID, a))
	}
	d := s.dumps.take(s.dump, s.log.Stats)
	if d == nil {
		return ErrClosed
	}
	defer s.dumps.give(d)
	return send(d.bytes)
}

// transmit sends an answer, within the time for the whole of it.
func (s *Source) transmit(answer []byte, now func() time.Time, send func(head, chunk []byte) error) error {
	end := now().Add(patience + time.Duration(len(answer))*time.Second/leastRate)
	return wire.SendRangeAnswer(s.id, answer, func(head, chunk []byte) error {
		if now().After(end) {
			return errSlow
		}
		return send(head, chunk)
	})
}

// small gives the answer to a query if it is small, nil if it takes a dump or is large.
func (s *Source) small(query []byte) *event.RangeAnswer {
	q, err := wire.DecodeRangeQuery(query)
	if err != nil {
		return &event.RangeAnswer{Kind: event.RangeError, Message: err.Error()}
	}
	if q.WorkerID != s.cfg.Rank.ID || q.DPRank != s.cfg.Rank.DPRank {
		return &event.RangeAnswer{
			Kind: event.RangeError, Message: fmt.Sprintf("this is worker rank %s, not %d/%d", s.cfg.Rank, q.WorkerID, q.DPRank),
		}
	}
	if !q.HasStart || !(q.HasEnd && q.End < q.Start) && !s.log.Kept(q.Start) {
		return nil
	}
	a := s.log.Range(&q)
	n := len(a.Events)
	for i := range a.Events {
		n += len(a.Events[i].Blocks) + len(a.Events[i].Removed)
	}
	if n > smallBlocks {
		return nil
	}
	return &a
}

// dump encodes everything the rank holds. That answers every query that is not answered small: a dump after the newest event
// tells all that a long list of events does.
func (s *Source) dump() *dump {
	a := s.log.Range(&event.RangeQuery{WorkerID: s.cfg.Rank.ID, DPRank: s.cfg.Rank.DPRank})
	bytes := wire.AppendRangeAnswer(nil, s.cfg.Rank.ID, &a)
	if len(bytes) > wire.MaxRangeAnswerBytes {
		bytes = wire.AppendRangeAnswer(nil, s.cfg.Rank.ID, &event.RangeAnswer{
			Kind: event.RangeDumpFailed, Message: fmt.Sprintf("the answer has %d bytes, at most %d can be sent", len(bytes), wire.MaxRangeAnswerBytes),
		})
	}
	return &dump{last: a.LastID, bytes: bytes}
}

// dump is an encoded answer with all that is held after event last.
type dump struct {
	last  uint64
	bytes []byte
	users int // answers that are being sent from it
}

// dumps are those being sent, at most maxDumps, the newest last. The zero value is ready.
type dumps struct {
	mu     sync.Mutex // guards the rest, and that one dump is made at a time
	freed  sync.Cond
	alive  []*dump
	closed bool
}

// take gives a dump of all there is now: one that is being sent, or a new one. While as many as may be are being sent it gives the newest of
// them, if the events since are kept: who gets it can ask for these. Otherwise it waits. nil: closed. Each dump is given back.
func (d *dumps) take(build func() *dump, kept func() replay.Stats) *dump {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freed.L = &d.mu
	for !d.closed {
		n, now := len(d.alive), kept()
		switch {
		case n > 0 && d.alive[n-1].last == now.Last: // it is the newest
		case n < maxDumps:
			d.alive = append(d.alive, build())
		case d.alive[n-1].last+1 < now.First:
			d.freed.Wait()
			continue
		}
		newest := d.alive[len(d.alive)-1]
		newest.users++
		return newest
	}
	return nil
}

func (d *dumps) give(x *dump) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x.users--; x.users == 0 {
		d.alive = slices.DeleteFunc(d.alive, func(y *dump) bool { return x == y })
		d.freed.Broadcast()
	}
}

// close ends all waiting.
func (d *dumps) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.freed.Broadcast()
}
