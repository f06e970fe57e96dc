package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/nats"
)

// planes sets the request and event planes; "" is what the environment says, or else tcp and zmq.
func planes(request, event string, getenv func(string) string, o *runtime.Options) error {
	request, event = cmp.Or(request, getenv("DYN_REQUEST_PLANE"), "tcp"), cmp.Or(event, getenv("DYN_EVENT_PLANE"), "zmq")
	if request != "tcp" && request != "nats" {
		return fmt.Errorf("%w: request_plane=%.80q, expected \"tcp\" or \"nats\"", errArgument, request)
	}
	if event != "zmq" && event != "nats" {
		return fmt.Errorf("%w: event_plane=%.80q, expected \"zmq\" or \"nats\"", errArgument, event)
	}
	if request != "nats" && event != "nats" {
		return nil
	}
	with, err := nats.OptionsFromEnv(getenv)
	if err != nil {
		return err
	}
	with.Background, with.ServerWait = true, 80*time.Millisecond // no call blocks for longer than a moment
	c, err := nats.Connect(with)
	if err != nil {
		return err
	}
	if o.Shared = append(o.Shared, c); request == "nats" {
		o.Requests = c
	}
	if event == "nats" {
		o.Events = c
	}
	return nil
}
