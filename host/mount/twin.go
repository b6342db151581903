package mount

import (
	"path/filepath"
	"sort"
	"strings"
	"sync"
)

// Twin is a mount table in memory: nothing is mounted, everything is remembered.
type Twin struct {
	mu     sync.Mutex
	Mounts map[string]Entry
	// Err, when set, is asked before every operation ("tmpfs", "bind", "unmount").
	Err func(op, target string) error
}

// Entry is one mount of a Twin.
type Entry struct {
	Source   string // "tmpfs" or the bound path
	ReadOnly bool
	Size     int64
}

func (t *Twin) do(op, target string, f func()) error {
	if t.Err != nil {
		if err := t.Err(op, target); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Mounts == nil {
		t.Mounts = map[string]Entry{}
	}
	f()
	return nil
}

// Tmpfs implements Table.
func (t *Twin) Tmpfs(target string, size int64) error {
	return t.do("tmpfs", target, func() { t.Mounts[filepath.Clean(target)] = Entry{Source: "tmpfs", Size: size} })
}

// Bind implements Table.
func (t *Twin) Bind(source, target string, readOnly bool) error {
	return t.do("bind", target, func() { t.Mounts[filepath.Clean(target)] = Entry{Source: source, ReadOnly: readOnly} })
}

// Unmount implements Table.
func (t *Twin) Unmount(target string) error {
	return t.do("unmount", target, func() { delete(t.Mounts, filepath.Clean(target)) })
}

// Under implements Table.
func (t *Twin) Under(dir string) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dir = filepath.Clean(dir)
	var out []string
	for p := range t.Mounts {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool { return len(out[i]) > len(out[j]) || len(out[i]) == len(out[j]) && out[i] < out[j] })
	return out, nil
}
