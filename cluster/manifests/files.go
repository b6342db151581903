package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxFile is more than an object can have, many times.
const maxFile = 16 << 20

// stamp is what changes when a file does.
type stamp struct {
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

// IsManifest tells whether a file's name is one of a manifest.
func IsManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name)))
}

// Find returns the manifests below a directory, by names relative to it; none if there is no directory.
func Find(dir string) ([]string, error) {
	found, err := look(dir)
	return slices.Sorted(maps.Keys(found)), err
}

// look finds the manifests below dir, by names relative to it. A directory that is missing has
// none. Hidden files, as editors make them, are no manifests.
func look(dir string) (map[string]stamp, error) {
	found := map[string]stamp{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it has just gone
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() || !IsManifest(path):
			return nil
		}
		info, err := os.Stat(path) // links are followed
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		found[name] = stamp{info.Size(), info.Mode(), info.ModTime()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for manifests: %w", err)
	}
	return found, nil
}

// read parses one file.
func read(dir, name string, s stamp) ([]Object, error) {
	switch {
	case !s.mode.IsRegular():
		return nil, fmt.Errorf("%s: not a file", name)
	case s.size > maxFile:
		return nil, fmt.Errorf("%s: %d MiB are more than the %d that a manifest may have; split it", name, s.size>>20, maxFile>>20)
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Unwrap(err))
	}
	return Parse(name, data)
}
