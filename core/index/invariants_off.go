//go:build !invariants

package index

const invariants = false
