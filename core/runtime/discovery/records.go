package discovery

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Codecs of requests.
const (
	CodecMsgpack = "msgpack"
	CodecJSON    = "json"
)

// Instance is one worker that serves an endpoint.
type Instance struct {
	Name
	ID         uint64
	TCP        string // "host:port/path" if it is reached by the tcp request plane
	NATS       string // subject if it is reached by the nats request plane
	Codec      string // CodecMsgpack or CodecJSON; "" in a record: JSON, of a worker that knows nothing else
	DeviceType string
}

type transport struct {
	TCP  string `json:"tcp,omitempty"`
	NATS string `json:"nats_tcp,omitempty"`
}

type instanceJSON struct {
	Type       string    `json:"type,omitempty"`
	Component  string    `json:"component"`
	Endpoint   string    `json:"endpoint"`
	Namespace  string    `json:"namespace"`
	ID         uint64    `json:"instance_id"`
	Transport  transport `json:"transport"`
	DeviceType string    `json:"device_type,omitempty"`
	Codec      string    `json:"request_plane_codec,omitempty"`
}

func (i *Instance) wire(typ string) instanceJSON {
	return instanceJSON{typ, i.Component, i.Endpoint, i.Namespace, i.ID, transport{i.TCP, i.NATS}, i.DeviceType, i.Codec}
}

func (j *instanceJSON) instance() (Instance, error) {
	i := Instance{
		Name: Name{j.Namespace, j.Component, j.Endpoint}, ID: j.ID,
		TCP: j.Transport.TCP, NATS: j.Transport.NATS, DeviceType: j.DeviceType, Codec: j.Codec,
	}
	if i.Codec == "" {
		i.Codec = CodecJSON
	}
	if i.TCP == "" && i.NATS == "" {
		return i, fmt.Errorf("%w: an instance without a transport that is known", ErrInvalid)
	}
	return i, i.check()
}

// Encode gives the record.
func (i *Instance) Encode() []byte { return encode(i.wire("Endpoint")) }

// DecodeInstance reads the record of a key. Errors: ErrInvalid.
func DecodeInstance(path string, value []byte) (Instance, error) {
	var j instanceJSON
	if err := decode(value, "Endpoint", &j.Type, &j); err != nil {
		return Instance{}, err
	}
	i, err := j.instance()
	if err == nil && InstanceKey(i.Name, i.ID).Path != path {
		err = fmt.Errorf("%w: the record is of %s", ErrInvalid, InstanceKey(i.Name, i.ID))
	}
	return i, err
}

// Model is an instance's model card. What is not understood of it is kept in Card.
type Model struct {
	Name
	ID     uint64
	Suffix string // "": the instance's own card; otherwise one of an adapter
	Card   json.RawMessage
}

type modelJSON struct {
	Type      string          `json:"type"`
	Namespace string          `json:"namespace"`
	Component string          `json:"component"`
	Endpoint  string          `json:"endpoint"`
	ID        uint64          `json:"instance_id"`
	Card      json.RawMessage `json:"card_json"`
	Suffix    string          `json:"model_suffix,omitempty"`
}

// NewModel gives the record of a card, which is a JSON object in Dynamo's form. One that names an adapter (lora.name) stands beside the instance's
// own. Errors: ErrInvalid.
func NewModel(n Name, id uint64, card json.RawMessage) (Model, error) {
	var c *Card
	if err := json.Unmarshal(card, &c); err != nil {
		return Model{}, fmt.Errorf("%w: model card: %w", ErrInvalid, err)
	}
	if c == nil {
		return Model{}, fmt.Errorf("%w: model card: null, expected an object", ErrInvalid)
	}
	m := Model{Name: n, ID: id, Card: card}
	if c.LoRA != nil {
		if m.Suffix = Slug(c.LoRA.Name); m.Suffix == "" || len(m.Suffix) > MaxNameBytes {
			return m, fmt.Errorf("%w: adapter %.200q makes the key %.200q, expected 1 to %d bytes", ErrInvalid, c.LoRA.Name, m.Suffix, MaxNameBytes)
		}
	}
	return m, nil
}

// Encode gives the record. Card must be a JSON object.
func (m *Model) Encode() []byte {
	return encode(modelJSON{"Model", m.Namespace, m.Component, m.Endpoint, m.ID, m.Card, m.Suffix})
}

