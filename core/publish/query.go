package publish

import (
	"fmt"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// maxAnswers bounds the answers to queries that are in memory at a time: a dump of a million blocks takes 50 MB.
const maxAnswers = 8

// patience is how long a peer may take for a part of an answer: one that does not read keeps others from theirs no longer.
const patience = 5 * time.Second

// answer serves one query: see wire.SendRangeAnswer for the frames. A request of another shape gets no answer, one that
// is no query gets one that says so.
func (s *Source) answer(request [][]byte, reply func(frames ...[]byte) error) {
	if len(request) != 2 {
		return
	}
	select {
	case s.answering <- struct{}{}:
		defer func() { <-s.answering }()
	case <-s.done:
		return
	}
	answer := wire.AppendRangeAnswer(nil, s.cfg.Rank.ID, s.find(request[1]))
	if len(answer) > wire.MaxRangeAnswerBytes {
		answer = wire.AppendRangeAnswer(nil, s.cfg.Rank.ID, &event.RangeAnswer{
			Kind: event.RangeDumpFailed, Message: fmt.Sprintf("the answer has %d bytes, at most %d can be sent", len(answer), wire.MaxRangeAnswerBytes),
		})
	}
	// An error is the peer gone.
	_ = wire.SendRangeAnswer(s.id, answer, func(head, chunk []byte) error { return reply(request[0], head, chunk) })
}

func (s *Source) find(query []byte) *event.RangeAnswer {
	q, err := wire.DecodeRangeQuery(query)
	if err != nil {
		return &event.RangeAnswer{Kind: event.RangeError, Message: err.Error()}
	}
	if q.WorkerID != s.cfg.Rank.ID || q.DPRank != s.cfg.Rank.DPRank {
		return &event.RangeAnswer{
			Kind: event.RangeError, Message: fmt.Sprintf("this is worker rank %s, not %d/%d", s.cfg.Rank, q.WorkerID, q.DPRank),
		}
	}
	a := s.log.Range(&q)
	return &a
}
