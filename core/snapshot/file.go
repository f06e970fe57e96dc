package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// newMode is the mode of a file that was not there: it holds the cache salts in use.
const newMode fs.FileMode = 0o600

// BufferSize is enough for a file's small sections, those of ranks. The large ones, of runs, pass a buffer by.
const BufferSize = 16 << 10

// Open opens the file at path to be read. What is no regular file is refused and not opened: the other end of a FIFO may
// never come, and opening a device may do something.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular("open", path, info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be another one by now
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular("open", path, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func regular(op, path string, info fs.FileInfo) error {
	if mode := info.Mode(); !mode.IsRegular() {
		return &fs.PathError{Op: op, Path: path, Err: fmt.Errorf("expected a regular file, it is %v", mode)}
	}
	return nil
}

// Save makes or replaces the file at path with what write writes. Whatever happens, path is the file it was or the whole
// new one: the bytes are on disk before it is renamed to path. A link stays, and what it leads to is made or replaced; a
// file that was there keeps its mode; what is there and no regular file is refused.
func Save(path string, write func(io.Writer) error) (err error) {
	path, mode, err := target(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	buffered := bufio.NewWriterSize(f, BufferSize)
	if err := write(buffered); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	if mode != newMode { // which it has
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// target follows the links at path, the last of which may lead to nothing, and gives the mode that the file there is to have.
func target(path string) (string, fs.FileMode, error) {
	const most = 40 // as Linux allows
	for range most {
		dir, name := filepath.Split(path) // uncleaned: ".." behind a link is where the link leads
		dir, err := filepath.EvalSymlinks(dir + ".")
		if err != nil {
			return "", 0, err
		}
		path = filepath.Join(dir, name)
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path, newMode, nil
		case err != nil:
			return "", 0, err
		case info.Mode()&fs.ModeSymlink == 0:
			return path, info.Mode().Perm(), regular("save", path, info)
		}
		link, err := os.Readlink(path)
		if err != nil {
			return "", 0, err
		}
		if path = link; !filepath.IsAbs(link) {
			path = dir + string(filepath.Separator) + link
		}
	}
	return "", 0, &fs.PathError{Op: "save", Path: path, Err: syscall.ELOOP}
}

// syncDir makes a rename last. File systems that cannot do it have nothing to say about the file itself.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = dir.Sync()
	return dir.Close()
}