// DecodeModel reads the record of a key. Errors: ErrInvalid.
func DecodeModel(path string, value []byte) (Model, error) {
	var j modelJSON
	if err := decode(value, "Model", &j.Type, &j); err != nil {
		return Model{}, err
	}
	m := Model{Name{j.Namespace, j.Component, j.Endpoint}, j.ID, j.Suffix, j.Card}
	if err := m.check(); err != nil {
		return m, err
	}
	if ModelKey(m.Name, m.ID, m.Suffix).Path != path {
		return m, fmt.Errorf("%w: the record is of %s", ErrInvalid, ModelKey(m.Name, m.ID, m.Suffix))
	}
	return m, nil
}

// Card is what a router needs of a model card.
type Card struct {
	DisplayName string        `json:"display_name"`
	BlockSize   uint32        `json:"kv_cache_block_size"`
	WorkerType  string        `json:"worker_type"`
	Runtime     RuntimeConfig `json:"runtime_config"`
	LoRA        *LoRA         `json:"lora"` // nil: it is the instance's own card
}

// LoRA is what a card says of an adapter that the instance has loaded.
type LoRA struct {
	Name string `json:"name"` // as requests call it
}

// RuntimeConfig is the part of a card about the engine. 0 is not known.
type RuntimeConfig struct {
	TotalKVBlocks       uint64   `json:"total_kv_blocks"`
	MaxNumSeqs          uint64   `json:"max_num_seqs"`
	MaxNumBatchedTokens uint64   `json:"max_num_batched_tokens"`
	DataParallelStart   uint32   `json:"data_parallel_start_rank"`
	DataParallelSize    uint32   `json:"data_parallel_size"`
	EnableLocalIndexer  bool     `json:"enable_local_indexer"`
	Taints              []string `json:"taints"`
	StableRoutingID     string   `json:"stable_routing_id"`
	KVStateEndpoint     *Name    `json:"kv_state_endpoint"` // whose event scope the workers' events have; nil: the endpoint's own
}

// Parse reads the card. Errors: ErrInvalid.
func (m *Model) Parse() (Card, error) {
	var c Card
	if err := json.Unmarshal(m.Card, &c); err != nil {
		return c, fmt.Errorf("%w: model card: %w", ErrInvalid, err)
	}
	if state := c.Runtime.KVStateEndpoint; state != nil {
		if err := state.check(); err != nil {
			return c, fmt.Errorf("model card: kv_state_endpoint: %w", err)
		}
	}
	slices.Sort(c.Runtime.Taints)
	if c.Runtime.DataParallelSize == 0 {
		c.Runtime.DataParallelSize = 1
	}
	return c, nil
}

// Adapter tells which adapter the card of an instance is about; false for its own card.
func (m *Model) Adapter() (name string, ok bool) {
	if m.Suffix == "" {
		return "", false
	}
	if c, err := m.Parse(); err == nil && c.LoRA != nil && c.LoRA.Name != "" {
		return c.LoRA.Name, true
	}
	return m.Suffix, true
}

// Channel tells how to subscribe to a publisher.
type Channel struct {
	Scope     Name
	Topic     string
	Publisher uint64
	ZMQ       string // endpoint of its PUB socket
	NATS      string // prefix of its subjects
}

type scopeJSON struct {
	Kind     string `json:"kind"`
	Endpoint *Name  `json:"endpoint,omitempty"`
}

type channelJSON struct {
	Type      string    `json:"type"`
	Scope     scopeJSON `json:"scope"`
	Topic     string    `json:"topic"`
	Publisher uint64    `json:"instance_id"`
	Transport struct {
		Kind   string `json:"kind"`
		Config struct {
			Endpoint      string `json:"endpoint,omitempty"`
			SubjectPrefix string `json:"subject_prefix,omitempty"`
		} `json:"config"`
	} `json:"transport"`
}

// Encode gives the record.
func (c *Channel) Encode() []byte {
	j := channelJSON{Type: "EventChannel", Scope: scopeJSON{"endpoint", &c.Scope}, Topic: c.Topic, Publisher: c.Publisher}
	if j.Transport.Kind = "Zmq"; c.ZMQ == "" {
		j.Transport.Kind = "Nats"
	}
	j.Transport.Config.Endpoint, j.Transport.Config.SubjectPrefix = c.ZMQ, c.NATS
	return encode(j)
}

