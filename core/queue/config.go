package queue

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Bounds of a policy file.
const (
	MaxConfigBytes = 1 << 20
	maxClasses     = 1024 // Next visits all of them
	maxBuckets     = 1024
	maxModels      = 1024
)

// Config is a policy file (router_policy_config): a profile for all models, profiles for some, or both.
type Config struct {
	root   *Profile
	models map[string]*Profile
}

// Profile gives the profile of a model: its own, or the one for all; nil if the file has neither.
func (c *Config) Profile(model string) *Profile {
	if p, ok := c.models[model]; ok {
		return p
	}
	return c.root
}

// The keys of a policy file.
var (
	profileKeys = []string{"default_policy_family", "uncached_isl_buckets", "policy_classes"}
	rootKeys    = append(slices.Clone(profileKeys), "models")
	bucketKeys  = []string{"min_tokens", "bucket"}
	classKeys   = []string{"name", "policy_family", "cache_bucket", "queue_policy", "quantum", "prefill_busy_threshold",
		"prefill_busy_threshold_frac", "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker",
		"cached_token_queue_limit_per_worker"}
)

// ParseConfig reads a policy file, in YAML. Every key is known and every value in its range, or it is refused; Dynamo's
// sections router, worker_selection and request_classifier are not for a queue, and are refused too. Errors: ErrInvalid.
func ParseConfig(data []byte) (*Config, error) {
	root, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	fields, err := mapping(root, "policy file", rootKeys)
	if err != nil {
		return nil, err
	}
	c := &Config{models: map[string]*Profile{}}
	if models, ok := fields["models"]; ok {
		if c.models, err = parseModels(models); err != nil {
			return nil, err
		}
		delete(fields, "models")
	}
	if len(fields) > 0 {
		if c.root, err = parseProfile(root, "policy file", fields); err != nil {
			return nil, err
		}
	}
	if c.root == nil && len(c.models) == 0 {
		return nil, fmt.Errorf("%w: policy file has no profile: expected %v, or models", ErrInvalid, profileKeys)
	}
	return c, nil
}

func parseModels(n *yaml.Node) (map[string]*Profile, error) {
	entries, err := mapping(n, "models", nil)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxModels {
		return nil, fault(n, "models", "%d models, expected at most %d", len(entries), maxModels)
	}
	models := map[string]*Profile{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		path := fmt.Sprintf("models.%s", name)
		if name == "" {
			return nil, fault(entries[name], "models", "a model's name is empty")
		}
		fields, err := mapping(entries[name], path, profileKeys)
		if err != nil {
			return nil, err
		}
		if models[name], err = parseProfile(entries[name], path, fields); err != nil {
			return nil, err
		}
	}
	return models, nil
}

// builder puts a profile together. The names are of families and buckets, by their number.
type builder struct {
	Profile
	path     string
	families []string
	buckets  []string
	cells    map[[2]int]int // class by family and bucket
}

func parseProfile(n *yaml.Node, path string, fields map[string]*yaml.Node) (*Profile, error) {
	for _, key := range profileKeys {
		if fields[key] == nil {
			return nil, fault(n, path, "%s is missing: a profile needs %v", key, profileKeys)
		}
	}
	b := builder{path: path, cells: map[[2]int]int{}}
	b.explicit, b.Profile.families = map[string]int{}, map[string]int{}
	if err := b.addBuckets(fields["uncached_isl_buckets"]); err != nil {
		return nil, err
	}
	if err := b.addClasses(fields["policy_classes"]); err != nil {
		return nil, err
	}
	family, err := identifier(fields["default_policy_family"], path+".default_policy_family")
	if err != nil {
		return nil, err
	}
	fallback, ok := b.Profile.families[family]
	if !ok {
		return nil, fault(fields["default_policy_family"], path+".default_policy_family", "%q is no class's policy_family; known: %v", family, b.families)
	}
	b.fallback = fallback
	return b.finish(n)
}

func (b *builder) addBuckets(n *yaml.Node) error {
	path := b.path + ".uncached_isl_buckets"
	list, err := sequence(n, path, maxBuckets)
	if err != nil {
		return err
	}
	for i, entry := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		fields, err := mapping(entry, at, bucketKeys)
		if err != nil {
			return err
		}
		floor, err := required(entry, fields, at, "min_tokens", 0, MaxTokens)
		if err != nil {
			return err
		}
		if i == 0 && floor != 0 {
			return fault(entry, at, "min_tokens is %d, expected 0 in the first bucket", floor)
		}
		if i > 0 && floor <= b.floors[i-1] {
			return fault(entry, at, "min_tokens is %d, expected more than the %d of the bucket before", floor, b.floors[i-1])
		}
		name, err := identifier(fields["bucket"], at+".bucket")
		if err != nil {
			return err
		}
		if slices.Contains(b.buckets, name) {
			return fault(entry, at, "bucket %q is there twice", name)
		}
		b.floors, b.buckets = append(b.floors, floor), append(b.buckets, name)
	}
	return nil
}

