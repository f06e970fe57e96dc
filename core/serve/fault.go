package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// fault is an error of this server's own, in the shape that OpenAI clients expect.
type fault struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
	status  int
}

func (f *fault) Error() string { return f.Message }

func fail(status int, kind, code, format string, args ...any) *fault {
	return &fault{status: status, Type: kind, Code: code, Message: strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")}
}

func (f *fault) body() []byte {
	data, err := json.Marshal(map[string]*fault{"error": f})
	if err != nil { // of texts and numbers there is none
		return []byte(`{"error":{"message":"?","type":"server_error","param":null,"code":"?"}}`)
	}
	return data
}

// write makes it the answer.
func (f *fault) write(ctx *fasthttp.RequestCtx) {
	ctx.Response.ResetBody() // and not all of it, which would give it a date, and the date a goroutine that nobody stops
	ctx.SetStatusCode(f.status)
	ctx.SetContentType("application/json")
	if f.status == fasthttp.StatusServiceUnavailable || f.status == fasthttp.StatusTooManyRequests {
		ctx.Response.Header.Set("Retry-After", "1")
	}
	ctx.Response.SetBodyRaw(f.body())
}

// event makes it the end of an event stream. An event that was cut off before it ends first.
func (f *fault) event(open bool) []byte {
	var out []byte
	if open {
		out = append(out, "\n\n"...)
	}
	return append(append(append(out, "data: "...), f.body()...), "\n\ndata: [DONE]\n\n"...)
}

func overloaded(format string, args ...any) *fault {
	return fail(fasthttp.StatusServiceUnavailable, "overloaded_error", "overloaded", format, args...)
}

func wrong(code, format string, args ...any) *fault {
	return fail(fasthttp.StatusBadRequest, "invalid_request_error", code, format, args...)
}

// faultOf says what became of a request that no engine answered. Where engines are, and what they sent that is no answer, is for the log.
func faultOf(err error) *fault {
	var own *fault
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.Canceled), errors.Is(err, engine.ErrClosed), errors.Is(err, router.ErrClosed):
		return overloaded("the server is stopping")
	case errors.Is(err, engine.ErrFull):
		return overloaded("as many requests run as engines take")
	case errors.Is(err, engine.ErrLocal):
		return overloaded("the server has not what it takes to ask an engine")
	case errors.Is(err, router.ErrOverloaded), errors.Is(err, router.ErrQueueLimitExceeded):
		return overloaded("%v", err)
	case errors.Is(err, router.ErrNoWorkers):
		return fail(fasthttp.StatusServiceUnavailable, "server_error", "no_engines", "no engine can serve: %v; see /engines", err)
	case errors.Is(err, router.ErrWorkerNotFound):
		return fail(fasthttp.StatusNotFound, "invalid_request_error", "worker_not_found", "%v", err)
	case errors.Is(err, router.ErrInvalidArgument), errors.Is(err, engine.ErrInvalid):
		return wrong("invalid_value", "%v", err)
	case errors.Is(err, router.ErrTimeout):
		return fail(fasthttp.StatusGatewayTimeout, "server_error", "timeout", "%v", err)
	case errors.Is(err, engine.ErrTimeout):
		return fail(fasthttp.StatusGatewayTimeout, "server_error", "timeout", "the engine did not go on in time")
	}
	why := "the engine failed"
	for _, kind := range []struct {
		of  error
		why string
	}{
		{engine.ErrUnreachable, "the engine cannot be reached"},
		{engine.ErrBroken, "the engine disconnected before its answer was complete"},
		{engine.ErrProtocol, "the engine's answer is none of HTTP/1.1"},
		{engine.ErrTooLarge, "the engine's answer is too large"},
		{errAborted, errAborted.Error()},
	} {
		if errors.Is(err, kind.of) {
			why = kind.why
			break
		}
	}
	return fail(fasthttp.StatusBadGateway, "server_error", "engine_failed", "%s", why)
}
