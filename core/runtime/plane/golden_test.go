package plane_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/tcp"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// exchange is one captured connection: who dialled is the client.
type exchange struct {
	Kind   string `json:"kind"`
	Client string `json:"client_to_server"`
	Server string `json:"server_to_client"`
}

// Every exchange between Dynamo's own processes decodes, and what our encoders make of it decodes to the same.
func TestExchangesOfDynamo(t *testing.T) {
	paths, err := filepath.Glob("../../../testdata/golden/dynamo-wire/*/golden_hex.json")
	require.NoError(t, err)
	require.Len(t, paths, 5)
	g := golden{T: t, seen: map[string]int{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var all []exchange
		require.NoError(t, json.Unmarshal(data, &all))
		for _, x := range all {
			client, err := hex.DecodeString(x.Client)
			require.NoError(t, err)
			server, err := hex.DecodeString(x.Server)
			require.NoError(t, err)
			switch x.Kind {
			case "request_plane":
				g.requests(client)
				g.acks(server)
			case "response_stream":
				g.response(client)
				g.words(server)
			case "zmtp":
				g.zmtp(server)
			case "nats":
				g.nats(client)
				g.nats(server)
			default:
				t.Fatal(x.Kind)
			}
		}
	}
	for _, what := range []string{
		"request msgpack", "request json", "request nats", "ack", "prologue", "item", "plain item", "failure", "final", "word stop", "word kill",
		wire.TopicKVEvents, wire.TopicMetrics, wire.TopicSequences, "stored", "removed", "AddRequest", "Free",
	} {
		require.NotZero(t, g.seen[what], "%s: %v", what, g.seen)
	}
}

type golden struct {
	*testing.T
	seen map[string]int
}

func (g golden) requests(b []byte) {
	r := bufio.NewReader(bytes.NewReader(b))
	for {
		q, err := tcp.ReadRequest(r, plane.MaxMessageBytes, func(int) error { return nil })
		if err == io.EOF {
			return
		}
		require.NoError(g, err)
		again, err := tcp.AppendRequest(nil, q.Path, q.Headers, q.Payload)
		require.NoError(g, err)
		require.True(g, bytes.Contains(b, again))
		g.request(q.Payload)
	}
}

func (g golden) request(payload []byte) {
	header, body, err := plane.SplitMessage(payload)
	require.NoError(g, err)
	c, err := plane.DecodeControl(header)
	require.NoError(g, err)
	g.seen["request "+c.Codec]++
	require.JSONEq(g, withoutTimes(g, header), withoutTimes(g, c.Encode()))
	require.Equal(g, payload, plane.AppendMessage(nil, header, body))
	g.convert(c.Codec, body)
}

func withoutTimes(t testing.TB, header []byte) string {
	var m map[string]any
	require.NoError(t, json.Unmarshal(header, &m))
	delete(m, "frontend_send_ts_ns")
	b, err := json.Marshal(m)
	require.NoError(t, err)
	return string(b)
}

// convert goes from one codec to the other and back.
func (g golden) convert(codec string, body []byte) {
	if codec == discovery.CodecMsgpack {
		j, err := wire.ToJSON(nil, body)
		require.NoError(g, err)
		body = j
	}
	m, err := wire.FromJSON(nil, body)
	require.NoError(g, err)
	again, err := wire.ToJSON(nil, m)
	require.NoError(g, err)
	require.Equal(g, exact(g, body), exact(g, again))
}

func exact(t testing.TB, data []byte) (v any) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&v), "%q", data)
	return normal(v)
}

// normal has numbers that are equal look equal: 1.0 and 1.
func normal(v any) any {
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return json.Number(strconv.FormatFloat(f, 'f', -1, 64))
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = normal(v[k])
		}
	}
	return v
}

func (g golden) acks(b []byte) {
	for ; len(b) > 0; b = b[4:] {
		require.Equal(g, []byte{0, 0, 0, 0}, b[:4])
		g.seen["ack"]++
	}
}

func (g golden) response(b []byte) {
	r := plane.NewReader(bytes.NewReader(b), plane.MaxMessageBytes)
	header, _, err := r.Read()
	require.NoError(g, err)
	require.Contains(g, string(header), `"stream_type":"response"`)
	header, _, err = r.Read()
	require.NoError(g, err)
	require.JSONEq(g, `{"error":null}`, string(header))
	g.seen["prologue"]++
	for {
		header, body, err := r.Read()
		if err == io.EOF {
			return
		}
		require.NoError(g, err)
		if len(header) > 0 {
			require.Equal(g, `"sentinel"`, string(header))
			continue
		}
		require.True(g, bytes.Contains(b, plane.AppendMessage(nil, nil, body)))
		g.item(body)
	}
}

