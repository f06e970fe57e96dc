package router

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/snapshot"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is the warm restart: what the index holds goes to a file, and comes back in another process.
//
// A rank that was loaded and is not registered waits: it has its slot and its blocks, and is no candidate. AddWorker claims
// it. If the rank was followed by a feed, the new feed goes on from where the old one stood, and keeps the blocks only if the
// engine's replay proves that they are current; if the host applied its events, they are taken as they are.

// waiting is a loaded rank that nobody has added yet.
type waiting struct {
	cache   worker.Slot
	feed    *feed.Position // nil: its events were applied by the host
	partial string         // why its view is partial; with a feed that is in its position
}

// Save writes what all ranks hold to a file at path, which is replaced at once or not at all. Each rank is saved at one
// position of its events; events wait until the blocks are written, decisions do not. Bookings and presumed blocks (routing
// without events) are not saved. A link stays, and what it leads to is replaced; a file that was there keeps its mode.
// Errors: ErrFileError (also for what is there and no regular file), ErrClosed.
func (r *Router) Save(path string) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	closed, ranks := r.closed, append([]*rank(nil), r.ranks...)
	r.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if err := snapshot.Save(path, func(to io.Writer) error { return r.write(to, ranks) }); err != nil {
		return fmt.Errorf("%w: %w", ErrFileError, err)
	}
	return nil
}

// write is Save for a writer. r.admin is held, and no lock below it.
func (r *Router) write(to io.Writer, ranks []*rank) error {
	var rows []snapshot.Rank
	row := func(id worker.Rank, cache worker.Slot, at *feed.Position, partial string) {
		rows = append(rows, snapshot.Rank{ID: id, Slot: cache, Blocks: r.index.Blocks(cache), Feed: at, Partial: partial})
	}
	for _, k := range ranks { // feeds first: they wait for locks of ranks
		if k.feed != nil {
			at, release := k.feed.Freeze()
			defer release()
			if at != nil {
				k.mu.Lock()
				at.Partial = cmp.Or(at.Partial, k.partial, r.evicted(k.cache))
				k.mu.Unlock()
				row(k.id, k.cache, at, "")
			}
		}
	}
	for _, k := range ranks {
		if k.feed == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			row(k.id, k.cache, nil, cmp.Or(k.partial, r.evicted(k.cache)))
		}
	}
	for id, w := range r.waiting {
		row(id, w.cache, w.feed, w.partial)
	}
	slices.SortFunc(rows, func(a, b snapshot.Rank) int { return a.ID.Compare(b.ID) })
	w, err := snapshot.NewWriter(to, snapshot.Header{BlockSize: r.blockSize, Created: r.clock()}, rows)
	if err != nil {
		return err
	}
	if err := r.index.Runs(func(run *index.Run) error { return w.Run(event.Device, run) }); err != nil {
		return err
	}
	for _, t := range lowerTiers {
		if err := r.tiers.Runs(t, func(run *index.Run) error { return w.Run(t, run) }); err != nil {
			return err
		}
	}
	return w.Close()
}

// evicted says what the byte bound took from a cache, "" if nothing.
func (r *Router) evicted(cache worker.Slot) string {
	if n := r.evictedBlocks(cache); n > 0 {
		return fmt.Sprintf("max_bytes: %d blocks were evicted", n)
	}
	return ""
}

// Load reads a file that Save wrote, and tells how many ranks it restored: those that are not registered, which wait for
// AddWorker, and those that are, have no event endpoint and hold nothing. Other registered ranks stay as they are: what they
// hold is newer than the file. Errors: ErrFileError (also for what is no regular file); ErrSnapshotRefused (not a snapshot,
// another version or block size, torn, corrupt); ErrClosed. With each of them the router is as it was, unless the file was
// written to while it was loaded: what was loaded before of its ranks is then given up too.
func (r *Router) Load(path string) (ranks int, err error) {
	f, err := snapshot.Open(path)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFileError, err)
	}
	defer f.Close()
	// Registered ranks are candidates while their blocks are restored, and what was loaded before gives way to them: so the
	// whole file is read before anything of it is used.
	in, err := r.reader(path, f)
	if err != nil {
		return 0, err
	}
	if err := in.Runs(func(event.Tier, *index.Run) error { return nil }); err != nil {
		return 0, refused(path, err)
	}
	return r.restore(path, f)
}

// restore is Load of a file that was whole a moment ago.
func (r *Router) restore(path string, f *os.File) (ranks int, err error) {
	r.admin.Lock()
	defer r.admin.Unlock()
	in, err := r.reader(path, f)
	if err != nil {
		return 0, err
	}
	l := loader{r: r, ranks: in.Ranks(), targets: make([]target, len(in.Ranks()))}
	if err := l.begin(); err != nil {
		return 0, err
	}
	defer l.release()
	if err := in.Runs(l.run); err != nil {
		l.undo()
		return 0, refused(path, err)
	}
	return l.keep(), nil
}

// reader begins to read a file, from its start.
func (r *Router) reader(path string, f *os.File) (*snapshot.Reader, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFileError, err)
	}
	in, err := snapshot.NewReader(bufio.NewReaderSize(f, snapshot.BufferSize))
	if err != nil {
		return nil, refused(path, err)
	}
	if size := in.Header().BlockSize; size != r.blockSize {
		return nil, fmt.Errorf("%w: %s has blocks of %d tokens, the router's have %d", ErrSnapshotRefused, path, size, r.blockSize)
	}
	return in, nil
}

