package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// compileFor builds a C program that loads libraries itself, or a library.
func compileFor(t *testing.T, target, source string, flags ...string) {
	t.Helper()
	run(t, compiler("CC", "cc"), append(append([]string{"-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", "-I../include", "-Itestdata", "-o", target, source}, flags...), "-ldl", "-pthread")...)
}

// TestGuest: the library in a process that was there before: signal handlers, SIGPIPE, timers, dlclose, another Go library, late
// loading. Nothing is printed.
//
// https://github.com/golang/go/issues/65050 https://github.com/golang/go/issues/11100 https://github.com/golang/go/issues/18220
// https://github.com/golang/go/issues/54805
func TestGuest(t *testing.T) {
	dir := t.TempDir()
	guest, lib := filepath.Join(dir, "guest"), filepath.Join(library(t), "libdynamo_go.so")
	compileFor(t, guest, "testdata/guest.c")
	other := filepath.Join(dir, "other.so")
	source := filepath.Join(dir, "other.go")
	require.NoError(t, os.WriteFile(source, []byte("package main\n\nimport \"C\"\nimport \"runtime\"\n\n//export Collect\nfunc Collect(n C.int) C.int { runtime.GC(); return n + 1 }\n\nfunc main() {}\n"), 0o600))
	run(t, "go", "build", "-buildmode=c-shared", "-o", other, source)
	late := make([]string, 50)
	for i := range late {
		late[i] = filepath.Join(dir, fmt.Sprintf("late%d.so", i))
		compileFor(t, late[i], "testdata/threadlocal.c", "-shared", "-fPIC")
	}
	for name, arguments := range map[string][]string{
		"handlers": nil, "pipes": nil, "profiled": nil, "unloaded": nil, "beside": {other}, "late": late,
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, run(t, guest, append([]string{lib, name}, arguments...)...))
		})
	}
}
