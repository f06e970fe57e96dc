//go:build !amd64 || noasm

package tokenids

func fast(d []byte, i int, list []uint32) ([]uint32, int) { return many(d, i, list) }
