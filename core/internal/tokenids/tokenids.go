// Package tokenids reads lists of token ids in JSON: most of what a router has to do with the body of a request. An id that ends at a comma is read as
// the eight bytes up to there, so that no id has to wait for those in front of it. On amd64 the kernels of kernel_amd64.s do it for four at a time with
// AVX2; many, their twin, does it everywhere else and under the build tag noasm; each reads what neither can, and says what is no list of ids.
package tokenids

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// widest is how many digits the fast ways read of an id.
const widest = 8

// Read reads the elements of a list, from d[at], behind its bracket, and adds them to list. It gives where the list ends, behind its other bracket; ok
// is false if something in it is no whole number below 1<<32, as JSON writes it, or it has no elements, or no end. What is in list then is undefined.
func Read(d []byte, at int, list []uint32) (ids []uint32, end int, ok bool) {
	if at >= widest { // else the eight bytes up to the end of an id might begin before d
		for at < len(d) && white(d[at]) {
			at++
		}
		list, at = fast(d, at, list)
	}
	return each(d, at, list)
}

// each reads elements one by one.
func each(d []byte, i int, list []uint32) ([]uint32, int, bool) {
	for i < len(d) {
		if white(d[i]) {
			i++
			continue
		}
		start, v := i, uint64(0)
		for ; i < len(d) && i-start <= 10 && d[i]-'0' <= 9; i++ {
			v = v*10 + uint64(d[i]-'0')
		}
		if n := i - start; n == 0 || v > math.MaxUint32 || n > 1 && d[start] == '0' {
			break
		}
		list = append(list, uint32(v))
		for i < len(d) && white(d[i]) {
			i++
		}
		if i == len(d) {
			break
		}
		i++
		if d[i-1] == ',' {
			continue
		}
		if d[i-1] == ']' {
			return list, i, true
		}
		break
	}
	return list, i, false
}

// many reads ids as long as each has at most eight digits and a comma right behind it, and gives where the next element begins, or white space before
// it: each goes on there. It looks for what ends numbers in 64 bytes at a time.
func many(d []byte, i int, list []uint32) ([]uint32, int) {
	for at := i; at+64 <= len(d); at += 64 {
		list = slices.Grow(list, 32) // so many numbers can end in 64 bytes
		to, k := list[len(list):len(list)+32], 0
		for ends := ^highs((*[64]byte)(d[at:])); ends != 0; ends &= ends - 1 {
			end := at + bits.TrailingZeros64(ends)
			n := end - i
			if n == 0 && white(d[end]) {
				i++ // before an id
				continue
			}
			if uint(n-1) >= widest || d[end] != ',' {
				return list[:len(list)+k], i
			}
			v, ok := digits(binary.LittleEndian.Uint64(d[end-8:]), uint(n))
			if !ok {
				return list[:len(list)+k], i
			}
			to[k] = uint32(v)
			k++
			i = end + 1
		}
		list = list[:len(list)+k]
	}
	return list, i
}

const ones = 0x0101010101010101

// highs tells which of 64 bytes have the bit 1<<4 set, the first in the lowest place: all digits do, and neither commas nor white space.
func highs(d *[64]byte) (m uint64) {
	const (
		bit    = 0x10 * ones
		gather = 1<<52 | 1<<45 | 1<<38 | 1<<31 | 1<<24 | 1<<17 | 1<<10 | 1<<3 // moves bit 4 of byte n to bit n of the highest byte, without a carry
	)
	m = binary.LittleEndian.Uint64(d[0:]) & bit * gather >> 56
	m |= binary.LittleEndian.Uint64(d[8:]) & bit * gather >> 56 << 8
	m |= binary.LittleEndian.Uint64(d[16:]) & bit * gather >> 56 << 16
	m |= binary.LittleEndian.Uint64(d[24:]) & bit * gather >> 56 << 24
	m |= binary.LittleEndian.Uint64(d[32:]) & bit * gather >> 56 << 32
	m |= binary.LittleEndian.Uint64(d[40:]) & bit * gather >> 56 << 40
	m |= binary.LittleEndian.Uint64(d[48:]) & bit * gather >> 56 << 48
	m |= binary.LittleEndian.Uint64(d[56:]) & bit * gather >> 56 << 56
	return m
}

// least is the least number of so many digits that needs no zero in front.
var least = [16]uint64{2: 10, 3: 100, 4: 1000, 5: 10_000, 6: 100_000, 7: 1_000_000, 8: 10_000_000}

// digits gives the number that the last n of eight bytes are, n being 1 to 8, the first in the lowest place; false if they are no number as JSON has it.
func digits(w uint64, n uint) (v uint64, ok bool) {
	v = (w ^ '0'*ones) & (math.MaxUint64 << ((64 - 8*n) & 63)) // digits become 0 .. 9, all else more, and what is before them digits of no value
	other := (v + 0x76*ones | v) & (0x80 * ones)
	v = v*10 + v>>8 // pairs of digits, then fours, then all
	v = (v&0x000000ff000000ff*(100+1000000<<32) + v>>16&0x000000ff000000ff*(1+10000<<32)) >> 32
	return v, other == 0 && v >= least[n&15]
}

func white(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
