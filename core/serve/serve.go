package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

// ErrListen: the address cannot be listened on.
var ErrListen = errors.New("cannot listen")

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// Server is a running endpoint. Its methods may be called from any goroutine.
type Server struct {
	cfg          Config
	log          *slog.Logger
	fleet        *fleet.Fleet
	http         *fasthttp.Server
	door         *door
	address      string
	exporter     *metrics.Exporter
	texts        *texts // nil: engines tokenise
	tracksOutput bool
	tokenizing   time.Duration
	counters     counters
	watch        watch
	requests     sync.Pool // *request
	buffered     atomic.Int64
	started      time.Time

	ctx      context.Context
	stop     context.CancelFunc
	running  owned.Group   // watch, listener, a stop
	leaving  atomic.Bool   // a stop began: /health says so
	draining atomic.Bool   // nothing is taken any more
	drained  chan struct{} // closed when nothing runs after Stop
	stopping sync.Once
	closing  sync.Once
}

// New starts a server. It answers from then on; engines become candidates as they turn out to be healthy.
// Errors: ErrConfig, ErrListen, those of package router about its configuration and of package fleet about engines.
func New(cfg Config, logger *slog.Logger) (_ *Server, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	rc, err := cfg.routerConfig()
	if err != nil {
		return nil, err
	}
	specs := make([]fleet.Spec, len(cfg.Engines))
	for i, text := range cfg.Engines {
		if specs[i], err = ParseEngine(text); err != nil {
			return nil, err
		}
	}
	if len(specs) == 0 && cfg.File == "" {
		return nil, fmt.Errorf("%w: there are neither engines nor a file of engines", ErrConfig)
	}
	f, err := fleet.New(cfg.BlockSize, rc, fleet.Options{Mode: cfg.Mode, Log: logger, Router: router.Options{Log: logger}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for _, s := range specs {
		if _, err = f.Add(s); err != nil {
			return nil, err
		}
	}
	if cfg.File != "" {
		if err = f.Watch(cfg.File); err != nil {
			return nil, err
		}
	}
	s := &Server{cfg: cfg, log: logger, fleet: f, tracksOutput: f.Router().TracksOutput(),
		tokenizing: seconds(cfg.Limits.Tokenize), drained: make(chan struct{}), started: time.Now()}
	if cfg.Tokenizer == ByHost {
		s.texts = newTexts(s.tokenizing)
	}
	s.requests.New = func() any {
		return &request{s: s, piece: make([]byte, firstPiece), side: engine.Call{Aside: true}} // text without ids goes by load, to engines that are well
	}
	if s.exporter, err = metrics.New(f.Router(), metrics.Options{}); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrListen, err)
	}
	s.address = told(cfg.Listen, listener.Addr())
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.door = &door{TCPListener: listener.(*net.TCPListener), most: cfg.Limits.Connections, write: seconds(cfg.Limits.WriteSeconds), bytes: cfg.Limits.requestBytes(), inside: map[*visitor]struct{}{}}
	s.http = s.server()
	s.running.Go(func() { s.watch.run(s.ctx) })
	// Serve returns when the listener is closed, by Stop or Close.
	s.running.Go(func() {
		_ = s.http.Serve(s.door)
	})
	return s, nil
}

func (s *Server) server() *fasthttp.Server {
	l := &s.cfg.Limits
	return &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.badRequest,
		HeaderReceived:               s.early,
		Concurrency:                  l.Connections + 1, // which the listener bounds
		MaxIdleWorkerDuration:        time.Second,       // also what a goroutine of the library lives on after the server
		ReadBufferSize:               l.HeadBytes,
		ReadTimeout:                  seconds(l.ReadSeconds),
		IdleTimeout:                  seconds(l.IdleSeconds),
		MaxRequestBodySize:           4096, // that are read before the handler is called; it reads the rest
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		TCPKeepalive:                 true,
		SecureErrorLogMessage:        true,
		Logger:                       log.New(io.Discard, "", 0), // what a client does wrong is answered, not printed
	}
}

