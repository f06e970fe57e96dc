//go:build !noasm

package xxh3

func init() {
	if !avx2 {
		return
	}
	with := func(isSparing, hasAVX2 bool) func([]uint64, []uint32, *key) {
		return func(dst []uint64, tokens []uint32, k *key) {
			wasSparing, had := sparing, avx2
			defer func() { sparing, avx2 = wasSparing, had }()
			sparing, avx2 = isSparing, hasAVX2
			blocks(dst, tokens, k)
		}
	}
	kernels["blocksMul"], kernels["blocksSparing"], kernels["blocksAVX2"] = with(false, false), with(true, true), with(false, true)
}
