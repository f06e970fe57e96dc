package queue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The tree of a document is read by hand, not decoded into structs: so unknown keys can be refused with the known ones, and an
// alias costs nothing, because nothing is copied and the schema, not the document, says how deep to go.

// parseYAML gives the tree of a file that holds exactly one document.
func parseYAML(data []byte) (root *yaml.Node, err error) {
	if len(data) > MaxConfigBytes {
		return nil, fmt.Errorf("%w: policy file has %d bytes, expected at most %d", ErrInvalid, len(data), MaxConfigBytes)
	}
	defer func() {
		if r := recover(); r != nil { // the library's fault, but no reason to end the process
			root, err = nil, fmt.Errorf("%w: policy file is not YAML: %v", ErrInvalid, r)
		}
	}()
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: policy file is not YAML: %w", ErrInvalid, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: policy file has more than one document", ErrInvalid)
	}
	return doc.Content[0], nil
}

func fault(n *yaml.Node, path, format string, args ...any) error {
	return fmt.Errorf("%w: %s (line %d): %s", ErrInvalid, path, n.Line, fmt.Sprintf(format, args...))
}

func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// mapping gives the values of a mapping by key, those that are null left out. known lists the keys; nil allows any.
func mapping(n *yaml.Node, path string, known []string) (map[string]*yaml.Node, error) {
	n = target(n)
	if n.Kind != yaml.MappingNode {
		return nil, fault(n, path, "expected a mapping")
	}
	fields := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, err := text(n.Content[i], path+": key")
		if err != nil {
			return nil, err
		}
		if known != nil && !slices.Contains(known, key) {
			return nil, fault(n.Content[i], path, "unknown key %q; known: %s", key, strings.Join(known, ", "))
		}
		if _, twice := fields[key]; twice {
			return nil, fault(n.Content[i], path, "key %q is there twice", key)
		}
		fields[key] = target(n.Content[i+1])
	}
	for key, value := range fields {
		if isNull(value) {
			delete(fields, key)
		}
	}
	return fields, nil
}

func sequence(n *yaml.Node, path string, most int) ([]*yaml.Node, error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > most {
		return nil, fault(n, path, "expected a list of 1 to %d", most)
	}
	return n.Content, nil
}

func text(n *yaml.Node, path string) (string, error) {
	if n = target(n); n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return "", fault(n, path, "expected text, not %.40q", n.Value)
	}
	return n.Value, nil
}

// identifier reads a name of [A-Za-z0-9_.-]+; nil is a missing one.
func identifier(n *yaml.Node, path string) (string, error) {
	if n == nil {
		return "", fmt.Errorf("%w: %s is missing", ErrInvalid, path)
	}
	name, err := text(n, path)
	if err != nil {
		return "", err
	}
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '.' && r != '-'
	}
	if name == "" || strings.IndexFunc(name, odd) >= 0 {
		return "", fault(n, path, "%.40q must match [A-Za-z0-9_.-]+", name)
	}
	return name, nil
}

func whole(n *yaml.Node, path string, least, most int64) (int64, error) {
	var v int64
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil || v < least || v > most {
		return 0, fault(n, path, "%.40q, expected a whole number from %d to %d", n.Value, least, most)
	}
	return v, nil
}

func required(n *yaml.Node, fields map[string]*yaml.Node, path, key string, least, most int64) (int64, error) {
	if fields[key] == nil {
		return 0, fault(n, path, "%s is missing", key)
	}
	return whole(fields[key], path+"."+key, least, most)
}

func nonNegative(n *yaml.Node, path string) (float64, error) {
	var v float64
	number := n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float")
	if !number || n.Decode(&v) != nil || !(v >= 0) || math.IsInf(v, 1) {
		return 0, fault(n, path, "%.40q, expected a finite number, 0 or more", n.Value)
	}
	return v, nil
}
