package wire

import (
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// Verdict says what becomes of an event: Keep, or the name of the reason for which it is left out and counted. Leaving
// out an event that was read is no gap: the stream goes on.
type Verdict string

// The verdicts.
const (
	Keep                     Verdict = ""
	Undecodable              Verdict = "undecodable_events"         // Event.Err is set
	UnknownTag               Verdict = "unknown_tag"                // a kind of event this library does not know
	UnsupportedOwnership     Verdict = "unsupported_ownership"      // blocks that another cache manager owns
	UnknownOwnership         Verdict = "unknown_ownership"          //
	NonLocalLocality         Verdict = "non_local_locality"         // blocks that are elsewhere
	UnknownMedium            Verdict = "unknown_medium"             //
	NonMainAttention         Verdict = "non_main_attention"         // a cache group that does not cover whole prefixes
	UnknownKind              Verdict = "unknown_kind"               // a cache group of a kind this library does not know
	UnlearnedGroup           Verdict = "unlearned_group"            // a cache group whose kind was never said
	WrongBlockSize           Verdict = "wrong_block_size"           // not the router's
	TokenCount               Verdict = "token_count"                // tokens and blocks do not correspond, so no block can be named
	NoBlocks                 Verdict = "no_blocks"                  // a stored event without blocks
	DuplicateBlock           Verdict = "duplicate_block"            // a stored event with a block twice, or its own parent
	UnnamedLoRA              Verdict = "unnamed_lora"               // blocks of an adapter known by number only
	UnknownExtraKeys         Verdict = "unknown_extra_keys"         // blocks named by something this library cannot hash
	AmbiguousCacheNamespace  Verdict = "ambiguous_cache_namespace"  // below a block that was stored under two cache salts
	CacheNamespacesExhausted Verdict = "cache_namespaces_exhausted" // salted blocks beyond what is remembered
)

const (
	maxGroups = 1024    // cache groups remembered; engines have a handful
	maxSalted = 1 << 20 // salted blocks remembered: 16 M tokens at 16 a block
)

// Normalizer turns the events of one engine stream into valid ones, or says why not. It remembers what later events of
// the stream leave out: the kind of each cache group, and the cache salt of blocks whose children do not repeat it.
// It is not safe for concurrent use.
type Normalizer struct {
	blockSize int
	groups    map[groupKey]string // kind by cache group
	salts     map[saltKey]string  // salt of blocks that pass it on; ambiguous for conflicting ones
	hashes    []block.Hash        // scratch
	blocks    []event.Block       // scratch
	seen      []block.EngineHash  // scratch
	salt      string              // of the last stored event
}

type groupKey struct{ rank, group uint32 }

type saltKey struct {
	rank uint32
	hash block.EngineHash
}

// ambiguous is no salt: salts are not empty.
const ambiguous = ""

// NewNormalizer returns a Normalizer for a router with the given block size, which block.CheckSize accepts.
func NewNormalizer(blockSize int) *Normalizer {
	n := &Normalizer{blockSize: blockSize}
	n.Reset()
	return n
}

// Reset forgets what was learnt, as a restart of the engine does.
func (n *Normalizer) Reset() {
	n.groups = make(map[groupKey]string)
	n.salts = make(map[saltKey]string)
}

// Normalize gives the event that e reports for a rank, numbered with the sequence number of its batch, or the reason to
// leave it out. Blocks of every tier are kept, with their tier. The result shares BlockHashes with e, and its Blocks with the
// next result.
func (n *Normalizer) Normalize(e *Event, seq uint64, rank uint32) (event.Event, Verdict) {
	ev := event.Event{ID: seq, DPRank: rank, Kind: e.Kind}
	if v := screen(e); v != Keep {
		return event.Event{}, v
	}
	if e.Kind == event.Cleared {
		n.forget(rank)
		return ev, Keep
	}
	tier, known := TierOf(e.Medium)
	if !known {
		return event.Event{}, UnknownMedium
	}
	ev.Tier = tier
	if tier <= event.HostPinned {
		if v := n.attention(e, rank); v != Keep {
			return event.Event{}, v
		}
	}
	if e.Kind == event.Removed {
		for _, h := range e.BlockHashes {
			n.forgetSalt(saltKey{rank, h})
		}
		ev.Removed = e.BlockHashes
		return ev, Keep
	}
	if v := n.store(e, &ev); v != Keep {
		return event.Event{}, v
	}
	return ev, Keep
}

// screen judges what needs no memory of the stream.
func screen(e *Event) Verdict {
	switch {
	case e.Err != nil:
		return Undecodable
	case e.Kind == 0:
		return UnknownTag
	case e.Ownership == "kvcr":
		return UnsupportedOwnership
	case e.Ownership != "":
		return UnknownOwnership
	case e.Locality != "" && e.Locality != "LOCAL":
		return NonLocalLocality
	}
	return Keep
}

// TierOf gives the tier of a medium, by the names Dynamo knows; no medium is the device.
func TierOf(medium string) (tier event.Tier, known bool) {
	switch medium {
	case "", "GPU", "DEVICE":
		return event.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return event.HostPinned, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return event.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return event.External, true
	}
	return 0, false
}

// attention keeps cache groups that hold whole prefixes, and learns which those are: only stores say it.
func (n *Normalizer) attention(e *Event, rank uint32) Verdict {
	key := groupKey{rank, e.GroupIdx}
	if e.HasGroup && e.SpecKind != "" && e.Kind == event.Stored {
		if _, known := n.groups[key]; !known && len(n.groups) >= maxGroups {
			return UnlearnedGroup // what removes its blocks would not be known as such
		}
		n.groups[key] = kindOf(e.SpecKind)
	}
	kind := kindOf(e.SpecKind)
	if e.SpecKind == "" {
		if !e.HasGroup {
			return Keep
		}
		learned, known := n.groups[key]
		if !known && e.GroupIdx != 0 {
			return UnlearnedGroup
		}
		if !known {
			return Keep
		}
		kind = learned
	}
	switch kind {
	case kindMain:
		return Keep
	case kindOther:
		return NonMainAttention
	}
	return UnknownKind
}

// What a cache group's kind means to a router. Kinds are remembered as these, never as the engine's strings.
const (
	kindMain    = "main"
	kindOther   = "other"
	kindUnknown = "unknown"
)

func kindOf(spec string) string {
	switch spec {
	case "full_attention", "mla_attention", "sink_full_attention":
		return kindMain
	case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention":
		return kindOther
	}
	return kindUnknown
}

// store names the blocks of a stored event by their content.
func (n *Normalizer) store(e *Event, ev *event.Event) Verdict {
	if v := n.shape(e); v != Keep {
		return v
	}
	salt, v := n.namespace(e, ev.DPRank)
	if v != Keep {
		return v
	}
	n.salt = salt
	id := block.Identity{LoRAName: e.LoRAName, CacheSalt: salt, MM: e.MM, Eagle: e.Bigram}
	n.hashes = block.Hashes(n.hashes[:0], e.TokenIDs, n.blockSize, &id)
	ev.HasParent, ev.Parent = e.HasParent, e.Parent
	n.blocks = slices.Grow(n.blocks[:0], len(e.BlockHashes))
	for i, h := range e.BlockHashes {
		n.blocks = append(n.blocks, event.Block{Engine: h, Hash: n.hashes[i]})
	}
	ev.Blocks = n.blocks
	return Keep
}

// shape checks that each block has a name, the router's size, and tokens that are surely its own. Engines that leave out
// blocks but not their tokens do not say which ones they left out.
func (n *Normalizer) shape(e *Event) Verdict {
	want := len(e.BlockHashes) * n.blockSize
	if e.Bigram {
		want++
	}
	switch {
	case len(e.BlockHashes) == 0:
		return NoBlocks
	case int(e.BlockSize) != n.blockSize && len(e.TokenIDs) > 0:
		return WrongBlockSize
	case len(e.TokenIDs) != want:
		return TokenCount
	case e.Opaque:
		return UnknownExtraKeys
	case e.HasLoRAID && e.LoRAID != 0 && e.LoRAName == "":
		return UnnamedLoRA
	case n.repeats(e):
		return DuplicateBlock
	}
	return Keep
}

// Salt gives the cache salt of the last stored event that Normalize kept, its own or its parent's.
func (n *Normalizer) Salt() string { return n.salt }

// repeats tells whether a block occurs twice, the parent counted.
func (n *Normalizer) repeats(e *Event) bool {
	n.seen = append(n.seen[:0], e.BlockHashes...)
	if e.HasParent {
		n.seen = append(n.seen, e.Parent)
	}
	slices.Sort(n.seen)
	for i, h := range n.seen[1:] {
		if h == n.seen[i] {
			return true
		}
	}
	return false
}

// namespace gives the cache salt of a stored event's blocks: its own, or the one its parent passes on.
//
// A salt is passed on only where the engine leaves it to be (Event.SaltRoot). Where salts stand in the event itself, an
// event without one is unsalted, even below a block whose engine hash a salted one shares: SGLang's hashes do not always
// cover the salt.
func (n *Normalizer) namespace(e *Event, rank uint32) (salt string, v Verdict) {
	salt, passOn := e.CacheSalt, e.SaltRoot
	if salt == "" && e.HasParent {
		inherited, ok := n.salts[saltKey{rank, e.Parent}]
		if ok && inherited == ambiguous {
			return "", AmbiguousCacheNamespace
		}
		salt, passOn = inherited, ok
	}
	if !passOn && len(n.salts) == 0 {
		return salt, Keep
	}
	if passOn && len(n.salts)+len(e.BlockHashes) > maxSalted {
		return "", CacheNamespacesExhausted
	}
	for _, h := range e.BlockHashes {
		key := saltKey{rank, h}
		before, known := n.salts[key]
		switch {
		case known && before != salt:
			n.salts[key] = ambiguous
		case passOn:
			n.salts[key] = salt
		}
	}
	return salt, Keep
}

// forgetSalt forgets a removed block, unless it is ambiguous: its other copy may remain.
func (n *Normalizer) forgetSalt(key saltKey) {
	if salt, known := n.salts[key]; known && salt != ambiguous {
		delete(n.salts, key)
	}
}

// forget forgets the blocks of a rank.
func (n *Normalizer) forget(rank uint32) {
	for key := range n.salts {
		if key.rank == rank {
			delete(n.salts, key)
		}
	}
}
