package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairs gives what a pattern with two groups finds in a file.
func pairs(t *testing.T, path, pattern string) map[string]string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	found := map[string]string{}
	for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
		found[string(m[1])] = string(m[2])
	}
	require.NotEmpty(t, found, path)
	return found
}

// TestLayoutIsComplete: every struct, constant and status of the header is held by layout.c, and the sizes by docs/abi.md too.
func TestLayoutIsComplete(t *testing.T) {
	sizes := pairs(t, "layout.c", `SIZE\((dgo_\w+), (\d+)\)`)
	documented := pairs(t, "../docs/abi.md", "(?m)^\\| `(dgo_\\w+)` \\| (\\d+) \\|$")
	for name := range pairs(t, "../include/dynamo_go.h", `typedef struct (dgo_\w+) (\{)`) {
		require.Contains(t, sizes, name)
		require.Equal(t, sizes[name], documented[name], name)
		delete(documented, name)
	}
	require.Empty(t, documented, "structs that are not there")
	values := pairs(t, "layout.c", `VALUE\(DGO_(\w+), (\d+)\)`)
	for name, value := range pairs(t, "../include/dynamo_go.h", `(?m)^  DGO_(\w+) = (\d+)`) {
		require.Equal(t, value, values[name], name)
	}
	for name, value := range pairs(t, "../include/dynamo_go.h", `(?m)^#define DGO_(\w+) (\d+)u\b`) {
		if name != "WAIT_MS_MAX" && name != "ABI_VERSION" { // which may change
			require.Equal(t, value, values[name], name)
		}
	}
	version := pairs(t, "../include/dynamo_go.h", `#define (DGO_ABI_VERSION) (\d+)u`)["DGO_ABI_VERSION"]
	require.Equal(t, version, pairs(t, "../docs/abi.md", "`(DGO_ABI_VERSION)` is (\\d+);")["DGO_ABI_VERSION"])
}
