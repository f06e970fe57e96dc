package feed

import (
	"encoding/binary"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

type noSink struct{}

func (noSink) Apply(worker.Rank, *event.Event) (index.Applied, error) { return index.Applied{}, nil }
func (noSink) Reset(worker.Rank)                                      {}

// BenchmarkLive is what one live one-block batch costs between the socket and the sink.
func BenchmarkLive(b *testing.B) {
	f := Start(Config{Endpoint: "tcp://127.0.0.1:1", BlockSize: 4, Sink: noSink{}})
	f.Close() // its parts are driven by hand
	f.subscribed(zmq.Event{Kind: zmq.Connected})
	payload := store(b, 1)
	var seq uint64
	b.ReportAllocs()
	for b.Loop() {
		f.subscribed(zmq.Event{Kind: zmq.Message, Frames: [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), payload}})
		f.publish()
		seq++
	}
}