// handle answers any request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	defer func() {
		if cause := recover(); cause != nil {
			owned.Report(cause)
			fail(fasthttp.StatusInternalServerError, "server_error", "internal", "a fault of the server").write(ctx)
			ctx.SetConnectionClose()
		}
	}()
	if s.leaving.Load() { // who is here is to ask elsewhere next
		ctx.SetConnectionClose()
	}
	if f := s.refusal(&ctx.Request.Header); f != nil {
		f.write(ctx)
		leave(ctx)
		return
	}
	path, post := string(ctx.Path()), ctx.IsPost()
	switch path {
	case completionsPath, chatPath:
		if !post {
			break
		}
		if s.draining.Load() {
			overloaded("the server is stopping").write(ctx)
			leave(ctx)
			return
		}
		if query := ctx.URI().QueryString(); len(query) > 0 {
			path += "?" + string(query)
		}
		s.serve(ctx, path)
		return
	case "/v1/models", "/health", "/live", "/metrics", "/engines":
		if !ctx.IsGet() && !ctx.IsHead() {
			break
		}
		s.page(ctx, path)
		return
	default:
		fail(fasthttp.StatusNotFound, "invalid_request_error", "unknown_url", "%.20s %.200s is not served here", ctx.Method(), ctx.Path()).write(ctx)
		return
	}
	fail(fasthttp.StatusMethodNotAllowed, "invalid_request_error", "method_not_supported", "%.20s is not supported by %s", ctx.Method(), path).write(ctx)
}

// badRequest answers what is not HTTP.
func (s *Server) badRequest(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	f := wrong("bad_request", "the request cannot be read")
	switch {
	case errors.Is(err, errLines):
		f = wrong("bad_request", "the request cannot be read: %v", errLines)
	case errors.As(err, &small):
		f = fail(fasthttp.StatusRequestHeaderFieldsTooLarge, "invalid_request_error", "head_too_large", "the head of the request has more than %d bytes", s.cfg.Limits.HeadBytes)
	case errors.As(err, &timeout) && timeout.Timeout():
		f = s.late("request")
	}
	f.write(ctx)
	leave(ctx)
}

// late says that something of a request did not come in time.
func (s *Server) late(what string) *fault {
	if s.draining.Load() {
		return overloaded("the server is stopping")
	}
	return fail(fasthttp.StatusRequestTimeout, "invalid_request_error", "timeout", "the %s did not come in %v s", what, s.cfg.Limits.ReadSeconds)
}

// leave has the connection closed after the answer, though the client may still send. One that never sent anything has nothing to be read, and the
// library may close it from another goroutine meanwhile: at a stop, those that wait for their first request.
func leave(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if v, ok := ctx.Conn().(*visitor); ok && v.heard {
		v.linger = true
	}
}

// refused begins the method that a request gets whose head is reason enough to refuse it; the status follows. No client can send it: it has a space.
const refused = "refused "

// early looks at the head of a request before its body is read, and before it is asked for (Expect: 100-continue). Of what is refused, nothing more is read.
func (s *Server) early(h *fasthttp.RequestHeader) (same fasthttp.RequestConfig) {
	status, read := s.judge(h)
	if status != 0 {
		h.SetMethod(refused + strconv.Itoa(status))
	}
	if status != 0 || !read {
		h.SetContentLength(0)
		h.Del("Expect")
		h.SetConnectionClose()
	}
	return same
}

// judge gives the status that a request gets for its head, 0 if that is no reason to refuse it, and tells whether its body matters.
func (s *Server) judge(h *fasthttp.RequestHeader) (status int, read bool) {
	if !bytes.HasPrefix(h.Protocol(), []byte("HTTP/1.")) {
		return fasthttp.StatusHTTPVersionNotSupported, false
	}
	if h.ContentLength() > s.cfg.Limits.BodyBytes {
		return fasthttp.StatusRequestEntityTooLarge, false
	}
	expected := h.Peek("Expect")
	if len(expected) == 0 || !h.IsHTTP11() {
		return 0, true
	}
	if !bytes.EqualFold(expected, []byte("100-continue")) {
		return fasthttp.StatusExpectationFailed, false
	}
	var u fasthttp.URI
	if u.Parse(nil, h.RequestURI()) != nil || !h.IsPost() || string(u.Path()) != completionsPath && string(u.Path()) != chatPath {
		return 0, false
	}
	if s.draining.Load() || s.counters.entered.Load() >= int64(s.cfg.Limits.Requests) {
		return fasthttp.StatusServiceUnavailable, false
	}
	return 0, true
}

