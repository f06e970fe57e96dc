package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/tail"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

//export dgo_go_decode_batch
func dgo_go_decode_batch(p *C.char, n C.size_t, seq *C.uint64_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := checkBuffer(b, "lines"); err != nil {
			return err
		}
		payload, err := jsonView(p, n, "payload")
		if err != nil {
			return err
		}
		var number *uint64
		if seq != nil {
			if err := out(seq, "seq"); err != nil {
				return err
			}
			value := uint64(*seq)
			number = &value
		}
		batch, err := wire.DecodeBatch(payload, wire.Limits{})
		if err != nil {
			return fmt.Errorf("%w: %w", errArgument, err)
		}
		return give(b, batch.AppendJSONLines(nil, number))
	})
}

//export dgo_go_events_open
func dgo_go_events_open(endpoint *C.char, endpointSize C.size_t, replay *C.char, replaySize C.size_t, topic *C.char, topicSize C.size_t, result *C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "events"); err != nil {
			return err
		}
		from, _, err := text(endpoint, endpointSize, "endpoint")
		if err != nil {
			return err
		}
		back, _, err := text(replay, replaySize, "replay")
		if err != nil {
			return err
		}
		prefix, _, err := text(topic, topicSize, "topic")
		if err != nil {
			return err
		}
		r, err := tail.Open(from, back, prefix)
		if err != nil {
			return err
		}
		return addStream(r.Stream, r.Close, result)
	})
}
