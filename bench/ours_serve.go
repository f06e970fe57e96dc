package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	front "github.com/dynamo-go/dynamo-go/core/serve"
)

// What is asked of both proxies, over an upstream in this process that answers at once.
const (
	serveTokens  = 1000 // of a prompt
	serveEvents  = 32   // of a stream
	serveEvery   = 5 * time.Millisecond
	serveClients = 16  // that ask one after the other
	serveStreams = 128 // at once
	serveLasts   = 2 * time.Second
)

func init() {
	prepare["serve"] = func() map[string]measurement { return proxied(ourProxy) }
	prepare["direct_serve"] = func() map[string]measurement { return proxied(noProxy) }
	prepare["nginx_serve"] = func() map[string]measurement { return proxied(nginxProxy) }
}

// noProxy is the upstream itself, which is in this process: 0 stands for a proxy's.
func noProxy(upstream string) (string, int, error) { return upstream, 0, nil }

// proxied measures a proxy: CPU time of its process a request, and what a client waits.
func proxied(start func(upstream string) (address string, pid int, err error)) map[string]measurement {
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go accept(upstream)
	address, pid, err := start(upstream.Addr().String())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	measure := func(clients int, stream bool) func() map[string][]float64 {
		return func() map[string][]float64 {
			if err != nil {
				return nil
			}
			return burden(address, pid, clients, stream)
		}
	}
	return map[string]measurement{"whole": measure(serveClients, false), "stream": measure(serveStreams, true)}
}

// ties are what processes end with; the collector would close them.
var ties []io.Closer

// started runs a process that ends with this one, which holds the other end of its input, and gives the first line that it prints.
func started(cmd *exec.Cmd) (line string, err error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	ties = append(ties, in)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	return bufio.NewReader(out).ReadString('\n')
}

// ourProxy starts this program as our server.
func ourProxy(upstream string) (string, int, error) {
	self, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	cmd := exec.Command(self, "proxy", upstream)
	cmd.Stderr = os.Stderr
	line, err := started(cmd)
	if err != nil {
		return "", 0, err
	}
	return strings.TrimSpace(line), cmd.Process.Pid, nil
}

// proxy is the process of ourProxy: two engines, which are the same upstream.
func proxy(upstream string, in io.Reader, out io.Writer) error {
	engines := []string{"http://" + upstream + ",none,worker_id=1", "http://" + upstream + ",none,worker_id=2"}
	s, err := front.New(front.Config{Listen: "127.0.0.1:0", Engines: engines}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Fleet().WaitReady(ctx, len(engines)); err != nil {
		return err
	}
	fmt.Fprintln(out, s.Address())
	signal.Ignore(os.Interrupt)
	_, err = io.Copy(io.Discard, in)
	return err
}

const nginxConfig = `worker_processes 1; master_process off; daemon off; pid %[1]s/pid; error_log %[1]s/error;
events { worker_connections 4096; }
http {
  access_log off; client_max_body_size 16m; client_body_buffer_size 128k; keepalive_requests 100000000; keepalive_timeout 600;
  client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  upstream u { server %[2]s; keepalive 1024; keepalive_requests 100000000; }
  server { listen %[3]s; location / { proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } }
}
`

// nginxProxy starts nginx as a plain proxy, with one process like ours.
func nginxProxy(upstream string) (string, int, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		return "", 0, fmt.Errorf("peer missing: nginx is not on PATH (Debian: apt-get install nginx-light)")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, err
	}
	address := free.Addr().String()
	must(free.Close())
	folder, err := os.MkdirTemp("", "bench-nginx")
	if err != nil {
		return "", 0, err
	}
	file := filepath.Join(folder, "conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, folder, upstream, address), 0o600); err != nil {
		return "", 0, err
	}
	// Its own way to end with this process: a shell that waits for the end of its input.
	cmd := exec.Command("sh", "-c", `"$0" -c "$1" & echo $!; read -r end; kill $!; wait $!; rm -rf "$2"`, program, file, folder)
	cmd.Stderr = os.Stderr
	line, err := started(cmd)
	if err != nil {
		return "", 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	for try := 0; err == nil && try < 100; try++ {
		c, refused := net.Dial("tcp", address)
		if refused == nil {
			return address, pid, c.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return address, pid, err
}

// accept serves the upstream: bare HTTP, so that it costs little.
func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = answerAll(c)
		}()
	}
}

var (
	serveEvent = []byte(`data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}` + "\n\n")
	serveWhole = []byte(`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":"` + strings.Repeat(" token", 100) +
		`","finish_reason":"length"}],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}}`)
)

func answerAll(c net.Conn) error {
	in := bufio.NewReaderSize(c, 64<<10)
	whole := append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(serveWhole)), serveWhole...)
	chunk := append(append(fmt.Appendf(nil, "%x\r\n", len(serveEvent)), serveEvent...), "\r\n"...)
	done := []byte("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		switch {
		case r.URL.Path == "/v1/models":
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n"+`{"data":[{"id":"m"   }]}`)
		case r.Method == http.MethodGet && r.URL.Path != "/health":
			_, err = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		case !bytes.Contains(body, []byte(`"stream":true`)):
			_, err = c.Write(whole)
		default:
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			for i := 0; i < serveEvents && err == nil; i++ {
				_, err = c.Write(chunk)
				time.Sleep(serveEvery)
			}
			if err == nil {
				_, err = c.Write(done)
			}
		}
		if err != nil {
			return err
		}
	}
}

// burden asks a proxy for a while, and gives what a request cost it, and how long it took.
func burden(address string, pid, clients int, stream bool) map[string][]float64 {
	var ids []string
	for i := range serveTokens {
		ids = append(ids, strconv.Itoa(i*37%128_000))
	}
	body := fmt.Sprintf(`{"model":"m","max_tokens":100,"stream":%v,"prompt":[%s]}`, stream, strings.Join(ids, ","))
	request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var mu sync.Mutex
	var took []float64
	var group sync.WaitGroup
	before, begun := cpuOf(pid), time.Now()
	for range clients {
		group.Go(func() {
			c, err := net.Dial("tcp", address)
			must(err)
			defer c.Close()
			in := bufio.NewReaderSize(c, 64<<10)
			var mine []float64
			for time.Since(begun) < serveLasts {
				start := time.Now()
				_, err := c.Write(request)
				must(err)
				r, err := http.ReadResponse(in, nil)
				must(err)
				text, err := io.ReadAll(r.Body)
				must(err)
				if r.StatusCode != 200 || stream && !bytes.HasSuffix(text, []byte("[DONE]\n\n")) || !stream && len(text) != len(serveWhole) {
					panic(fmt.Sprintf("%d: %.200s", r.StatusCode, text))
				}
				mine = append(mine, float64(time.Since(start)))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	group.Wait()
	cpu, elapsed := cpuOf(pid)-before, time.Since(begun)
	slices.Sort(took)
	figures := map[string][]float64{
		"p50": {took[len(took)/2]}, "p99": {took[len(took)*99/100]}, "rate": {float64(len(took)) / elapsed.Seconds()},
	}
	if pid != 0 {
		figures["cpu"] = []float64{float64(cpu) / float64(len(took))}
	}
	return figures
}

// cpuOf gives the CPU time of a process, all its threads, in ticks of 10 ms; 0 if there is none.
func cpuOf(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	user, err := strconv.Atoi(fields[11])
	must(err)
	system, err := strconv.Atoi(fields[12])
	must(err)
	return time.Duration(user+system) * 10 * time.Millisecond
}