// refused gives the errors of a reader the names of this package.
func refused(path string, err error) error {
	for _, known := range []error{snapshot.ErrForeign, snapshot.ErrVersion, snapshot.ErrTorn, snapshot.ErrCorrupt, snapshot.ErrIdentity} {
		if errors.Is(err, known) {
			return fmt.Errorf("%w: %s: %w", ErrSnapshotRefused, path, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrFileError, err)
}

// loader puts a file into the index. r.admin is held all the time, and of live ranks their own lock.
type loader struct {
	r       *Router
	ranks   []snapshot.Rank
	targets []target // by position in ranks
}

// target is where a rank of the file goes.
type target struct {
	cache worker.Slot
	live  *rank // registered; nil: it will wait
	none  bool  // nowhere
	lost  bool  // a run was refused
}

// begin finds the targets and locks the live ones.
func (l *loader) begin() error {
	r := l.r
	var old []worker.Rank // loaded before, and not claimed
	for i := range l.ranks {
		if id := l.ranks[i].ID; r.waiting[id] != nil {
			old = append(old, id)
		}
	}
	r.forget(old)
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	for i := range l.ranks {
		l.targets[i] = l.target(&l.ranks[i])
	}
	r.mu.Unlock()
	for i := range l.targets {
		if t := &l.targets[i]; t.live != nil {
			t.live.mu.Lock()
			t.none = r.index.Blocks(t.cache) > 0 || r.tiers.Holds(t.cache)
		}
	}
	return nil
}

// target chooses for one rank. r.mu is held.
func (l *loader) target(row *snapshot.Rank) target {
	if !l.r.config.UseKVEvents {
		return target{none: true}
	}
	if w := l.r.workers[row.ID.ID]; w != nil && w.ranks[row.ID.DPRank] != nil {
		if k := w.ranks[row.ID.DPRank]; k.feed == nil && row.Feed == nil {
			return target{cache: k.cache, live: k}
		}
		return target{none: true}
	}
	if l.r.table.Len()+l.r.caches.hidden >= index.MaxSlots {
		return target{none: true}
	}
	return target{cache: l.r.caches.take(l.r.table.Add(row.ID))}
}

func (l *loader) release() {
	for i := range l.targets {
		if k := l.targets[i].live; k != nil {
			k.mu.Unlock()
		}
	}
}

// run restores one run to the targets of its ranks. A refusal is no fault of the file: a bounded index may have evicted
// the parent.
func (l *loader) run(tier event.Tier, run *index.Run) error {
	var to snapshot.Applier = l.r.index
	if tier != event.Device {
		to = l.r.tiers
	}
	for _, place := range run.Slots {
		if t := &l.targets[place]; !t.none && snapshot.Restore(to, tier, t.cache, run) != nil {
			t.lost = true
		}
	}
	return nil
}

// undo takes everything back.
func (l *loader) undo() {
	for i := range l.targets {
		if t := &l.targets[i]; !t.none {
			l.r.drop(t.cache)
		}
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for i := range l.targets {
		if t := &l.targets[i]; !t.none && t.live == nil {
			l.r.table.Remove(l.ranks[i].ID)
			l.r.caches.give(t.cache)
		}
	}
	l.r.epoch.Add(1)
}

// keep makes the unregistered ranks wait, and tells how many ranks were restored.
func (l *loader) keep() (n int) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for i := range l.targets {
		t, row := &l.targets[i], &l.ranks[i]
		if t.none {
			continue
		}
		n++
		reason := row.Partial
		if held := l.r.index.Blocks(t.cache); reason == "" && (t.lost || held < row.Blocks) {
			reason = fmt.Sprintf("snapshot: %d of %d blocks were restored", held, row.Blocks)
		}
		if row.Feed != nil {
			row.Feed.Partial = cmp.Or(row.Feed.Partial, reason)
		}
		if t.live != nil {
			t.live.partial = reason
		} else {
			l.r.waiting[row.ID] = &waiting{cache: t.cache, feed: row.Feed, partial: reason}
		}
	}
	return n
}

// claim takes what waits for the ranks of a worker that is about to get them. Blocks whose rank gets its events in another
// way than before cannot be proven, and are dropped. r.admin is held, no lock below it.
func (r *Router) claim(id uint64, resolved map[uint32]rankEndpoints) map[uint32]*waiting {
	claimed := make(map[uint32]*waiting)
	for dp, e := range resolved {
		w := r.waiting[worker.Rank{ID: id, DPRank: dp}]
		switch {
		case w == nil:
		case (w.feed != nil) == (e.followed() && r.config.UseKVEvents):
			claimed[dp] = w
		default:
			r.drop(w.cache) // the rank keeps it
		}
	}
	return claimed
}

// forget gives up loaded ranks that nobody added. r.admin is held, no lock below it.
func (r *Router) forget(ids []worker.Rank) {
	if len(ids) == 0 {
		return
	}
	for _, id := range ids {
		r.drop(r.waiting[id].cache)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.caches.give(r.waiting[id].cache)
		delete(r.waiting, id)
		r.table.Remove(id)
	}
	r.epoch.Add(1)
}

// waitingFor lists the loaded ranks of a worker that nobody added, or of all workers. r.admin is held.
func (r *Router) waitingFor(id uint64, all bool) (ids []worker.Rank) {
	for rank := range r.waiting {
		if all || rank.ID == id {
			ids = append(ids, rank)
		}
	}
	return ids
}
