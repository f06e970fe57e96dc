package file

import (
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Bounds of a bucket: the files that are looked at, and their bytes, which are kept in memory. What is beyond is not seen.
const (
	MaxRecords     = 100_000
	MaxBucketBytes = 256 << 20
)

// temporaryPrefix is what files begin with that are being written.
const temporaryPrefix = ".tmp_"

// bucket is what is known of a directory. Store.mu guards it.
type bucket struct {
	dir    string
	views  map[*discovery.View]struct{}
	files  map[string]read   // by file name: what was read, as long as the file stays the same
	shown  map[string][]byte // by path
	expiry time.Time         // when the next lease may end; zero: never
}

// read is a file's content, and what tells that it is still that.
type read struct {
	inode uint64
	size  int64
	value []byte
}

func newBucket(dir string) *bucket {
	return &bucket{dir: dir, views: make(map[*discovery.View]struct{}), files: make(map[string]read)}
}

// scan reads a bucket and shows it. s.mu is held.
func (s *Store) scan(name string, b *bucket) {
	shown, files := make(map[string][]byte), make(map[string]read)
	now := time.Now()
	b.expiry = time.Time{}
	var dead []string
	room := s.room
	names, _ := list(b.dir) // a bucket that cannot be read has nothing
	for _, file := range names {
		info, err := os.Lstat(filepath.Join(b.dir, file))
		if err != nil || !info.Mode().IsRegular() || info.Size() > discovery.MaxRecordBytes {
			continue
		}
		end := info.ModTime().Add(s.ttl)
		if strings.HasPrefix(file, temporaryPrefix) || !now.Before(end) {
			if now.After(end.Add(s.ttl)) {
				dead = append(dead, file)
			}
			continue
		}
		path, err := url.PathUnescape(file)
		if err != nil || fileName(path) != file {
			continue
		}
		if room -= info.Size(); room < 0 {
			room += info.Size()
			continue
		}
		r, known := b.files[file]
		inode := inode(info)
		if !known || r.inode != inode || r.size != info.Size() {
			value, err := readFile(filepath.Join(b.dir, file))
			if err != nil {
				continue
			}
			r = read{inode, info.Size(), value}
		}
		files[file], shown[path] = r, r.value
		if s.own[discovery.Key{Bucket: name, Path: path}] == nil && (b.expiry.IsZero() || end.Before(b.expiry)) {
			b.expiry = end
		}
	}
	b.files, b.shown = files, shown
	for v := range b.views {
		v.Update(shown)
	}
	if len(dead) > 0 {
		s.bury(name, dead)
	}
}

// bury deletes files that have been dead for long, unless somebody else writes now: it can wait.
func (s *Store) bury(name string, dead []string) {
	_ = s.tryLocked(name, 0, func(dir string) error {
		for _, file := range dead {
			if s.dead(filepath.Join(dir, file)) {
				_ = os.Remove(filepath.Join(dir, file))
			}
		}
		return nil
	})
}

func list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(MaxRecords)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// readFile reads a regular file, whatever its name has become meanwhile.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, discovery.MaxRecordBytes))
}
