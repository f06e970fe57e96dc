//go:build !noasm

package schedule

import "testing"

func init() {
	without["AVX-512"] = func(t *testing.T) { off(t, &avx512) }
	without["AVX2"] = func(t *testing.T) { off(t, &avx512, &avx2) }
}

// off turns kernels off until the test ends.
func off(t *testing.T, kernels ...*bool) {
	for _, k := range kernels {
		old := *k
		*k = false
		t.Cleanup(func() { *k = old })
	}
}
