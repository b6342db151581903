package localpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/api/localpath"
	"github.com/skiff-k8s/skiff/host/mount"
)

// unfinished begins the names of directories that are not volumes yet.
const unfinished = ".new-"

// disk is the directory of the volumes. All goes through an os.Root: no name and no symbolic
// link leads out of it.
type disk struct {
	path   string
	root   *os.Root
	mounts interface {
		Under(dir string) ([]string, error)
	}
}

// openDisk makes the directory and takes away what a crash left half made in it.
func openDisk(path string) (*disk, error) {
	// Volumes are open to all users; what is above them is not.
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of local-path volumes: %w", err)
	}
	// Mount points are compared with the path, which must not go through links then.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("find the directory of local-path volumes: %w", err)
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, fmt.Errorf("open the directory of local-path volumes: %w", err)
	}
	d := &disk{path: real, root: root, mounts: mount.Kernel{}}
	entries, err := d.entries()
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), unfinished); ok && localpath.Valid(name) {
			err = errors.Join(err, root.Remove(e.Name()))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tidy local-path volumes: %w", err), root.Close())
	}
	return d, nil
}

// Close lets go of the directory.
func (d *disk) Close() error { return d.root.Close() }

func (d *disk) entries() ([]fs.DirEntry, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// List returns the volumes' names, sorted.
func (d *disk) List() ([]string, error) {
	entries, err := d.entries()
	if err != nil {
		return nil, fmt.Errorf("list local-path volumes: %w", err)
	}
	var names []string
	for _, e := range entries {
		if localpath.Valid(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Make makes a volume unless it is there. It appears with its mode, durably, or not at all: what
// is there may be in use and is left as it is.
func (d *disk) Make(name string) error {
	if !localpath.Valid(name) {
		return fmt.Errorf("make volume %q: not a volume's name", name)
	}
	if _, err := d.root.Lstat(name); err == nil {
		return nil
	}
	err := d.root.Mkdir(unfinished+name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		// Any user of a pod may write, as with other provisioners; fsGroup narrows it.
		err = d.root.Chmod(unfinished+name, 0o777)
	}
	if err == nil {
		err = d.root.Rename(unfinished+name, name)
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("make volume %s: %w", name, err)
	}
	return nil
}

// Remove takes a volume away with all that it holds, but not what is mounted in it.
func (d *disk) Remove(name string) error {
	return d.gone(name, "remove", d.root.RemoveAll)
}

// Prune takes a volume away that holds nothing; others stay.
func (d *disk) Prune(name string) error {
	return d.gone(name, "remove empty", func(name string) error {
		err := d.root.Remove(name)
		if errors.Is(err, unix.ENOTEMPTY) {
			return nil
		}
		return err
	})
}

func (d *disk) gone(name, what string, do func(string) error) error {
	if !localpath.Valid(name) {
		return fmt.Errorf("%s volume %q: not a volume's name", what, name)
	}
	mounted, err := d.mounts.Under(filepath.Join(d.path, name))
	if err == nil && len(mounted) > 0 {
		err = fmt.Errorf("something is mounted at %s", mounted[0])
	}
	if err == nil {
		err = do(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("%s volume %s: %w", what, name, err)
	}
	return nil
}

// sync makes what happened in the directory last.
func (d *disk) sync() error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