func (b *builder) addClasses(n *yaml.Node) error {
	path := b.path + ".policy_classes"
	list, err := sequence(n, path, maxClasses)
	if err != nil {
		return err
	}
	for i, entry := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		fields, err := mapping(entry, at, classKeys)
		if err != nil {
			return err
		}
		class, err := parseClass(entry, fields, at)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(b.classes, func(c Class) bool { return c.Name == class.Name }) {
			return fault(entry, at, "class %q is there twice", class.Name)
		}
		if err := b.place(entry, fields, at, class.Name); err != nil {
			return err
		}
		b.classes = append(b.classes, class)
	}
	return nil
}

// place finds what a class is for: its name alone, or a family and a bucket.
func (b *builder) place(n *yaml.Node, fields map[string]*yaml.Node, at, name string) error {
	family, bucket := fields["policy_family"], fields["cache_bucket"]
	if (family == nil) != (bucket == nil) {
		return fault(n, at, "class %q: expected both policy_family and cache_bucket, or neither", name)
	}
	if family == nil {
		b.explicit[name] = len(b.classes)
		return nil
	}
	familyName, err := identifier(family, at+".policy_family")
	if err != nil {
		return err
	}
	bucketName, err := identifier(bucket, at+".cache_bucket")
	if err != nil {
		return err
	}
	column := slices.Index(b.buckets, bucketName)
	if column < 0 {
		return fault(bucket, at+".cache_bucket", "unknown bucket %q; known: %v", bucketName, b.buckets)
	}
	row, ok := b.Profile.families[familyName]
	if !ok {
		row = len(b.families)
		b.Profile.families[familyName] = row
		b.families = append(b.families, familyName)
	}
	cell := [2]int{row, column}
	if _, taken := b.cells[cell]; taken {
		return fault(n, at, "a second class for family %q and bucket %q", familyName, bucketName)
	}
	b.cells[cell] = len(b.classes)
	return nil
}

// finish checks that every family has a class for every bucket.
func (b *builder) finish(n *yaml.Node) (*Profile, error) {
	for _, family := range b.families {
		if _, taken := b.explicit[family]; taken {
			return nil, fault(n, b.path, "%q names both a class and a family", family)
		}
	}
	for row, family := range b.families {
		for column, bucket := range b.buckets {
			class, ok := b.cells[[2]int{row, column}]
			if !ok {
				return nil, fault(n, b.path, "no class for family %q and bucket %q", family, bucket)
			}
			b.matrix = append(b.matrix, class)
		}
	}
	return &b.Profile, nil
}

func parseClass(n *yaml.Node, fields map[string]*yaml.Node, at string) (Class, error) {
	var c Class
	var err error
	if c.Name, err = identifier(fields["name"], at+".name"); err != nil {
		return c, err
	}
	if policy, ok := fields["queue_policy"]; ok {
		name, err := text(policy, at+".queue_policy")
		if err != nil {
			return c, err
		}
		if c.Policy, err = ParsePolicy(name); err != nil || c.Policy == LCFS {
			return c, fault(policy, at+".queue_policy", "%q, expected fcfs or wspt", name)
		}
	}
	if c.Quantum, err = required(n, fields, at, "quantum", 1, MaxTokens); err != nil {
		return c, err
	}
	for _, optional := range []struct {
		key  string
		into **int64
	}{
		{"prefill_busy_threshold", &c.PrefillBusyTokens},
		{"request_queue_limit_per_worker", &c.RequestLimit},
		{"raw_isl_token_queue_limit_per_worker", &c.ISLTokenLimit},
		{"cached_token_queue_limit_per_worker", &c.CachedTokenLimit},
	} {
		if fields[optional.key] == nil {
			continue
		}
		value, err := whole(fields[optional.key], at+"."+optional.key, 0, math.MaxInt64)
		if err != nil {
			return c, err
		}
		*optional.into = &value
	}
	if frac := fields["prefill_busy_threshold_frac"]; frac != nil {
		value, err := nonNegative(frac, at+".prefill_busy_threshold_frac")
		if err != nil {
			return c, err
		}
		c.PrefillBusyFrac = &value
	}
	return c, nil
}
