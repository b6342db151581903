// Package record keeps the runtime's state on disk: small JSON files, each
// replaced whole or not at all, each with the version of its format. A newer
// skiff reads what an older one left; an older one refuses what it cannot know.
//
// It must not know what is stored.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Header is embedded in every record.
type Header struct {
	Version int `json:"version"`
}

// ErrNewer says that a record was written by a newer skiff.
var ErrNewer = errors.New("written by a newer skiff")

// Save writes v as JSON to path: to a temporary file beside it, synced when
// durable (the record must survive a power cut), then renamed.
func Save(path string, v any, durable bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return Write(path, b, durable)
}

// Write is Save for bytes.
func Write(path string, b []byte, durable bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil && durable {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Load reads the record at path into v and checks that its version is at most max.
// A missing file is os.ErrNotExist.
func Load(path string, v any, max int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	var h Header
	if err := json.Unmarshal(b, &h); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	if h.Version > max {
		return fmt.Errorf("%s has format %d, this skiff knows %d: %w", path, h.Version, max, ErrNewer)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}
