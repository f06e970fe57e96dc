package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// maxFile bounds a file of engines.
const maxFile = 1 << 20

// FileStatus tells of the file that is watched.
type FileStatus struct {
	Path   string    `json:"path"` // "": none is
	Loaded time.Time `json:"loaded"`
	Error  string    `json:"error"` // why what it holds now is not in force; "": it is
}

// Watch takes the engines of a file (Parse), and follows the file: when it changes, so do they. A file that cannot be read or is not valid changes
// nothing; File and the log say so. Only one file can be watched. Errors, of the file as it is now: ErrInvalid, and those of Set and of reading.
func (f *Fleet) Watch(path string) error {
	f.mu.Lock()
	closed, other := f.closed, f.file
	f.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if other != nil {
		return fmt.Errorf("%w: %q is watched already", ErrInvalid, other.Status().Path)
	}
	w, err := Follow(f.ctx, path, f.opts.Poll, f.opts.Log, f.Set)
	if err != nil {
		return err
	}
	f.mu.Lock()
	kept := !f.closed && f.file == nil
	if kept {
		f.file = w
	}
	f.mu.Unlock()
	if !kept {
		w.Close() // not under mu, which Set wants
		return ErrClosed
	}
	return nil
}

// File tells of the file that is watched.
func (f *Fleet) File() FileStatus {
	f.mu.Lock()
	w := f.file
	f.mu.Unlock()
	if w == nil {
		return FileStatus{}
	}
	return w.Status()
}

// File is a file of engines that is followed.
type File struct {
	path string
	set  func([]Spec) error
	log  *slog.Logger
	poll time.Duration
	held []byte // what is in force
	stop context.CancelFunc
	ctx  context.Context
	run  owned.Group

	mu     sync.Mutex // guards status
	status FileStatus
}

// Follow gives the engines of a file to set, and again whenever the file changes, looking each poll, until ctx ends. Errors, of the file as it is now:
// those of Parse, of reading, and of set.
func Follow(ctx context.Context, path string, poll time.Duration, log *slog.Logger, set func([]Spec) error) (*File, error) {
	w := &File{path: path, set: set, log: log, poll: poll, status: FileStatus{Path: path}}
	w.ctx, w.stop = context.WithCancel(ctx)
	if err := w.load(); err != nil {
		w.stop()
		return nil, err
	}
	w.run.Keep(w.ctx.Done(), w.follow)
	return w, nil
}

// Status tells of it.
func (w *File) Status() FileStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Close stops following. It is idempotent.
func (w *File) Close() {
	w.stop()
	w.run.Wait()
}

// follow looks at the file again and again: what takes a second needs no notices, which files on networks and mounted ones do not give.
func (w *File) follow() {
	ticker := time.NewTicker(w.poll)
	defer ticker.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-ticker.C:
		}
		err := w.load()
		if w.ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return
		}
		said := ""
		if err != nil {
			said = err.Error()
		}
		w.mu.Lock()
		fresh := said != w.status.Error
		w.status.Error = said
		w.mu.Unlock()
		switch {
		case fresh && said != "":
			w.log.Error("engines' file is not in force", "path", w.path, "error", said)
		case fresh:
			w.log.Info("engines' file is in force again", "path", w.path)
		}
	}
}

// load puts what the file holds in force, if that is not what it held.
func (w *File) load() error {
	data, err := readFile(w.path)
	if err != nil {
		return err
	}
	if w.held != nil && bytes.Equal(data, w.held) {
		return nil
	}
	specs, err := Parse(data)
	if err == nil {
		err = w.set(specs)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.held = data
	w.mu.Lock()
	w.status.Loaded = time.Now()
	w.mu.Unlock()
	w.log.Info("engines' file", "path", w.path, "engines", len(specs))
	return nil
}

func readFile(path string) ([]byte, error) {
	h, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if st, err := h.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%w: %s is no regular file", ErrInvalid, path))
	}
	data, err := io.ReadAll(io.LimitReader(h, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%w: %s has more than %d bytes", ErrInvalid, path, maxFile)
	}
	return data, err
}

// keys of an engine, in the order in which they are told.
var keys = []string{
	"url", "worker_id", "kind", "model", "kv_events", "replay", "topic", "dp_start", "dp_size", "block_size", "max_num_batched_tokens", "total_kv_blocks", "taints",
	"adapters", "headers", "health_path", "draining",
}

// Parse reads a YAML or JSON document: {"engines": [{"url": ..., ...}, ...]}, with the fields of Spec (in the file, an engine's id is worker_id, headers
// are one value each, and kv_events are an endpoint, a mapping from rank to endpoint, or none). Unknown keys are refused with the known ones.
// Errors: ErrInvalid, with the line.
func Parse(data []byte) (specs []Spec, err error) {
	defer func() {
		if fault := recover(); fault != nil { // the library's
			specs, err = nil, fmt.Errorf("%w: not YAML: %v", ErrInvalid, fault)
		}
	}()
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %d bytes, expected at most %d", ErrInvalid, len(data), maxFile)
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: not YAML: %w", ErrInvalid, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more than one document", ErrInvalid)
	}
	top, err := mapping(doc.Content[0], "file", "engines")
	if err != nil {
		return nil, err
	}
	list := top["engines"]
	if list == nil || list.Kind != yaml.SequenceNode {
		return nil, fault(doc.Content[0], "engines", "expected a list")
	}
	if len(list.Content) > MaxEngines {
		return nil, fault(list, "engines", "%d of them, expected at most %d", len(list.Content), MaxEngines)
	}
	specs = make([]Spec, len(list.Content))
	for i, n := range list.Content {
		at := fmt.Sprintf("engines[%d]", i)
		if err := specs[i].read(n, at); err != nil {
			return nil, err
		}
		if err := specs[i].Normal(); err != nil {
			return nil, fault(n, at, "%w", err)
		}
	}
	return specs, nil
}

