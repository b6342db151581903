package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/store"
)

// lockDataDir takes the data directory for this process until unlock is called or the
// process ends. etcd itself would wait for ever, or fail in the middle of its start.
func lockDataDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, lockError(dir, err)
	}
	// A plain etcd does not know that lock, but locks its database.
	db, err := os.OpenFile(dbPath(dir), os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(db.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		db.Close()
		if err != nil {
			f.Close()
			return nil, lockError(dir, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		f.Close()
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return func() { f.Close() }, nil
}

func lockError(dir string, err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("data directory %s is in use by another process: stop that one or choose another directory", dir)
	}
	return fmt.Errorf("lock the data directory %s: %w", dir, err)
}

func dbPath(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// spaceGuard refuses writes before the disk is full: etcd does not survive a write that
// fails, while one that is refused costs nothing and leaves reads alone.
type spaceGuard struct {
	dir     string
	reserve int64
	now     func() time.Time
	free    func(dir string) (int64, error)

	mu      sync.Mutex
	checked time.Time
	err     error
}

// spaceCheckEvery is short against what can be written meanwhile into the reserve.
const spaceCheckEvery = time.Second

func (g *spaceGuard) check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if now.Sub(g.checked) < spaceCheckEvery {
		return g.err
	}
	g.checked = now
	free, err := g.free(g.dir)
	switch {
	case err != nil:
		g.err = fmt.Errorf("free space of %s: %w", g.dir, err)
	case free < g.reserve:
		g.err = fmt.Errorf("%w: %d MiB left on the disk of %s, %d MiB are needed: free some",
			store.ErrNoSpace, free>>20, g.dir, g.reserve>>20)
	default:
		g.err = nil
	}
	return g.err
}

func freeSpace(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}
