package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var strict = []string{"-Wall", "-Wextra", "-Werror", "-pedantic"}

// sanitizer, "address" or "thread", is what the C side and the C programs are built with under ./build.sh soak.
var sanitizer = os.Getenv("DGO_SANITIZE")

var libraryDir string // of libdynamo_go.so, once it is built

// builtLibrary builds libdynamo_go.so, once for all tests of the package.
var builtLibrary = sync.OnceValue(func() (err error) {
	if libraryDir, err = os.MkdirTemp("", "dynamo-go-capi-"); err != nil {
		return err
	}
	target := filepath.Join(libraryDir, "libdynamo_go.so")
	build := exec.Command("go", "build", "-buildmode=c-shared", "-tags=grpcnotrace", "-buildvcs=false", "-o", target, ".")
	if sanitizer != "" {
		flag := "-fsanitize=" + sanitizer
		build.Env = append(os.Environ(), "CGO_CFLAGS=-g -O1 "+flag, "CGO_LDFLAGS="+flag)
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(libraryDir)
	os.Exit(code)
}

func library(t *testing.T) string {
	t.Helper()
	require.NoError(t, builtLibrary())
	return libraryDir
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	limit := 3 * time.Minute // of a program that hangs
	if os.Getenv("DGO_SOAK_CALLS") != "" {
		limit = 4 * time.Hour
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

func compiler(variable, fallback string) string {
	if c := os.Getenv(variable); c != "" {
		return c
	}
	return fallback
}

// compile builds one C program against the library and gives its path.
func compile(t *testing.T, source string) string {
	t.Helper()
	dir := library(t)
	program := filepath.Join(t.TempDir(), "program")
	args := append(slices.Clone(strict), "-std=c99", "-D_DEFAULT_SOURCE", "-O1", "-I../include", "-Itestdata", "-o", program, source,
		"-L"+dir, "-ldynamo_go", "-Wl,-rpath,"+dir, "-pthread")
	if sanitizer != "" {
		args = append(args, "-g", "-fsanitize="+sanitizer)
	}
	run(t, compiler("CC", "cc"), args...)
	return program
}

func TestHeaderCompilesAlone(t *testing.T) {
	for _, c := range []struct{ compiler, language, standard string }{
		{compiler("CC", "cc"), "c", "c99"},
		{compiler("CC", "cc"), "c", "c11"},
		{compiler("CXX", "c++"), "c++", "c++17"},
	} {
		t.Run(c.standard, func(t *testing.T) {
			if _, err := exec.LookPath(c.compiler); err != nil && c.language == "c++" {
				t.Skip("no C++ compiler on this machine")
			}
			run(t, c.compiler, append(slices.Clone(strict), "-x", c.language, "-std="+c.standard, "-fsyntax-only", "../include/dynamo_go.h")...)
		})
	}
}

func TestCPrograms(t *testing.T) {
	for _, name := range []string{"hostile", "fork", "threads", "wait", "replicate", "overhead", "warm", "publisher", "radix", "stream"} {
		t.Run(name, func(t *testing.T) { t.Log(run(t, compile(t, filepath.Join("testdata", name+".c")))) })
	}
}

// TestTheLogGoesWhereItIsTold: nothing is printed but by dgo_log or DYN_LOG.
func TestTheLogGoesWhereItIsTold(t *testing.T) {
	program := compile(t, "testdata/log.c")
	joined := regexp.MustCompile(`(?m)^time=\S+ level=INFO msg="worker joined" worker_id=18446744073709551557 `)
	require.Len(t, joined.FindAllString(run(t, program), -1), 1, "the one time that it was told to")
	for value, lines := range map[string]int{"": 0, "off": 0, "nonsense": 0, "error": 0, "debug,some::module=off": 1} {
		t.Setenv("DYN_LOG", value)
		require.Len(t, joined.FindAllString(run(t, program, "DYN_LOG alone"), -1), lines, value)
		if lines == 0 {
			require.Empty(t, run(t, program, "DYN_LOG alone"), value)
		}
	}
}

// TestManyThreads: ./build.sh soak has 32 of them, for a minute.
func TestManyThreads(t *testing.T) {
	seconds := os.Getenv("DGO_SOAK_THREADS_SECONDS")
	if seconds == "" {
		seconds = "0" // once
	}
	t.Log(run(t, compile(t, "testdata/threads.c"), "32", seconds))
}

func TestExampleRoutesToTheHolder(t *testing.T) {
	out := run(t, compile(t, "../examples/c/route.c"))
	require.Contains(t, out, "worker 2, rank 0, holds 2 of 2 blocks")
}

// TestHeaderAndExportsAgree: what the header declares is there, and nothing else is public.
func TestHeaderAndExportsAgree(t *testing.T) {
	var declared, exported []string
	for _, d := range declarations(t) {
		declared = append(declared, d.name)
	}
	for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", filepath.Join(library(t), "libdynamo_go.so"))) {
		fields := strings.Fields(line)
		exported = append(exported, fields[len(fields)-1])
	}
	require.ElementsMatch(t, declared, exported)
}

// TestTheFileHoldsNoTables: what is zero at the start is not in the library's file.
func TestTheFileHoldsNoTables(t *testing.T) {
	file, err := elf.Open(filepath.Join(library(t), "libdynamo_go.so"))
	require.NoError(t, err)
	defer file.Close()
	require.Less(t, file.Section(".data").Size, uint64(512<<10))
}

// examplesOfHeader gives the examples of the header: the lines of comments that are set five spaces in.
func examplesOfHeader(t *testing.T) []string {
	header, err := os.ReadFile("../include/dynamo_go.h")
	require.NoError(t, err)
	var examples []string
	inside := false
	for line := range strings.Lines(string(header)) {
		code, indented := strings.CutPrefix(line, " *     ")
		isName := regexp.MustCompile(`^ \*   \w`).MatchString(line) // an argument, whose text goes on further in
		switch {
		case indented && inside:
			examples[len(examples)-1] += code
		case indented && regexp.MustCompile(`^(dgo_error|struct) `).MatchString(code):
			examples, inside = append(examples, code), true
		case isName || strings.TrimSpace(line) != "*":
			inside = false
		}
	}
	return examples
}

// TestExamplesOfHeader: they are programs that work.
func TestExamplesOfHeader(t *testing.T) {
	examples := examplesOfHeader(t)
	require.Len(t, examples, 2)
	for i, around := range []struct{ before, after string }{
		{"const uint32_t tokens[3] = {1, 2, 3};\nconst size_t n_tokens = 3;\n", ""},
		{`size_t used = 0;
#define use(data, size) used += (size) > 10 && (data)[0] == '{'
const uint32_t tokens[3] = {1, 2, 3};
dgo_error error = {.struct_size = sizeof error};
dgo_mocker mocker;
dgo_stream stream;
if (dgo_mocker_new(NULL, 0, &mocker, &error) != DGO_OK) fail(error.message);
if (dgo_mocker_generate(mocker, tokens, 3, "{\"max_tokens\":5}", 16, &stream, &error) != DGO_OK) fail(error.message);
`, "dgo_mocker_close(mocker, NULL);\nif (used != 5) fail(error.message);\n"},
	} {
		source := "#include <poll.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include \"dynamo_go.h\"\n" +
			"static void fail(const char *m) { puts(m); exit(1); }\n" +
			"int main(void) {\n" + around.before + examples[i] + around.after + "(void)fail;\nreturn 0;\n}\n"
		path := filepath.Join(t.TempDir(), "example.c")
		require.NoError(t, os.WriteFile(path, []byte(source), 0o600))
		run(t, compile(t, path))
	}
}