// ParseSpec reads one engine: a YAML or JSON mapping as in a file (Parse). Errors: ErrInvalid.
func ParseSpec(data []byte) (s Spec, err error) {
	defer func() {
		if fault := recover(); fault != nil { // the library's
			err = fmt.Errorf("%w: not YAML: %v", ErrInvalid, fault)
		}
	}()
	if len(data) > maxFile {
		return s, fmt.Errorf("%w: %d bytes, expected at most %d", ErrInvalid, len(data), maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return s, fmt.Errorf("%w: not YAML: %w", ErrInvalid, err)
	}
	if err := s.read(doc.Content[0], "engine"); err != nil {
		return s, err
	}
	return s, s.Normal()
}

func fault(n *yaml.Node, at, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%s (line %d): %w", at, n.Line, err)
	}
	return fmt.Errorf("%w: %s (line %d): %w", ErrInvalid, at, n.Line, err)
}

// mapping gives the values of a mapping, without those that are null. No keys: any.
func mapping(n *yaml.Node, at string, known ...string) (map[string]*yaml.Node, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil, fault(n, at, "expected a mapping")
	}
	fields := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			return nil, fault(key, at, "expected a text as key")
		case len(known) > 0 && !slices.Contains(known, key.Value):
			return nil, fault(key, at, "unknown key %.100q; known: %s", key.Value, strings.Join(known, ", "))
		case fields[key.Value] != nil:
			return nil, fault(key, at, "key %q is there twice", key.Value)
		case value.Kind != yaml.ScalarNode || value.ShortTag() != "!!null":
			fields[key.Value] = value
		}
	}
	return fields, nil
}

// read fills in a description.
func (s *Spec) read(n *yaml.Node, at string) error {
	fields, err := mapping(n, at, keys...)
	if err != nil {
		return err
	}
	if fields["url"] == nil {
		return fault(n, at, "url is missing")
	}
	var kind string
	for name, v := range fields {
		here := at + "." + name
		switch name {
		case "url":
			err = text(v, here, &s.URL)
		case "worker_id":
			s.ID, err = number(v, here, 64)
		case "kind":
			err = text(v, here, &kind)
			s.Kind = engine.Kind(kind)
		case "model":
			err = text(v, here, &s.Model)
		case "kv_events":
			if s.NoEvents = v.Kind == yaml.ScalarNode && v.Value == "none"; !s.NoEvents {
				s.KVEvents, err = endpoints(v, here)
			}
		case "replay":
			s.Replay, err = endpoints(v, here)
		case "topic":
			err = text(v, here, &s.Topic)
		case "dp_start":
			err = small(v, here, &s.DPStart)
		case "dp_size":
			err = small(v, here, &s.DPSize)
		case "block_size":
			var size uint32
			err = small(v, here, &size)
			s.BlockSize = int(size)
		case "max_num_batched_tokens":
			s.MaxNumBatchedTokens, err = number(v, here, 63)
		case "total_kv_blocks":
			s.TotalKVBlocks, err = number(v, here, 63)
		case "taints":
			s.Taints, err = texts(v, here)
		case "adapters":
			s.Adapters, err = texts(v, here)
		case "headers":
			s.Header, err = headers(v, here)
		case "health_path":
			err = text(v, here, &s.HealthPath)
		case "draining":
			if s.Draining = v.Value == "true"; v.Kind != yaml.ScalarNode || v.ShortTag() != "!!bool" {
				err = fault(v, here, "%.50q, expected true or false", v.Value)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func text(n *yaml.Node, at string, into *string) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return fault(n, at, "%.50q, expected a text", n.Value)
	}
	*into = n.Value
	return nil
}

func number(n *yaml.Node, at string, bits int) (uint64, error) {
	v, err := strconv.ParseUint(n.Value, 10, bits)
	if n.Kind != yaml.ScalarNode || err != nil {
		return 0, fault(n, at, "%.50q, expected a whole number below 2^%d", n.Value, bits)
	}
	return v, nil
}

func small(n *yaml.Node, at string, into *uint32) error {
	v, err := number(n, at, 32)
	*into = uint32(v)
	return err
}

func texts(n *yaml.Node, at string) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, fault(n, at, "expected a list")
	}
	all := make([]string, len(n.Content))
	for i, v := range n.Content {
		if err := text(v, fmt.Sprintf("%s[%d]", at, i), &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func headers(n *yaml.Node, at string) (http.Header, error) {
	fields, err := mapping(n, at)
	if err != nil {
		return nil, err
	}
	h := make(http.Header, len(fields))
	for name, v := range fields {
		var value string
		if err := text(v, at+"."+name, &value); err != nil {
			return nil, err
		}
		h.Set(name, value)
	}
	return h, nil
}

// endpoints reads an endpoint, or a mapping from rank to endpoint.
func endpoints(n *yaml.Node, at string) (e router.Endpoints, err error) {
	if n.Kind != yaml.MappingNode {
		return e, text(n, at, &e.Base)
	}
	fields, err := mapping(n, at)
	if err != nil {
		return e, err
	}
	e.ByRank = make(map[uint32]string, len(fields))
	for name, v := range fields {
		rank, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return e, fault(v, at, "rank %.50q, expected a whole number below 2^32", name)
		}
		var endpoint string
		if err := text(v, at+"."+name, &endpoint); err != nil {
			return e, err
		}
		e.ByRank[uint32(rank)] = endpoint
	}
	return e, nil
}