// DecodeChannel reads the record of a key. Errors: ErrInvalid, also for a scope that is not an endpoint and for a transport that is not
// known.
func DecodeChannel(path string, value []byte) (Channel, error) {
	var j channelJSON
	if err := decode(value, "EventChannel", &j.Type, &j); err != nil {
		return Channel{}, err
	}
	if j.Scope.Endpoint == nil {
		return Channel{}, fmt.Errorf("%w: scope of kind %q, expected endpoint", ErrInvalid, j.Scope.Kind)
	}
	c := Channel{*j.Scope.Endpoint, j.Topic, j.Publisher, j.Transport.Config.Endpoint, j.Transport.Config.SubjectPrefix}
	if (c.ZMQ == "") == (c.NATS == "") {
		return c, fmt.Errorf("%w: transport of kind %q, expected Zmq or Nats", ErrInvalid, j.Transport.Kind)
	}
	if err := c.Scope.check(); err != nil {
		return c, err
	}
	if ChannelKey(c.Scope, c.Topic, c.Publisher).Path != path {
		return c, fmt.Errorf("%w: the record is of %s", ErrInvalid, ChannelKey(c.Scope, c.Topic, c.Publisher))
	}
	return c, nil
}

// Source tells whose KV events a publisher sends, and whom to ask for those that were missed.
type Source struct {
	Scope     Name
	Topic     string
	Publisher uint64
	WorkerID  uint64
	DPRank    uint32
	Recovery  *Instance // nil: nobody can be asked
}

type sourceJSON struct {
	Type      string    `json:"type"`
	Scope     scopeJSON `json:"scope"`
	Topic     string    `json:"topic"`
	Publisher uint64    `json:"publisher_id"`
	Metadata  struct {
		State  Name `json:"kv_state_endpoint"`
		Worker struct {
			ID     uint64 `json:"worker_id"`
			DPRank uint32 `json:"dp_rank"`
		} `json:"worker"`
		Publisher uint64        `json:"publisher_id"`
		Recovery  *instanceJSON `json:"recovery_target,omitempty"`
	} `json:"metadata"`
}

// Encode gives the record.
func (s *Source) Encode() []byte {
	j := sourceJSON{Type: "EventSource", Scope: scopeJSON{"endpoint", &s.Scope}, Topic: s.Topic, Publisher: s.Publisher}
	j.Metadata.State, j.Metadata.Publisher = s.Scope, s.Publisher
	j.Metadata.Worker.ID, j.Metadata.Worker.DPRank = s.WorkerID, s.DPRank
	if s.Recovery != nil {
		r := s.Recovery.wire("")
		j.Metadata.Recovery = &r
	}
	return encode(j)
}

// DecodeSource reads the record of a key. Errors: ErrInvalid.
func DecodeSource(path string, value []byte) (Source, error) {
	var j sourceJSON
	if err := decode(value, "EventSource", &j.Type, &j); err != nil {
		return Source{}, err
	}
	if j.Scope.Endpoint == nil || j.Metadata.Publisher != j.Publisher {
		return Source{}, fmt.Errorf("%w: scope of kind %q, publishers %d and %d", ErrInvalid, j.Scope.Kind, j.Publisher, j.Metadata.Publisher)
	}
	s := Source{Scope: *j.Scope.Endpoint, Topic: j.Topic, Publisher: j.Publisher, WorkerID: j.Metadata.Worker.ID, DPRank: j.Metadata.Worker.DPRank}
	if j.Metadata.Recovery != nil {
		r, err := j.Metadata.Recovery.instance()
		if err != nil {
			return s, fmt.Errorf("recovery_target: %w", err)
		}
		s.Recovery = &r
	}
	if err := s.Scope.check(); err != nil {
		return s, err
	}
	if SourceKey(s.Scope, s.Topic, s.Publisher).Path != path {
		return s, fmt.Errorf("%w: the record is of %s", ErrInvalid, SourceKey(s.Scope, s.Topic, s.Publisher))
	}
	return s, nil
}

// MaxRecordBytes bounds a record: cards carry chat templates.
const MaxRecordBytes = 1 << 20

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // only a card that is no JSON, which its maker sees to
	}
	return data
}

// decode reads a record and checks its type, which is where typ points.
func decode(value []byte, want string, typ *string, v any) error {
	if len(value) > MaxRecordBytes {
		return fmt.Errorf("%w: record of %d bytes, at most %d", ErrInvalid, len(value), MaxRecordBytes)
	}
	if err := json.Unmarshal(value, v); err != nil {
		return fmt.Errorf("%w: record: %w", ErrInvalid, err)
	}
	if *typ != want {
		return fmt.Errorf("%w: record of type %.32q, expected %s", ErrInvalid, *typ, want)
	}
	return nil
}
