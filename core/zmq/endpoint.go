package zmq

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Endpoint is a parsed tcp or ipc address.
type Endpoint struct {
	Scheme string // "tcp" or "ipc"
	Host   string // tcp: a name, an address without brackets, or "*"
	Port   uint16 // tcp
	Path   string // ipc: a path, or "@name" in Linux' abstract namespace
}

// String writes the endpoint as ZeroMQ does.
func (e Endpoint) String() string {
	if e.Scheme == "ipc" {
		return "ipc://" + e.Path
	}
	return "tcp://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}

// Wildcard tells whether the host stands for all addresses of a machine: one binds to it, but cannot connect to it.
func (e Endpoint) Wildcard() bool {
	return e.Scheme == "tcp" && (e.Host == "*" || e.Host == "0.0.0.0" || e.Host == "::")
}

func (e Endpoint) network() (network, address string) {
	if e.Scheme == "ipc" {
		return "unix", e.Path
	}
	host := e.Host
	if host == "*" {
		host = ""
	}
	return "tcp", net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
}

// ParseEndpoint reads tcp://HOST:PORT (HOST a name, an IPv4 address, [IPv6] or *) or ipc://PATH. Port 0, which only
// binding can mean, and inproc, which ends at the process that made it, are refused with ErrEndpoint.
func ParseEndpoint(s string) (Endpoint, error) {
	e, err := parse(s)
	if err == nil && e.Scheme == "tcp" && e.Port == 0 {
		return Endpoint{}, fmt.Errorf("%w %q: port 0 names no port to connect to, expected 1 to 65535", ErrEndpoint, s)
	}
	return e, err
}

func parse(s string) (Endpoint, error) {
	scheme, rest, _ := strings.Cut(s, "://")
	switch {
	case scheme == "tcp" && rest != "":
		return parseTCP(s, rest)
	case scheme == "ipc" && rest != "" && !strings.ContainsRune(rest, 0):
		return Endpoint{Scheme: "ipc", Path: rest}, nil
	case scheme == "inproc":
		return Endpoint{}, fmt.Errorf("%w %q: inproc is not reachable from another process, use tcp or ipc", ErrEndpoint, s)
	}
	return Endpoint{}, fmt.Errorf("%w %q: expected tcp://HOST:PORT or ipc://PATH", ErrEndpoint, s)
}

func parseTCP(s, rest string) (Endpoint, error) {
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w %q: expected HOST:PORT, an IPv6 address in brackets", ErrEndpoint, s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w %q: port %q is not a number from 0 to 65535", ErrEndpoint, s, port)
	}
	if !validHost(host, strings.HasPrefix(rest, "[")) {
		return Endpoint{}, fmt.Errorf("%w %q: host %q is neither a name nor an address", ErrEndpoint, s, host)
	}
	return Endpoint{Scheme: "tcp", Host: host, Port: uint16(n)}, nil
}

func validHost(host string, bracketed bool) bool {
	if bracketed || strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		return err == nil && a.Is6()
	}
	if host == "*" {
		return true
	}
	notName := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
	}
	return host != "" && len(host) <= 253 && !strings.ContainsFunc(host, notName)
}

// RankEndpoint gives the endpoint of one data-parallel rank: the engines add the global rank to the port of the base.
// A wildcard host is replaced by host, which may be "" when the base names a host. An ipc base serves rank 0 only, as
// in the engines; other ranks need an endpoint of their own. Errors wrap ErrEndpoint.
func RankEndpoint(base, host string, rank uint32) (string, error) {
	e, err := ParseEndpoint(base)
	if err != nil {
		return "", err
	}
	if e.Scheme == "ipc" {
		if rank != 0 {
			return "", fmt.Errorf("%w %q: ipc has no port to add rank %d to, name an endpoint for each rank", ErrEndpoint, base, rank)
		}
		return e.String(), nil
	}
	if e.Wildcard() {
		if e.Host, err = connectHost(base, host); err != nil {
			return "", err
		}
	}
	if uint64(e.Port)+uint64(rank) > 65535 {
		return "", fmt.Errorf("%w %q: port of rank %d is %d, beyond 65535", ErrEndpoint, base, rank, uint64(e.Port)+uint64(rank))
	}
	e.Port += uint16(rank)
	return e.String(), nil
}

// BindEndpoint gives the endpoint that one data-parallel rank listens on: as RankEndpoint, but a wildcard stays, and port 0,
// which takes a free port, is the same for every rank. Errors wrap ErrEndpoint.
func BindEndpoint(base string, rank uint32) (string, error) {
	e, err := parse(base)
	if err != nil {
		return "", err
	}
	if e.Wildcard() || e.Scheme == "tcp" && e.Port == 0 {
		if e.Port != 0 {
			if uint64(e.Port)+uint64(rank) > 65535 {
				return "", fmt.Errorf("%w %q: port of rank %d is %d, beyond 65535", ErrEndpoint, base, rank, uint64(e.Port)+uint64(rank))
			}
			e.Port += uint16(rank)
		}
		return e.String(), nil
	}
	return RankEndpoint(base, "", rank)
}

// TakesFreePort tells whether who binds to an endpoint gets a port that is free.
func TakesFreePort(endpoint string) bool {
	e, err := parse(endpoint)
	return err == nil && e.Scheme == "tcp" && e.Port == 0
}

func connectHost(base, host string) (string, error) {
	h := host
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		h = h[1 : len(h)-1]
	}
	e := Endpoint{Scheme: "tcp", Host: h}
	if e.Wildcard() || !validHost(h, h != host) {
		return "", fmt.Errorf("%w %q: %q stands for every address, so the worker's host must be given (got %q)", ErrEndpoint, base, "*", host)
	}
	return h, nil
}

// CheckRanges checks the event and replay bases of a worker with ranks first to first+size-1: every rank must have an
// endpoint, and no event port may also be a replay port. replay "" means there is none. Errors wrap ErrEndpoint.
func CheckRanges(events, replay, host string, first, size uint32) error {
	if size == 0 {
		return fmt.Errorf("%w: a worker has at least one rank, got 0", ErrEndpoint)
	}
	if uint64(first)+uint64(size)-1 > 1<<32-1 {
		return fmt.Errorf("%w: rank %d is beyond 2^32-1", ErrEndpoint, uint64(first)+uint64(size)-1)
	}
	var bases []Endpoint
	for _, base := range []string{events, replay} {
		if base == "" {
			continue
		}
		s, err := RankEndpoint(base, host, first)
		if err != nil {
			return err
		}
		if _, err := RankEndpoint(base, host, first+size-1); err != nil {
			return err
		}
		e, _ := parse(s)
		bases = append(bases, e)
	}
	if len(bases) == 2 && overlap(bases[0], bases[1], size) {
		return fmt.Errorf("%w: events %q and replay %q overlap for ranks %d to %d", ErrEndpoint, events, replay, first, first+size-1)
	}
	return nil
}

func overlap(a, b Endpoint, size uint32) bool {
	if a.Scheme != b.Scheme || a.Host != b.Host || a.Path != b.Path {
		return false
	}
	d := int64(a.Port) - int64(b.Port)
	return max(d, -d) < int64(size)
}
