package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrRemoved says that the cluster has taken this member away. Its data is behind for ever
// and of no use: whoever wants to be a member again joins anew.
var ErrRemoved = errors.New("this machine was removed from etcd's members")

// removedFile marks the data directory of such a member: asked for its member, it would
// otherwise start, be turned away and end, over and over.
const removedFile = "removed"

// Removed tells whether the member in a data directory was removed.
func Removed(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, removedFile))
	return err == nil
}

func checkRemoved(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, removedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	return fmt.Errorf("%w on %s", ErrRemoved, text)
}

func markRemoved(dir string, now time.Time) error {
	if err := os.WriteFile(filepath.Join(dir, removedFile), []byte(now.UTC().Format(time.RFC3339)), 0o600); err != nil {
		return errors.Join(ErrRemoved, fmt.Errorf("note that: %w", err))
	}
	return ErrRemoved
}
