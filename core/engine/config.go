package engine

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Kind is whose server it is.
type Kind string

// Kinds. Unknown asks in ways that both understand, or neither minds.
const (
	Unknown Kind = ""
	VLLM    Kind = "vllm"
	SGLang  Kind = "sglang"
)

// Config describes one engine. Only URL is required; the zero value of a field means its default.
type Config struct {
	URL    string      // "http://host:8000"; a path is put before those of requests
	Kind   Kind        // Unknown until Describe finds out
	Model  string      // that completions ask for; "": the request says, or the engine has only one
	Header http.Header // sent with every request, health checks too: Authorization, say
	DPSize uint32      // ranks behind the URL; with more than one, requests name theirs; 1
	Limits Limits
	Health Health
	TLS    *tls.Config // of https; nil: Go's defaults
	Log    *slog.Logger
}

// Limits bound what an engine can cost. The zero value of a field means its default.
type Limits struct {
	Requests     int           // that run at a time; more are ErrFull; 4096
	IdleConns    int           // connections that are kept; 512
	Connect      time.Duration // to be connected, TLS included; 3 s
	Begin        time.Duration // until the first byte of an answer: it may wait behind others, and for its prefill; 10 min
	Between      time.Duration // without a byte of the answer, and, of a completion, without an event; 2 min
	HeaderBytes  int64         // of an answer; 64 KiB
	EventBytes   int           // of one server-sent event: vLLM's first one repeats the prompt's ids; 16 MiB
	StreamEvents int           // of a completion; 4 Mi
	BodyBytes    int64         // of an answer that is read whole; 16 MiB
	ErrorBytes   int64         // kept of an answer that is an error; 64 KiB
}

// Health says how it is told whether an engine can serve. The zero value of a field means its default.
type Health struct {
	Path       string        // asked with GET, expected to be answered with 2xx; "/health"
	Interval   time.Duration // between checks of a healthy engine; 5 s
	Timeout    time.Duration // of one check: SGLang's takes a second, and generates a token; 10 s
	Failures   int           // faults in a row that eject it; 3
	Backoff    time.Duration // before the first check after an ejection; it doubles; 0.5 s
	MaxBackoff time.Duration // 30 s
}

const idleConn = 4 * time.Second // uvicorn, which both engines run on, closes an idle connection after 5 s: be first

func (c *Config) fill() {
	l, h := &c.Limits, &c.Health
	c.DPSize = cmp.Or(c.DPSize, 1)
	l.Requests = cmp.Or(l.Requests, 4096)
	l.IdleConns = cmp.Or(l.IdleConns, 512)
	l.Connect = cmp.Or(l.Connect, 3*time.Second)
	l.Begin = cmp.Or(l.Begin, 10*time.Minute)
	l.Between = cmp.Or(l.Between, 2*time.Minute)
	l.HeaderBytes = cmp.Or(l.HeaderBytes, 64<<10)
	l.EventBytes = cmp.Or(l.EventBytes, 16<<20)
	l.StreamEvents = cmp.Or(l.StreamEvents, 4<<20)
	l.BodyBytes = cmp.Or(l.BodyBytes, 16<<20)
	l.ErrorBytes = cmp.Or(l.ErrorBytes, 64<<10)
	h.Path = cmp.Or(h.Path, "/health")
	h.Interval = cmp.Or(h.Interval, 5*time.Second)
	h.Timeout = cmp.Or(h.Timeout, 10*time.Second)
	h.Failures = cmp.Or(h.Failures, 3)
	h.Backoff = cmp.Or(h.Backoff, time.Second/2)
	h.MaxBackoff = cmp.Or(h.MaxBackoff, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// parse checks the configuration and gives the URL.
func (c *Config) parse() (*url.URL, error) {
	u, err := ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	switch c.Kind {
	case Unknown, VLLM, SGLang:
	default:
		return nil, fmt.Errorf("%w: kind %q, expected vllm, sglang or nothing", ErrInvalid, c.Kind)
	}
	for name, values := range c.Header {
		for _, v := range values {
			if name == "" || strings.ContainsAny(name, " \t\r\n:\x00") || strings.ContainsAny(v, "\r\n\x00") {
				return nil, fmt.Errorf("%w: header %.100q cannot be sent", ErrInvalid, name)
			}
		}
	}
	l, h := &c.Limits, &c.Health
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"requests", int64(l.Requests)}, {"idle_conns", int64(l.IdleConns)}, {"connect", int64(l.Connect)}, {"begin", int64(l.Begin)},
		{"between", int64(l.Between)}, {"header_bytes", l.HeaderBytes}, {"event_bytes", int64(l.EventBytes)}, {"stream_events", int64(l.StreamEvents)},
		{"body_bytes", l.BodyBytes}, {"error_bytes", l.ErrorBytes}, {"interval", int64(h.Interval)}, {"timeout", int64(h.Timeout)},
		{"failures", int64(h.Failures)}, {"backoff", int64(h.Backoff)}, {"max_backoff", int64(h.MaxBackoff)},
	} {
		if f.n < 0 {
			return nil, fmt.Errorf("%w: %s is %d, expected more than 0", ErrInvalid, f.name, f.n)
		}
	}
	if h.Path != "" && !strings.HasPrefix(h.Path, "/") {
		return nil, fmt.Errorf("%w: health path %.200q, expected one that begins with /", ErrInvalid, h.Path)
	}
	return u, nil
}

// ParseURL reads the address of an engine: http or https, a host, perhaps a port and a path. Errors: ErrInvalid.
func ParseURL(text string) (*url.URL, error) {
	bad := func(why string) (*url.URL, error) {
		return nil, fmt.Errorf("%w: engine %.200q: %s; expected \"http://host:port\"", ErrInvalid, text, why)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return bad("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("the scheme is neither http nor https")
	case u.Hostname() == "":
		return bad("no host")
	case u.User != nil:
		return bad("a user; give a header instead")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad("a query or a fragment")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return bad("the port is not 1 to 65535")
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return bad("no port after the colon")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if strings.HasSuffix(u.Path, "/v1") {
		return bad("leave out /v1, which is added to it")
	}
	u.RawPath = ""
	return u, nil
}

// transport makes what carries requests.
func (c *Config) transport() *http.Transport {
	d := &net.Dialer{Timeout: c.Limits.Connect, KeepAlive: 15 * time.Second}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        c.TLS,
		TLSHandshakeTimeout:    c.Limits.Connect,
		Protocols:              &protocols,
		DisableCompression:     true, // what is handed on is handed on as it is
		MaxIdleConns:           c.Limits.IdleConns,
		MaxIdleConnsPerHost:    c.Limits.IdleConns,
		IdleConnTimeout:        idleConn,
		MaxResponseHeaderBytes: c.Limits.HeaderBytes,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}
}
