package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/storetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func open(t *testing.T, root string, ttl time.Duration) *Store {
	s, err := Open(root, Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	root := filepath.Join(t.TempDir(), "made", "if need be")
	storetest.Run(t, func() discovery.Store { return open(t, root, 0) })
	require.Empty(t, leftovers(t, root), "Close deletes what was stored")
}

func leftovers(t *testing.T, root string) (files []string) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}

var key = discovery.Key{Bucket: discovery.Instances, Path: "wire/back_end/gen-1/de010cc167c82c9d"}

// The file's name is Dynamo's: everything but letters and digits is escaped.
func TestFileNames(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, 0)
	require.NoError(t, s.Create(key, []byte("{}")))
	require.FileExists(t, filepath.Join(root, "v1/instances/wire%2Fback%5Fend%2Fgen%2D1%2Fde010cc167c82c9d"))
	err := s.Create(discovery.Key{Bucket: key.Bucket, Path: strings.Repeat("/", 86)}, nil)
	require.ErrorIs(t, err, discovery.ErrInvalid)
	require.ErrorContains(t, err, "258 bytes")
	require.ErrorIs(t, s.Create(discovery.Key{Bucket: key.Bucket, Path: "x"}, make([]byte, discovery.MaxRecordBytes+1)), discovery.ErrInvalid)
}

// A file that nobody renews is not seen once its lease is over, also by who came before it ended; and later it is deleted. A file
// of a process that is gone for long is never seen, and its key is free.
func TestLeases(t *testing.T) {
	root := t.TempDir()
	const ttl = 300 * time.Millisecond
	dir := filepath.Join(root, "v1", "instances")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	old := filepath.Join(dir, fileName("old"))
	require.NoError(t, os.WriteFile(old, []byte("x"), 0o644))
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, long, long))

	s := open(t, root, ttl)
	require.NoError(t, s.Create(key, []byte("mine")))
	orphan := filepath.Join(dir, fileName("orphan"))
	require.NoError(t, os.WriteFile(orphan, []byte("x"), 0o644))
	soon := time.Now().Add(3 * time.Second) // that it is not over before anybody has looked
	require.NoError(t, os.Chtimes(orphan, soon, soon))
	view, err := s.Watch(key.Bucket, "")
	require.NoError(t, err)
	storetest.Await(t, view, key.Path, "mine", "orphan", "x")
	storetest.Await(t, view, key.Path, "mine")
	for leftover := leftovers(t, root); len(leftover) > 1; leftover = leftovers(t, root) {
		time.Sleep(ttl / 10)
		s.rescan(false)
	}

	require.NoError(t, os.WriteFile(old, []byte("x"), 0o644))
	require.NoError(t, os.Chtimes(old, long, long))
	require.NoError(t, s.Create(discovery.Key{Bucket: key.Bucket, Path: "old"}, []byte("new")))
	storetest.Await(t, view, key.Path, "mine", "old", "new")
}

// A process that was stopped for longer than its lease is there again when it runs, and so are its files.
func TestRenewal(t *testing.T) {
	root := t.TempDir()
	const ttl = 200 * time.Millisecond
	s, other := open(t, root, ttl), open(t, root, ttl)
	require.NoError(t, s.Create(key, []byte("mine")))
	view, err := other.Watch(key.Bucket, "")
	require.NoError(t, err)
	storetest.Await(t, view, key.Path, "mine")

	instances := filepath.Join(root, "v1", "instances")
	for name, lose := range map[string]func() error{
		"it is not renewed":       func() error { return nil },
		"the file is deleted":     func() error { return os.Remove(filepath.Join(instances, fileName(key.Path))) },
		"the directory goes away": func() error { return os.Rename(instances, filepath.Join(root, "v1", "moved")) },
	} {
		s.writing.Lock() // no renewal
		require.NoError(t, lose(), name)
		storetest.Await(t, view)
		s.writing.Unlock()
		storetest.Await(t, view, key.Path, "mine")
	}
}

// A lock that is held for ever is an error, not a wait without end; and reading needs none.
func TestLockHeldByAnother(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, 0)
	require.NoError(t, s.Create(key, []byte("x")))
	f, err := os.Open(filepath.Join(root, "v1", "instances"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	s.lockWait = 20 * time.Millisecond
	view, err := s.Watch(key.Bucket, "")
	require.NoError(t, err)
	storetest.Await(t, view, key.Path, "x")
	err = s.Delete(key)
	require.ErrorIs(t, err, discovery.ErrUnavailable)
	require.ErrorContains(t, err, "is held by another process")
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	require.NoError(t, s.Delete(key))
}

// What is no record of ours is passed over: other files, links, pipes, directories, names that nobody escapes so.
func TestForeignFiles(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "v1", "instances")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "directory"), 0o755))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	for _, name := range []string{".tmp_0123456789abcdef", "a%2fb", "a%", "a-b", "good"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644))
	}
	huge, err := os.Create(filepath.Join(dir, "huge"))
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(discovery.MaxRecordBytes+1))
	require.NoError(t, huge.Close())
	s := open(t, root, 0)
	view, err := s.Watch(discovery.Instances, "")
	require.NoError(t, err)
	storetest.Await(t, view, "good", "x")
}

// A directory that somebody fills takes a bounded part of the memory; when there is room again, what is there is seen.
func TestTooMuchInADirectory(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, 0)
	s.room = 1000
	for i := range 30 {
		require.NoError(t, s.Create(discovery.Key{Bucket: key.Bucket, Path: fmt.Sprintf("large%d", i)}, make([]byte, 100)))
	}
	view, err := s.Watch(key.Bucket, "")
	require.NoError(t, err)
	require.Len(t, view.Entries(), 10)
	for i := range 30 {
		require.NoError(t, s.Delete(discovery.Key{Bucket: key.Bucket, Path: fmt.Sprintf("large%d", i)}))
	}
	require.NoError(t, s.Create(key, []byte("x")))
	storetest.Await(t, view, key.Path, "x")
}

// Many processes write and read at once, and in the end all see the same.
func TestManyProcesses(t *testing.T) {
	root := t.TempDir()
	var views []*discovery.View
	var want []string
	var writers sync.WaitGroup
	for i := range 8 {
		s := open(t, root, 0)
		v, err := s.Watch(discovery.Instances, "")
		require.NoError(t, err)
		views = append(views, v)
		writers.Go(func() {
			for j := range 20 {
				k := discovery.Key{Bucket: discovery.Instances, Path: fmt.Sprintf("%d/%d", i, j)}
				assert.NoError(t, s.Create(k, []byte("1")))
				assert.NoError(t, s.Replace(k, []byte("2")))
				if j%2 == 0 {
					assert.NoError(t, s.Delete(k))
				}
			}
		})
		for j := 1; j < 20; j += 2 {
			want = append(want, fmt.Sprintf("%d/%d", i, j), "2")
		}
	}
	writers.Wait()
	for _, v := range views {
		storetest.Await(t, v, want...)
	}
}
