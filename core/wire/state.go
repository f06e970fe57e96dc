package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// ErrState is what CheckState answers for bytes that AppendState did not write.
var ErrState = errors.New("not the state of a normalizer")

// stateKinds are the kinds of cache groups, by their number in a state.
var stateKinds = [...]string{kindMain, kindOther, kindUnknown}

// AppendState appends what the normalizer learnt, in an order that does not depend on chance: per cache group its rank,
// number and kind; the cache salts; per salted block its rank, engine hash and salt. Numbers are varints, engine hashes 8
// bytes, little-endian.
func (n *Normalizer) AppendState(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(n.groups)))
	for _, k := range slices.SortedFunc(maps.Keys(n.groups), func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.group, b.group))
	}) {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(k.rank)), uint64(k.group))
		dst = append(dst, byte(slices.Index(stateKinds[:], n.groups[k])))
	}
	salts := slices.Compact(slices.Sorted(maps.Values(n.salts)))
	dst = binary.AppendUvarint(dst, uint64(len(salts)))
	numbers := make(map[string]uint64, len(salts))
	for i, salt := range salts {
		dst = append(binary.AppendUvarint(dst, uint64(len(salt))), salt...)
		numbers[salt] = uint64(i)
	}
	dst = binary.AppendUvarint(dst, uint64(len(n.salts)))
	for _, k := range slices.SortedFunc(maps.Keys(n.salts), func(a, b saltKey) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.hash, b.hash))
	}) {
		dst = binary.LittleEndian.AppendUint64(binary.AppendUvarint(dst, uint64(k.rank)), uint64(k.hash))
		dst = binary.AppendUvarint(dst, numbers[n.salts[k]])
	}
	return dst
}

// CheckState tells whether SetState can take the bytes: ErrState if not.
func CheckState(state []byte) error {
	r := stateReader{rest: state}
	r.read(func(groupKey, string) {}, func(saltKey, string) {})
	return r.err
}

// SetState gives a normalizer what another one had learnt. Bytes that CheckState refuses teach nothing.
func (n *Normalizer) SetState(state []byte) {
	n.Reset()
	r := stateReader{rest: state}
	r.read(func(k groupKey, kind string) { n.groups[k] = kind }, func(k saltKey, salt string) { n.salts[k] = salt })
	if r.err != nil {
		n.Reset()
	}
}

// stateReader reads a state; after the first error everything is 0. Memory is taken only for bytes that are there.
type stateReader struct {
	rest []byte
	err  error
}

func (r *stateReader) read(group func(groupKey, string), salted func(saltKey, string)) {
	for range r.count("cache groups", maxGroups) {
		k := groupKey{r.rank(), r.rank()}
		if kind := r.bytes(1); kind != nil {
			if int(kind[0]) >= len(stateKinds) {
				r.fail("kind %d of a cache group", kind[0])
				return
			}
			group(k, stateKinds[kind[0]])
		}
	}
	var salts []string
	for range r.count("cache salts", maxSalted) {
		salts = append(salts, string(r.bytes(r.count("bytes of a cache salt", len(r.rest)))))
	}
	for range r.count("salted blocks", maxSalted) {
		k := saltKey{rank: r.rank()}
		if hash := r.bytes(8); hash != nil {
			k.hash = block.EngineHash(binary.LittleEndian.Uint64(hash))
		}
		if number := r.uvarint(); r.err == nil && number >= uint64(len(salts)) {
			r.fail("cache salt %d of %d", number, len(salts))
		} else if r.err == nil {
			salted(k, salts[number])
		}
	}
	if len(r.rest) > 0 {
		r.fail("%d bytes after its end", len(r.rest))
	}
}

func (r *stateReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err, r.rest = fmt.Errorf("%w: %s", ErrState, fmt.Sprintf(format, args...)), nil
	}
}

func (r *stateReader) uvarint() uint64 {
	v, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.fail("it ends early")
		return 0
	}
	r.rest = r.rest[size:]
	return v
}

// count reads how many of something follow, each of which takes a byte or more.
func (r *stateReader) count(what string, most int) int {
	n := r.uvarint()
	if n > uint64(min(most, len(r.rest))) {
		r.fail("%d %s, at most %d with %d bytes left", n, what, most, len(r.rest))
		return 0
	}
	return int(n)
}

func (r *stateReader) rank() uint32 {
	v := r.uvarint()
	if v > 1<<32-1 {
		r.fail("%d, expected a number below 2^32", v)
		return 0
	}
	return uint32(v)
}

// bytes takes n bytes, nil if they are not there.
func (r *stateReader) bytes(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.fail("it ends early")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}
