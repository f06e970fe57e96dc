package feed

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// fuzzedFeed is a feed without sockets, whose engine says what the fuzzer says.
func fuzzedFeed(query bool) *Feed {
	cfg := Config{Rank: worker.Rank{ID: 7, DPRank: 1}, Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:1", BlockSize: 4, Sink: noSink{}}
	if query {
		cfg.Query = cfg.Replay
	}
	f := Start(cfg)
	f.Close() // its requests end at once
	f.subscribed(zmq.Event{Kind: zmq.Connected})
	return f
}

// hear plays messages: to the open request, or, if the first byte says so or there is none, live.
func (f *Feed) hear(t *testing.T, messages [][][]byte) {
	reader := func() answerReader {
		return answerReader{now: time.Now, reserve: func(int64) error { return nil },
			query: &event.RangeQuery{WorkerID: 7, DPRank: 1, HasStart: !f.machine.fromAll, Start: f.machine.from}}
	}
	a := reader()
	for i, frames := range messages {
		live := len(frames) > 0 && len(frames[0]) == 1 && frames[0][0] == 'L'
		if f.request == nil || live {
			f.subscribed(zmq.Event{Kind: zmq.Message, Frames: frames})
		} else if f.cfg.Query != "" {
			x := a.reply(frames)
			x.free = func() {}
			f.replied(x)
		} else {
			f.replied(replayReply(frames))
		}
		if f.request == nil {
			if due, ok := f.machine.deadline(); ok && i%2 == 0 {
				f.machine.tick(due)
			}
			a = reader()
		}
		checkMachine(t, f.machine)
	}
	if n := f.counts.Snapshot()["panics"]; n > 0 {
		t.Fatal(n, "panics")
	}
}

// messages cuts bytes into messages of up to 4 frames with a byte of length each, or two of them.
func messages(data []byte) (all [][][]byte) {
	for len(data) > 0 && len(all) < 100 {
		n := int(data[0] % 5)
		data = data[1:]
		var frames [][]byte
		for range n {
			if len(data) < 2 {
				return all
			}
			size := int(binary.BigEndian.Uint16(data))
			data = data[2:]
			size = min(size, len(data))
			frames = append(frames, data[:size])
			data = data[size:]
		}
		all = append(all, frames)
	}
	return all
}

func packed(all ...[][]byte) (out []byte) {
	for _, frames := range all {
		out = append(out, byte(len(frames)))
		for _, f := range frames {
			out = append(binary.BigEndian.AppendUint16(out, uint16(len(f))), f...)
		}
	}
	return out
}

func FuzzReplayAnswers(f *testing.F) {
	end := [][]byte{nil, nil, number(math.MaxUint64), nil}
	f.Add(packed([][]byte{nil, number(0), store(f, 1)}, [][]byte{nil, []byte("kv"), number(1), remove(f, 1)}, end))
	f.Add(packed(end, [][]byte{[]byte("L"), number(0), store(f, 1)}, [][]byte{[]byte("L"), number(3), store(f, 2)}, [][]byte{nil, number(2), store(f, 2)}, end))
	f.Add(packed([][]byte{nil, number(5)}, [][]byte{nil}, nil, [][]byte{nil, number(9), []byte("\x92\x01\xdd\xff\xff\xff\xff")}, end))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzedFeed(false).hear(t, messages(data)) })
}

func FuzzQueryAnswers(f *testing.F) {
	events := []event.Event{{ID: 4, DPRank: 1, Kind: event.Stored, Blocks: []event.Block{{Engine: block.EngineHash(1), Hash: 2}}},
		{ID: 5, DPRank: 1, Kind: event.Removed, Removed: []block.EngineHash{1}}, {ID: 6, DPRank: 1, Kind: event.Cleared}}
	say := func(a *event.RangeAnswer) (all [][][]byte) {
		bytes := wire.AppendRangeAnswer(nil, 7, a)
		_ = wire.SendRangeAnswer(1, bytes, func(head, chunk []byte) error { all = append(all, [][]byte{nil, head, chunk}); return nil })
		return all
	}
	dump := say(&event.RangeAnswer{Kind: event.RangeDump, Events: events[:1], LastID: 3})
	f.Add(packed(dump...))
	f.Add(packed(append(append(dump, [][]byte{[]byte("L"), number(6), store(f, 1)}),
		say(&event.RangeAnswer{Kind: event.RangeEvents, Events: events, LastID: 6})...)...))
	f.Add(packed(append(append(dump, [][]byte{[]byte("L"), number(9), store(f, 1)}), say(&event.RangeAnswer{Kind: event.RangeTooNew, Newest: 3})...)...))
	f.Add(packed(append(say(&event.RangeAnswer{Kind: event.RangeDump}), say(&event.RangeAnswer{Kind: event.RangeInvalid})...)...))
	f.Add(packed(append(say(&event.RangeAnswer{Kind: event.RangeError, Message: "no"}), say(&event.RangeAnswer{Kind: event.RangeDumpFailed})...)...))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzedFeed(true).hear(t, messages(data)) })
}
