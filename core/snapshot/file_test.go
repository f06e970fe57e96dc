package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func fileText(t *testing.T, path string) string {
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(got)
}

// folder lists a folder: nothing temporary may be left.
func folder(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSavedFilesKeepTheirMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Save(path, text("new")))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode(), "a new one is for its owner only")
	for _, mode := range []fs.FileMode{0o644, 0o660, 0o400, 0o600} {
		require.NoError(t, os.Chmod(path, mode))
		require.NoError(t, Save(path, text("again")))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode())
	}
}

// A link stays a link, whether it leads to a file, to nothing yet, or through other links.
func TestSaveFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.MkdirAll(at("real/deep"), 0o700))
	require.NoError(t, os.Mkdir(at("links"), 0o700))
	require.NoError(t, os.WriteFile(at("real/file"), nil, 0o640))
	require.NoError(t, os.Symlink("../real/deep", at("links/folder")))
	for name, to := range map[string]string{
		"absolute": at("real/file"), "relative": "../real/file", "chain": "relative", "new": "../real/new", "above": "folder/../above",
	} {
		require.NoError(t, os.Symlink(to, at("links/"+name)))
	}
	for name, target := range map[string]string{
		"absolute": "real/file", "relative": "real/file", "chain": "real/file", "new": "real/new",
		"above": "real/above", "folder/x": "real/deep/x", "folder/../y": "real/y",
	} {
		require.NoError(t, Save(at("links")+"/"+name, text(name)))
		require.Equal(t, name, fileText(t, at(target)))
	}
	info, err := os.Lstat(at("real/file"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode())
	require.Equal(t, []string{"above", "absolute", "chain", "folder", "new", "relative"}, folder(t, at("links")))
	require.Equal(t, []string{"above", "deep", "file", "new", "y"}, folder(t, at("real")))
	for _, name := range []string{"absolute", "relative", "chain", "new", "above"} {
		info, err := os.Lstat(at("links/" + name))
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&fs.ModeSymlink, name)
	}

	t.Chdir(at("links"))
	require.NoError(t, Save("relative", text("from here")))
	require.Equal(t, "from here", fileText(t, at("real/file")))
	require.NoError(t, os.Symlink("loop", at("links/loop")))
	require.ErrorIs(t, Save("loop", text("never")), syscall.ELOOP)
}

// What is there and no regular file is neither replaced nor opened.
func TestWhatIsNoRegularFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	require.NoError(t, os.Symlink(fifo, link))
	for _, path := range []string{fifo, link, dir, dir + "/", os.DevNull} {
		require.ErrorContains(t, Save(path, func(io.Writer) error { return errors.New("it was written") }), "expected a regular file", path)
		_, err := Open(path) // nobody writes to the FIFO: it must not wait
		require.ErrorContains(t, err, "expected a regular file", path)
	}
	info, err := os.Lstat(fifo)
	require.NoError(t, err)
	require.Equal(t, fs.ModeNamedPipe, info.Mode().Type())
	require.Equal(t, []string{"fifo", "link"}, folder(t, dir))
	_, err = Open(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, path := range []string{"", fifo + "/x", filepath.Join(dir, "none", "x")} {
		require.Error(t, Save(path, text("x")), path)
	}
}
