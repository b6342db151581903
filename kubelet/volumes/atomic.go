package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// File is one file of a projected volume.
type File struct {
	Data []byte
	Mode os.FileMode
	// UID owns the file; nil: the kubelet's user.
	UID *int64
}

const (
	dataLink    = "..data"
	dataTmpLink = "..data_tmp"
)

// writeAtomically makes dir show exactly the payload, all at once: the files are in
// a directory of their own, ..data links to it, and each top-level name links into
// ..data; an update swaps the one link (as every kubelet does, and programs that
// watch their configuration rely on). own sets ownership before the swap. It tells
// whether anything changed.
func writeAtomically(dir string, payload map[string]File, own func(dir string) error) (bool, error) {
	clean := make(map[string]File, len(payload))
	for name, f := range payload {
		p, err := payloadPath(name)
		if err != nil {
			return false, err
		}
		clean[p] = f
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read link to current data: %w", err)
	}
	if old != "" && shows(dir, old, clean) {
		return false, nil
	}

	next, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return false, fmt.Errorf("make data directory: %w", err)
	}
	fail := func(err error) (bool, error) { return false, errors.Join(err, os.RemoveAll(next)) }
	// Programs of any user read it; the umask must not decide.
	if err := os.Chmod(next, 0o755); err != nil {
		return fail(err)
	}
	for name, f := range clean {
		if err := writeFile(filepath.Join(next, name), f); err != nil {
			return fail(fmt.Errorf("write %s: %w", name, err))
		}
	}
	if own != nil {
		if err := own(next); err != nil {
			return fail(err)
		}
	}
	tmp := filepath.Join(dir, dataTmpLink)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if err := os.Symlink(filepath.Base(next), tmp); err != nil {
		return fail(fmt.Errorf("link new data: %w", err))
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return fail(fmt.Errorf("swap to new data: %w", err))
	}
	if err := linkNames(dir, clean); err != nil {
		return true, err
	}
	return true, removeOldData(dir, filepath.Base(next))
}

// linkNames makes the visible names and takes away those that no longer are.
func linkNames(dir string, payload map[string]File) error {
	want := map[string]bool{}
	for name := range payload {
		want[top(name)] = true
	}
	for name := range want {
		link := filepath.Join(dir, name)
		target := filepath.Join(dataLink, name)
		if got, err := os.Readlink(link); err == nil && got == target {
			continue
		}
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list volume: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") || want[e.Name()] || e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove stale link: %w", err)
		}
	}
	return nil
}

// removeOldData clears what earlier updates, and writers that were killed, left.
func removeOldData(dir, current string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list volume: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "..") && e.Name() != current {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove old data: %w", err)
			}
		}
	}
	return nil
}

func writeFile(name string, f File) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(name, f.Data, 0o600); err != nil {
		return err
	}
	if f.UID != nil {
		if err := os.Chown(name, int(*f.UID), -1); err != nil {
			return err
		}
	}
	return os.Chmod(name, f.Mode.Perm())
}

// shows tells whether the data directory has exactly the payload already.
func shows(dir, data string, payload map[string]File) bool {
	base := filepath.Join(dir, data)
	seen := 0
	err := filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(base, p)
		if err != nil {
			return err
		}
		f, ok := payload[rel]
		if !ok {
			return fs.SkipAll
		}
		raw, err := os.ReadFile(p)
		if err != nil || !bytes.Equal(raw, f.Data) {
			return fs.ErrInvalid
		}
		seen++
		return nil
	})
	if err != nil || seen != len(payload) {
		return false
	}
	count := 0
	_ = filepath.WalkDir(base, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			count++
		}
		return nil
	})
	return count == len(payload)
}

// payloadPath refuses paths that leave the volume or collide with its own names.
func payloadPath(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || clean == ".":
		return "", fmt.Errorf("invalid path: must not be empty: %q", name)
	case path.IsAbs(name):
		return "", fmt.Errorf("invalid path: must be relative path: %s", name)
	case len(name) > 4096:
		return "", fmt.Errorf("invalid path: must be less than or equal to 4096 characters")
	case strings.HasPrefix(clean, ".."):
		return "", fmt.Errorf("invalid path: must not start with '..': %s", name)
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("invalid path: must not contain NUL")
	}
	for _, part := range strings.Split(clean, "/") {
		if len(part) > 255 {
			return "", fmt.Errorf("invalid path: filenames must be less than or equal to 255 characters")
		}
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("invalid path: must not contain '..': %s", name)
		}
	}
	return clean, nil
}

func top(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return first
}
