package wire

import (
	"strconv"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/internal/xxh3"
)

// saltPrefix marks a cache salt among extra keys, as Dynamo's frontends send it.
const saltPrefix = "dynamo-cache-salt:"

// readExtraKeys takes the identity of blocks from vLLM's extra keys: for each block nil or a list of the LoRA name,
// multimodal objects (an identifier, or one with its offset) and, in the first block of a prompt, the cache salt.
// Whatever else is there makes the event opaque: hashed without it, its blocks would match prompts they do not hold.
func (d *decoder) readExtraKeys(e *Event) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	keepMM := e.MM == nil // block_mm_infos says it better
	for i := range min(n, len(e.BlockHashes)) {
		if d.null() {
			continue
		}
		if d.class() != classArray {
			e.Opaque = true
			return nil
		}
		entries, err := d.array()
		if err != nil {
			return err
		}
		k := blockKeys{event: e, block: i}
		for range entries {
			if err := d.readExtraKey(&k); err != nil {
				return err
			}
		}
		k.salt()
		if keepMM && len(k.objects) > 0 {
			e.MM = setObjects(e.MM, i, k.objects)
		}
	}
	return nil
}

// blockKeys gathers the extra keys of one block.
type blockKeys struct {
	event    *Event
	block    int
	lora     bool     // the LoRA name was seen
	prefixed string   // the first salt with saltPrefix
	bare     []string // strings of no known form
	objects  []uint64
}

func (d *decoder) readExtraKey(k *blockKeys) error {
	switch d.class() {
	case classString:
		view, err := d.bytes(classString)
		if err == nil {
			k.add(string(view))
		}
		return err
	case classArray:
		n, err := d.array()
		if err != nil {
			return err
		}
		if n == 2 && d.class() == classString {
			view, err := d.bytes(classString)
			if err != nil {
				return err
			}
			k.objects = append(k.objects, mmHash(string(view)))
			return d.skip()
		}
		k.event.Opaque = true
		for range n {
			if err := d.skip(); err != nil {
				return err
			}
		}
		return nil
	}
	k.event.Opaque = true
	return d.skip()
}

// add takes a key that is a string.
func (k *blockKeys) add(s string) {
	salt, prefixed := strings.CutPrefix(s, saltPrefix)
	switch {
	case s == k.event.LoRAName && !k.lora:
		k.lora = true
	case isDigest(s):
		k.objects = append(k.objects, mmHash(s))
	case !prefixed:
		k.bare = append(k.bare, s)
	case k.prefixed == "":
		k.prefixed = salt
	}
}

// salt takes the cache salt from the keys of the first block, unless the event has one of its own: the one with the
// prefix, or the only string left over in a prompt's first block, as vLLM has it. Strings that are neither are unknown.
func (k *blockKeys) salt() {
	e := k.event
	salt := k.prefixed
	if k.block == 0 && salt == "" && len(k.bare) == 1 && !e.HasParent {
		salt, k.bare = k.bare[0], nil
	}
	if len(k.bare) > 0 {
		e.Opaque = true
	}
	if k.block == 0 && e.CacheSalt == "" && salt != "" {
		e.CacheSalt, e.SaltRoot = salt, true
	}
}

// isDigest tells whether s is a SHA-256 digest in hex, as vLLM and SGLang name multimodal objects.
func isDigest(s string) bool {
	return len(s) == 64 && strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) }) < 0
}

// mmHash is the hash of a multimodal object by its identifier, as Dynamo computes it on the side of the request.
func mmHash(id string) uint64 {
	if isDigest(id) {
		h, _ := strconv.ParseUint(id[:16], 16, 64)
		return h
	}
	return xxh3.SumString(id, 0)
}

// metadata takes the cache salt from a map; what else it holds is ignored.
func (d *decoder) metadata(e *Event) error {
	n, err := d.pairs()
	if err != nil {
		return err
	}
	for range n {
		isSalt := false
		if d.class() == classString {
			key, err := d.bytes(classString)
			if err != nil {
				return err
			}
			isSalt = string(key) == fieldCacheSalt.String()
		} else if err := d.skip(); err != nil {
			return err
		}
		switch {
		case d.null():
		case isSalt:
			if e.CacheSalt, err = d.text(fieldCacheSalt); err != nil {
				return err
			}
		default:
			if err := d.skip(); err != nil {
				return err
			}
		}
	}
	return nil
}

// mmInfos reads block_mm_infos: for each block nil or a map of mm_objects, each a map with its mm_hash. No block with an
// object gives nil.
func (d *decoder) mmInfos() ([][]uint64, error) {
	n, err := d.array()
	if err != nil {
		return nil, err
	}
	var infos [][]uint64
	for i := range n {
		if d.null() {
			continue
		}
		objects, err := d.mmObjects()
		if err != nil {
			return nil, err
		}
		if len(objects) > 0 {
			infos = setObjects(infos, i, objects)
		}
	}
	return infos, nil
}

// setObjects lengthens a list up to block i and sets what is there.
func setObjects(mm [][]uint64, i int, objects []uint64) [][]uint64 {
	mm = append(mm, make([][]uint64, i+1-len(mm))...)
	mm[i] = objects
	return mm
}

func (d *decoder) mmObjects() (objects []uint64, err error) {
	err = d.entries("mm_objects", func() error {
		n, err := d.array()
		if err != nil {
			return err
		}
		for range n {
			err := d.entries("mm_hash", func() error {
				h, _, err := d.integer()
				objects = append(objects, h)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return objects, err
}

// entries reads the next value as a map and calls read at each value under the key.
func (d *decoder) entries(key string, read func() error) error {
	n, err := d.pairs()
	if err != nil {
		return err
	}
	for range n {
		found := false
		if d.class() == classString {
			view, err := d.bytes(classString)
			if err != nil {
				return err
			}
			found = string(view) == key
		} else if err := d.skip(); err != nil {
			return err
		}
		take := d.skip
		if found {
			take = read
		}
		if err := take(); err != nil {
			return err
		}
	}
	return nil
}