func (g golden) item(body []byte) {
	asJSON := body[0] == '{'
	if asJSON {
		var err error
		body, err = wire.FromJSON(nil, body)
		require.NoError(g, err)
	}
	it, err := wire.DecodeItem(body, false)
	if plain, plainErr := wire.DecodeItem(body, true); plainErr == nil && len(plain.Data) > 0 {
		if answer, err := wire.DecodeRangeAnswer(plain.Data, rankIn(plain.Data)); err == nil {
			require.Equal(g, event.RangeDump, answer.Kind)
			again, err := wire.DecodeItem(wire.AppendItem(nil, plain.Data, true), true) // Dynamo's keys are in another order here
			require.NoError(g, err)
			require.Equal(g, plain.Data, again.Data)
			same, err := wire.DecodeRangeAnswer(wire.AppendRangeAnswer(nil, 0, answer), worker.Rank{})
			require.NoError(g, err)
			require.Equal(g, answer, same)
			g.seen["plain item"]++
			return
		}
	}
	require.NoError(g, err, "%x", body)
	switch {
	case it.Final:
		require.Equal(g, body, wire.AppendFinal(nil))
		g.seen["final"]++
	case it.Failure != nil:
		g.seen["failure"]++
		require.True(g, it.Failure.Backend)
		require.NotEmpty(g, it.Failure.Class)
		again, err := wire.DecodeItem(wire.AppendFailure(nil, it.Failure), false)
		require.NoError(g, err)
		require.Equal(g, it.Failure, again.Failure)
	default:
		g.seen["item"]++
		_, err := wire.ReadOutput(it.Data)
		require.NoError(g, err)
		if asJSON { // its keys are in another order
			again, err := wire.DecodeItem(wire.AppendItem(nil, it.Data, false), false)
			require.NoError(g, err)
			require.Equal(g, it, again)
			return
		}
		require.Equal(g, body, wire.AppendItem(nil, it.Data, false))
	}
}

func (g golden) words(b []byte) {
	r := plane.NewReader(bytes.NewReader(b), 1<<10)
	for {
		header, body, err := r.Read()
		if err == io.EOF {
			return
		}
		require.NoError(g, err)
		require.Empty(g, body)
		g.seen["word "+strings.Trim(string(header), `"`)]++
	}
}

// zmtp goes through what a publisher sent.
func (g golden) zmtp(b []byte) {
	b = b[64:]
	var frames [][]byte
	for len(b) > 0 {
		flags, n, head := b[0], int(b[1]), 2
		if flags&2 != 0 {
			n, head = int(uint64(b[5])<<24|uint64(b[6])<<16|uint64(b[7])<<8|uint64(b[8])), 9
		}
		frame := b[head : head+n]
		if b = b[head+n:]; flags&4 != 0 {
			continue
		}
		if frames = append(frames, frame); flags&1 != 0 {
			continue
		}
		e, err := wire.ParseEventFrames(frames)
		require.NoError(g, err)
		again := wire.EventFrames(&e)
		require.Equal(g, frames[:3], again[:3])
		same, err := wire.ParseEventFrames(again)
		require.NoError(g, err)
		require.Equal(g, e, same)
		g.event(&e)
		frames = nil
	}
}

func rankIn(payload []byte) (r worker.Rank) {
	j, err := wire.ToJSON(nil, payload)
	if err != nil {
		return r
	}
	if _, rest, ok := strings.Cut(string(j), `"worker_id":`); ok {
		r.ID, _ = strconv.ParseUint(rest[:strings.IndexAny(rest, ",}")], 10, 64)
	}
	return r
}

func (g golden) event(e *wire.Envelope) {
	g.seen[e.Topic]++
	switch e.Topic {
	case wire.TopicKVEvents:
		rank := rankIn(e.Payload)
		events, err := wire.DecodeKVEvents(e.Payload, rank)
		require.NoError(g, err)
		for _, ev := range events {
			g.seen[ev.Kind.String()]++
		}
		require.Equal(g, e.Payload, wire.AppendKVEvents(nil, rank.ID, events))
	case wire.TopicMetrics:
		l, err := wire.DecodeActiveLoad(e.Payload)
		require.NoError(g, err)
		require.Equal(g, e.Payload, wire.AppendActiveLoad(nil, &l))
	case wire.TopicSequences:
		var all []wire.SequenceEvent
		require.NoError(g, wire.NewSequenceDecoder().DecodeAll(e.Payload, func(e *wire.SequenceEvent) {
			c := *e
			c.Sequences = append(c.Sequences[:0:0], e.Sequences...)
			all = append(all, c)
			g.seen[map[wire.SequenceKind]string{wire.SequenceAdded: "AddRequest", wire.SequenceFreed: "Free"}[e.Kind]]++
		}))
		again, err := wire.AppendSequences(nil, all)
		require.NoError(g, err)
		var same []wire.SequenceEvent
		require.NoError(g, wire.NewSequenceDecoder().DecodeAll(again, func(e *wire.SequenceEvent) {
			c := *e
			c.Sequences = append(c.Sequences[:0:0], e.Sequences...)
			same = append(same, c)
		}))
		require.Equal(g, all, same)
	default:
		require.Fail(g, "unknown topic", e.Topic)
	}
}

// nats goes through what either side of a NATS connection sent: requests, and bare envelopes.
func (g golden) nats(b []byte) {
	for len(b) > 0 {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		require.True(g, ok)
		words := strings.Fields(string(line))
		if b = rest; len(words) == 0 {
			continue
		}
		switch words[0] {
		case "PUB", "HPUB", "MSG", "HMSG":
			size, err := strconv.Atoi(words[len(words)-1])
			require.NoError(g, err)
			head := 0
			if words[0][0] == 'H' {
				head, err = strconv.Atoi(words[len(words)-2])
				require.NoError(g, err)
			}
			payload := b[head:size]
			b = b[size:]
			switch {
			case len(payload) == 0:
			case payload[0] == 0:
				g.seen["request nats"]++
				g.request(payload)
			case payload[0] == '{', payload[0] == '+': // the service's own information
			default:
				e, err := wire.DecodeEnvelope(payload)
				require.NoError(g, err)
				require.Equal(g, payload, wire.AppendEnvelope(nil, &e))
				g.event(&e)
			}
		}
	}
}
