package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Rotator keeps container logs below a size: the log is moved aside, the runtime
// opens a new one, older ones are compressed and in the end removed.
type Rotator struct {
	// MaxSize of a log (10 MiB) and MaxFiles of one container (5), as upstream.
	MaxSize  int64
	MaxFiles int
	// Running lists running containers: id → log path.
	Running func(context.Context) (map[string]string, error)
	// Reopen has the runtime open the container's log anew.
	Reopen func(ctx context.Context, id string) error
	Logger *slog.Logger
}

// Run rotates every 10 s until the context ends.
func (r *Rotator) Run(ctx context.Context) {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.Rotate(ctx)
		}
	}
}

// Rotate looks at all running containers once.
func (r *Rotator) Rotate(ctx context.Context) {
	running, err := r.Running(ctx)
	if err != nil {
		r.Logger.Debug("list containers to rotate logs of", "error", err)
		return
	}
	for id, path := range running {
		fi, err := os.Stat(path)
		if err != nil || fi.Size() < r.MaxSize {
			continue
		}
		if err := r.rotate(ctx, id, path); err != nil {
			r.Logger.Warn("rotate container log", "path", path, "error", err)
		}
	}
}

const stamp = "20060102-150405"

func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return err
	}
	var keep []string
	for _, f := range old {
		if strings.HasSuffix(f, ".tmp") { // a compression that was killed
			_ = os.Remove(f)
			continue
		}
		keep = append(keep, f)
	}
	sort.Strings(keep)
	// The log itself and the one that it becomes make two.
	for len(keep) > max(r.MaxFiles-2, 0) {
		if err := os.Remove(keep[0]); err != nil {
			return err
		}
		keep = keep[1:]
	}
	for _, f := range keep {
		if !strings.HasSuffix(f, ".gz") {
			if err := compress(f); err != nil {
				return fmt.Errorf("compress %s: %w", f, err)
			}
		}
	}
	aside := path + "." + time.Now().Format(stamp)
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	if err := r.Reopen(ctx, id); err != nil {
		// The runtime writes on into the old file: give it its name back.
		return errors.Join(fmt.Errorf("have the runtime reopen the log: %w", err), os.Rename(aside, path))
	}
	return nil
}

func compress(path string) error {
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	err = errors.Join(err, z.Close(), out.Close())
	if err == nil {
		err = os.Rename(tmp, path+".gz")
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Remove(path)
}
