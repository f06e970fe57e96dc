//go:build !amd64 || noasm

package xxh3

func blocks(dst []uint64, tokens []uint32, k *key) { blocksGo(dst, tokens, k) }

func both(dst, seqs []uint64, tokens []uint32, k *key) { bothGo(dst, seqs, tokens, k, 0) }
