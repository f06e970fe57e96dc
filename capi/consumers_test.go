package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConsumers: the examples of each language that the library is for route by a mocker's real events.
func TestConsumers(t *testing.T) {
	lib := filepath.Join(library(t), "libdynamo_go.so")
	found := "worker 7 holds 2 blocks of the prompt"
	deployed := "3 items; the worker holds 2 blocks of the prompt"
	t.Run("c", func(t *testing.T) { // loaded; TestExampleRoutesToTheHolder and TestCPrograms are linked
		program := filepath.Join(t.TempDir(), "follow")
		run(t, compiler("CC", "cc"), append([]string{"-std=c99", "-I../include", "-o", program, "../examples/c/follow.c", "-ldl"}, strict...)...)
		require.Contains(t, run(t, program, lib), found)
	})
	t.Run("c++", func(t *testing.T) {
		cxx := compiler("CXX", "c++")
		if _, err := exec.LookPath(cxx); err != nil {
			t.Skip("no C++ compiler on this machine")
		}
		for _, standard := range []string{"c++17", "c++20"} {
			program := filepath.Join(t.TempDir(), "follow")
			run(t, cxx, append([]string{"-std=" + standard, "-I../include", "-o", program, "../examples/cpp/follow.cpp", "-L" + library(t), "-ldynamo_go",
				"-Wl,-rpath," + library(t)}, strict...)...)
			out := run(t, program)
			require.Contains(t, out, "5 tokens; "+found)
			require.Contains(t, out, "1 request; freed again: REQUEST_NOT_FOUND")
		}
		program := filepath.Join(t.TempDir(), "deployment")
		run(t, cxx, append([]string{"-std=c++17", "-I../include", "-o", program, "../examples/cpp/deployment.cpp", "-L" + library(t), "-ldynamo_go",
			"-Wl,-rpath," + library(t), "-pthread"}, strict...)...)
		require.Contains(t, run(t, program, t.TempDir()), deployed)
	})
	t.Run("rust", func(t *testing.T) {
		if exec.Command("cargo", "--version").Run() != nil { // it may be there and have no toolchain
			t.Skip("no cargo on this machine")
		}
		target := t.TempDir()
		run(t, "cargo", "build", "--quiet", "--offline", "--locked", "--manifest-path", "../examples/rust/Cargo.toml", "--target-dir", target)
		require.Contains(t, run(t, filepath.Join(target, "debug", "dynamo-go"), lib), "5 tokens; worker 0xf123456789abcdef holds 2 blocks of the prompt")
		require.Contains(t, run(t, filepath.Join(target, "debug", "deployment"), lib, t.TempDir()), deployed)
	})
	t.Run("go", func(t *testing.T) {
		require.Contains(t, run(t, "go", "run", "../examples/go"), "16 tokens; "+found)
	})
}
