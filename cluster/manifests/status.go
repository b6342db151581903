package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// State of a file.
type State string

const (
	// Applied: all of its objects are there.
	Applied State = "Applied"
	// Failed: some are not, and are tried again.
	Failed State = "Failed"
	// Invalid: it cannot be read; what it said before stays.
	Invalid State = "Invalid"
	// Waiting: it has not been tried yet.
	Waiting State = "Waiting"
)

// Status of a file.
type Status struct {
	File    string    `json:"file"`
	Objects int       `json:"objects"`
	Applied int       `json:"applied"`
	State   State     `json:"state"`
	Errors  []string  `json:"errors,omitempty"`
	Since   time.Time `json:"since"`
}

// tell writes the states where they have changed.
func (m *Manifests) tell() {
	before, err := ReadStatus(m.cfg.StatusFile)
	if err != nil {
		before = nil // a new file mends it
	}
	var all []Status
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		f := m.files[name]
		s := Status{File: name, Objects: len(f.objects), Applied: f.applied, State: Waiting, Since: m.cfg.Clock.Now().UTC().Truncate(time.Second)}
		switch {
		case f.invalid != nil:
			s.State, s.Errors = Invalid, []string{f.invalid.Error()}
		case len(f.failed) > 0:
			s.State = Failed
			for _, at := range slices.Sorted(maps.Keys(f.failed)) {
				s.Errors = append(s.Errors, f.failed[at].Error())
			}
		case f.done():
			s.State = Applied
		}
		if i := slices.IndexFunc(before, func(b Status) bool { return b.File == name }); i >= 0 && before[i].State == s.State {
			s.Since = before[i].Since
		}
		all = append(all, s)
	}
	if slices.EqualFunc(all, before, func(a, b Status) bool {
		return a.File == b.File && a.Objects == b.Objects && a.Applied == b.Applied && a.State == b.State && slices.Equal(a.Errors, b.Errors)
	}) && err == nil {
		return
	}
	for _, s := range all {
		for _, e := range s.Errors {
			if !slices.ContainsFunc(before, func(b Status) bool { return slices.Contains(b.Errors, e) }) && s.State == Failed {
				m.cfg.Logger.Error("manifest is not applied", "err", e)
			}
		}
	}
	if err := writeStatus(m.cfg.StatusFile, all); err != nil {
		m.cfg.Logger.Error("manifests", "err", err)
	}
}

func writeStatus(path string, all []Status) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode states of manifests: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write states of manifests: %w", err)
	}
	next := path + ".new"
	if err := os.WriteFile(next, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write states of manifests: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write states of manifests: %w", err)
	}
	return nil
}

// ReadStatus reads the states that a cluster's control plane wrote last; none if it never had
// any manifests.
func ReadStatus(path string) ([]Status, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read states of manifests: %w", err)
	}
	var all []Status
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read states of manifests: %s: %w", path, err)
	}
	return all, nil
}
