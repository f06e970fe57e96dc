package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
)

// statusNames reads the status codes from the header.
func statusNames(t *testing.T) map[string]string {
	header, err := os.ReadFile("../include/dynamo_go.h")
	require.NoError(t, err)
	names := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  DGO_(\w+) = (\d+)`).FindAllSubmatch(header, -1) {
		names[string(m[2])] = string(m[1])
	}
	require.Greater(t, len(names), 15)
	return names
}

// sentinels lists the exported error variables of a package.
func sentinels(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), dir+"/"+entry.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for _, name := range spec.Names {
					if strings.HasPrefix(name.Name, "Err") {
						names = append(names, name.Name)
					}
				}
			}
			return true
		})
	}
	return names
}

func TestEverySentinelOfTheRouterHasItsStatus(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	names := sentinels(t, "../core/router")
	require.Greater(t, len(names), 7)
	for _, name := range names {
		status := strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(strings.TrimPrefix(name, "Err"), "${1}_${2}"))
		require.Contains(t, string(source), fmt.Sprintf("{router.%s, C.DGO_%s}", name, status))
	}
}

func TestStatusOfWrappedErrors(t *testing.T) {
	names := statusNames(t)
	for _, row := range statuses {
		require.Contains(t, names, fmt.Sprint(row.status))
		require.Equal(t, row.status, statusOf(row.err))
		require.Equal(t, row.status, statusOf(fmt.Errorf("%w: 7: more", row.err)))
	}
	require.Equal(t, "OK", names[fmt.Sprint(statusOf(nil))])
	require.Equal(t, "INTERNAL", names[fmt.Sprint(statusOf(errors.New("unknown")))])
	both := errors.Join(router.ErrNotImplemented, router.ErrInvalidArgument)
	require.Equal(t, "NOT_IMPLEMENTED", names[fmt.Sprint(statusOf(both))])
}