// refusal says why early refused a request; nil if it did not.
func (s *Server) refusal(h *fasthttp.RequestHeader) *fault {
	text, is := bytes.CutPrefix(h.Method(), []byte(refused))
	if !is {
		return nil
	}
	switch string(text) {
	case "505":
		return fail(fasthttp.StatusHTTPVersionNotSupported, "invalid_request_error", "bad_request", "the request is of %.20s, HTTP/1.1 is spoken here", h.Protocol())
	case "413":
		return s.tooLarge()
	case "417":
		return fail(fasthttp.StatusExpectationFailed, "invalid_request_error", "bad_request", "only 100-continue can be expected")
	}
	if s.draining.Load() {
		return overloaded("the server is stopping")
	}
	return s.full()
}

func (s *Server) full() *fault {
	s.counters.refused.Add(1)
	return overloaded("%d requests are in flight, no more are taken", s.cfg.Limits.Requests)
}

func (s *Server) tooLarge() *fault {
	return fail(fasthttp.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large", "the body has more than %d bytes", s.cfg.Limits.BodyBytes)
}

// byTokens tells whether it matters what a prompt's tokens are: not for the choice among the others, nor where there is none to be made.
func (s *Server) byTokens() bool { return s.cfg.Mode == fleet.KV && s.fleet.Len() > 1 }

// Address is where it listens.
func (s *Server) Address() string { return s.address }

// Fleet is what it routes to.
func (s *Server) Fleet() *fleet.Fleet { return s.fleet }

// Texts gives the texts that wait for token ids, items {"id": number, "text": text}; nil unless the tokenizer is the host. Tell answers.
func (s *Server) Texts() *stream.Stream {
	if s.texts == nil {
		return nil
	}
	return s.texts.queue
}

// Tell gives the token ids of a text, which are copied; nil says that there are none.
func (s *Server) Tell(id uint64, tokens []block.Token) {
	if s.texts != nil {
		s.texts.tell(id, tokens)
	}
}

// farewell is how long requests may still come in that began before a stop, and how long clients have to take what they are told at its end.
const farewell = time.Second

// Stop begins to stop. For Config.Drain all is served as before, but /health says 503, and answers ask their clients to connect elsewhere. Then no
// connection and no request is taken any more; what runs has so long to end, and is cut off then, which it is told. It does not wait; see Drained.
func (s *Server) Stop(grace time.Duration) {
	s.stopping.Do(func() {
		s.leaving.Store(true)
		s.running.Go(func() {
			defer close(s.drained)
			s.drain()
			s.draining.Store(true)
			_ = s.door.TCPListener.Close() // which the library leaves open if it has not begun to listen
			s.door.hurry(time.Now().Add(min(grace, farewell)))
			ctx, cancel := context.WithTimeout(s.ctx, grace)
			defer cancel()
			_ = s.http.ShutdownWithContext(ctx)
			s.watch.each((*request).abort)
			s.door.hurry(time.Now())
			ctx, cancel = context.WithTimeout(context.Background(), farewell) // also for Close: who is cut off is told
			defer cancel()
			s.door.wait(ctx) // the library waits only once
			s.door.clear()
		})
	})
}

// drain waits for Config.Drain, or Close.
func (s *Server) drain() {
	timer := time.NewTimer(seconds(s.cfg.Drain))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// Drained is closed when nothing runs any more after Stop, or its time is over.
func (s *Server) Drained() <-chan struct{} { return s.drained }

// Close ends everything at once: what runs is cut off, which it is told if it takes that within a second. It is idempotent.
func (s *Server) Close() {
	s.closing.Do(func() {
		s.Stop(0)
		s.stop()
		s.watch.each((*request).abort)
		<-s.drained
		s.running.Wait()
		s.fleet.Close()
		if s.texts != nil {
			s.texts.queue.Close()
		}
	})
}

// Status is what the server tells of itself.
type Status struct {
	Status       string       `json:"status"` // "ready", "not ready": no engine can serve, "draining" or "stopping"
	Listen       string       `json:"listen"`
	Mode         fleet.Mode   `json:"router_mode"`
	BlockSize    int          `json:"block_size"`
	Inflight     int64        `json:"inflight"`
	Disconnected uint64       `json:"disconnected"`
	Retries      uint64       `json:"retries"`
	Broken       uint64       `json:"broken"`
	Untokenized  uint64       `json:"untokenized"`
	Seconds      float64      `json:"uptime_seconds"`
	Engines      []fleet.Info `json:"engines"`

	File *fleet.FileStatus `json:"engines_file,omitempty"` // nil: there is none
}

// Status tells how the server is.
func (s *Server) Status() Status {
	c := &s.counters
	st := Status{
		Status: "not ready", Listen: s.address, Mode: s.cfg.Mode, BlockSize: s.cfg.BlockSize, Inflight: c.inflight.Load(), Disconnected: c.disconnected.Load(),
		Retries: c.retries.Load(), Broken: c.broken.Load(), Untokenized: c.untokenized.Load(), Seconds: time.Since(s.started).Seconds(), Engines: s.fleet.Engines(),
	}
	ranks := s.fleet.Ranks()
	for i := range st.Engines {
		st.Engines[i].Ranks = ranks[st.Engines[i].WorkerID]
	}
	if s.cfg.File != "" {
		file := s.fleet.File()
		st.File = &file
	}
	switch {
	case s.draining.Load():
		st.Status = "stopping"
	case s.leaving.Load():
		st.Status = "draining"
	case slices.ContainsFunc(st.Engines, func(i fleet.Info) bool { return i.Candidate }):
		st.Status = "ready"
	}
	return st
}

// page answers what is asked of the server itself.
func (s *Server) page(ctx *fasthttp.RequestCtx, path string) {
	switch path {
	case "/live":
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"status":"live"}`)
	case "/health", "/engines":
		st := s.Status()
		data, err := json.Marshal(st)
		if err != nil {
			fail(fasthttp.StatusInternalServerError, "server_error", "internal", "%v", err).write(ctx)
			return
		}
		if path == "/health" && st.Status != "ready" {
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		}
		ctx.SetContentType("application/json")
		ctx.Response.SetBodyRaw(data)
	case "/metrics":
		ctx.SetContentType(metrics.Format)
		if err := s.exporter.Write(ctx); err != nil {
			fail(fasthttp.StatusServiceUnavailable, "server_error", "closed", "%v", err).write(ctx)
			return
		}
		s.counters.write(ctx, s.buffered.Load())
	case "/v1/models":
		s.models(ctx)
	}
}

// models lists what the engines serve, each model once.
func (s *Server) models(ctx *fasthttp.RequestCtx) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Owner   string `json:"owned_by"`
		Max     int    `json:"max_model_len,omitempty"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{}}
	for _, e := range s.fleet.Engines() {
		if !e.Candidate {
			continue
		}
		for _, id := range e.About.Models {
			if !slices.ContainsFunc(list.Data, func(m model) bool { return m.ID == id }) {
				list.Data = append(list.Data, model{id, "model", s.started.Unix(), string(e.About.Kind), e.About.MaxModelLen})
			}
		}
	}
	data, err := json.Marshal(list)
	if err != nil {
		fail(fasthttp.StatusInternalServerError, "server_error", "internal", "%v", err).write(ctx)
		return
	}
	ctx.SetContentType("application/json")
	ctx.Response.SetBodyRaw(data)
}

// told gives the address of a listener in the words in which it was asked for: "all addresses" is the same in each, and Go has one of its own for it.
func told(asked string, at net.Addr) string {
	host, _, err := net.SplitHostPort(asked)
	if err != nil || !net.ParseIP(host).IsUnspecified() {
		return at.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(at.(*net.TCPAddr).Port))
}
