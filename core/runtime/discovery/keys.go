package discovery

import (
	"fmt"
	"strconv"
	"strings"
)

// The buckets, one for each kind of record.
const (
	Instances     = "v1/instances"
	Models        = "v1/mdc"
	EventChannels = "v1/event_channels"
	EventSources  = "v1/event_sources"
)

// Key names a record. Bucket + "/" + Path is its name in etcd; the file store makes one of Path by escaping it.
type Key struct{ Bucket, Path string }

// String gives the whole name.
func (k Key) String() string { return k.Bucket + "/" + k.Path }

// Name names an endpoint: what workers of one kind serve. It is written "namespace.component.name".
type Name struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Endpoint  string `json:"name"`
}

// String gives "namespace.component.name".
func (n Name) String() string { return n.Namespace + "." + n.Component + "." + n.Endpoint }

// MaxNameBytes bounds each part of a Name, so that it can be a file's name with whatever is around it.
const MaxNameBytes = 64

// ParseName reads "namespace.component.name", also with "dyn://" before it. Errors: ErrInvalid.
func ParseName(path string) (Name, error) {
	parts := strings.Split(strings.TrimPrefix(path, "dyn://"), ".")
	if len(parts) != 3 {
		return Name{}, fmt.Errorf("%w: endpoint path %q, expected 'namespace.component.endpoint' or 'dyn://namespace.component.endpoint'", ErrInvalid, path)
	}
	n := Name{parts[0], parts[1], parts[2]}
	return n, n.check()
}

func (n Name) check() error {
	for _, part := range []string{n.Namespace, n.Component, n.Endpoint} {
		if part == "" || len(part) > MaxNameBytes || strings.ContainsAny(part, "/\x00") {
			return fmt.Errorf("%w: %q in endpoint path %q, expected 1 to %d bytes without a slash", ErrInvalid, part, n, MaxNameBytes)
		}
	}
	return nil
}

// Hex writes an id as keys do.
func Hex(id uint64) string { return strconv.FormatUint(id, 16) }

func (n Name) slashed() string { return n.Namespace + "/" + n.Component + "/" + n.Endpoint }

// Prefix is what the paths of an endpoint's instances and models begin with.
func (n Name) Prefix() string { return n.slashed() + "/" }

// InstanceKey is where an instance of an endpoint is.
func InstanceKey(n Name, id uint64) Key { return Key{Instances, n.Prefix() + Hex(id)} }

// Slug is how Dynamo makes a part of a key of a name: in lower case, all but letters, digits and hyphens underscores, of which it begins with none.
func Slug(name string) string {
	return strings.TrimLeft(strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			return c
		}
		return '_'
	}, strings.ToLower(name)), "_")
}

// ModelKey is where the model card of an instance is; suffix is "", or names an adapter.
func ModelKey(n Name, id uint64, suffix string) Key {
	k := Key{Models, n.Prefix() + Hex(id)}
	if suffix != "" {
		k.Path += "/" + suffix
	}
	return k
}

// TopicPrefix is what the paths of all publishers of a topic begin with.
func TopicPrefix(n Name, topic string) string {
	return "namespace/" + n.Namespace + "/component/" + n.Component + "/endpoint/" + n.Endpoint + "/topic/" + encodeTopic(topic) + "/"
}

// ChannelKey is where a publisher says how to subscribe to it.
func ChannelKey(n Name, topic string, publisher uint64) Key {
	return Key{EventChannels, TopicPrefix(n, topic) + Hex(publisher)}
}

// SourceKey is where a publisher of KV events says whose they are.
func SourceKey(n Name, topic string, publisher uint64) Key {
	return Key{EventSources, TopicPrefix(n, topic) + Hex(publisher)}
}

// encodeTopic leaves letters, digits, '_' and '-'; other bytes become %XX.
func encodeTopic(topic string) string {
	return Escape(topic, func(c byte) bool { return c == '_' || c == '-' })
}

// Escape writes every byte but letters, digits, and those that keep accepts, as %XX.
func Escape(s string, keep func(byte) bool) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(s)+len(s)/2)
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || keep(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(out)
}
