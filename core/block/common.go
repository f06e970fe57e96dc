package block

import "unsafe"

// Common counts the leading hashes that two lists share. Memory is compared by the runtime, 32 bytes at a time: it stops at the first difference
// and does not tell where that is, so it is asked for parts.
func Common[H ~uint64](a, b []H) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	if text(a) == text(b) {
		return n
	}
	from, step := 0, 64
	for end := min(step, n); text(a[from:end]) == text(b[from:end]); end = min(from+step, n) { // forwards in growing steps
		from, step = end, step*4
	}
	for end := min(from+step, n); end-from > 8; { // the first difference is in [from, end)
		if m := int(uint(from+end) / 2); text(a[from:m]) == text(b[from:m]) {
			from = m
		} else {
			end = m
		}
	}
	for a[from] == b[from] {
		from++
	}
	return from
}

func text[H ~uint64](h []H) string {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(h))), len(h)*8)
}
