// Package snapshot keeps unpacked image layers, one directory per chain of
// layers, and stacks them by overlayfs into the root file systems of containers.
//
// A layer's directory is named by its chain ID (OCI image spec, "Layer
// ChainID"): what a layer's tar means can depend on the layers below it, for
// hard links and for directories that it implies. For the lowest layer, the
// one that images share most, the chain ID is the diff ID.
//
// It must not know images, registries or containers.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/containers/record"
)

const layerVersion = 1

// Layer describes an unpacked layer.
type Layer struct {
	record.Header
	ChainID digest.Digest `json:"chainID"`
	DiffID  digest.Digest `json:"diffID"`
	Parent  digest.Digest `json:"parent,omitempty"`
	Size    int64         `json:"size"` // bytes of file content
	Inodes  int64         `json:"inodes"`
}

// Layers is the directory of unpacked layers. It is safe for concurrent use;
// two callers that want the same layer share one unpacking.
type Layers struct {
	root string

	mu   sync.Mutex
	busy map[digest.Digest]chan struct{}
}

// NewLayers opens the directory, removing what an interrupted unpacking left.
func NewLayers(root string) (*Layers, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make layer directory: %w", err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("read layer directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
				return nil, fmt.Errorf("remove unfinished layer: %w", err)
			}
		}
	}
	return &Layers{root: root, busy: map[digest.Digest]chan struct{}{}}, nil
}

// ChainIDs returns the chain ID of every layer of an image, lowest first.
func ChainIDs(diffIDs []digest.Digest) []digest.Digest {
	out := make([]digest.Digest, len(diffIDs))
	for i, d := range diffIDs {
		if i == 0 {
			out[i] = d
			continue
		}
		out[i] = digest.FromString(out[i-1].String() + " " + d.String())
	}
	return out
}

func (l *Layers) dir(chain digest.Digest) string {
	return filepath.Join(l.root, chain.Encoded())
}

// Path is the directory to stack for a layer.
func (l *Layers) Path(chain digest.Digest) string { return filepath.Join(l.dir(chain), "fs") }

// Get returns a layer, or os.ErrNotExist.
func (l *Layers) Get(chain digest.Digest) (*Layer, error) {
	var out Layer
	if err := record.Load(filepath.Join(l.dir(chain), "layer.json"), &out, layerVersion); err != nil {
		return nil, err
	}
	return &out, nil
}

// Ensure returns the layer, unpacking it from open's tar stream if it is not
// there yet. below are the chain IDs beneath, lowest first. The stream must
// have the diff ID's digest, else nothing is kept.
func (l *Layers) Ensure(ctx context.Context, diffID digest.Digest, below []digest.Digest, open func() (io.ReadCloser, error)) (*Layer, error) {
	chain := diffID
	var parent digest.Digest
	if len(below) > 0 {
		parent = below[len(below)-1]
		chain = digest.FromString(parent.String() + " " + diffID.String())
	}
	release, err := l.acquire(ctx, chain)
	if err != nil {
		return nil, err
	}
	defer release()
	if got, err := l.Get(chain); err == nil || !errors.Is(err, os.ErrNotExist) {
		return got, err
	}
	layer := &Layer{Header: record.Header{Version: layerVersion}, ChainID: chain, DiffID: diffID, Parent: parent}
	if err := l.unpack(ctx, layer, below, open); err != nil {
		return nil, fmt.Errorf("unpack layer %s: %w", diffID, err)
	}
	return layer, nil
}

func (l *Layers) acquire(ctx context.Context, chain digest.Digest) (release func(), err error) {
	for {
		l.mu.Lock()
		wait, busy := l.busy[chain]
		if !busy {
			done := make(chan struct{})
			l.busy[chain] = done
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.busy, chain)
				l.mu.Unlock()
				close(done)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *Layers) unpack(ctx context.Context, layer *Layer, below []digest.Digest, open func() (io.ReadCloser, error)) (err error) {
	tmp, err := os.MkdirTemp(l.root, ".unpack-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	if err := os.Chmod(tmp, 0o700); err != nil {
		return err
	}
	fs := filepath.Join(tmp, "fs")
	if err := os.Mkdir(fs, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(fs, 0o755); err != nil { // whatever the umask is
		return err
	}
	in, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	verifier := layer.DiffID.Verifier()
	stream := io.TeeReader(&contextReader{ctx, in}, verifier)
	lower := make([]string, 0, len(below))
	for i := len(below) - 1; i >= 0; i-- { // nearest first
		lower = append(lower, l.Path(below[i]))
	}
	usage, err := extract(stream, fs, lower)
	if err != nil {
		return err
	}
	// Padding after the archive's end counts for the digest as well.
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return fmt.Errorf("read to the end: %w", err)
	}
	if !verifier.Verified() {
		return fmt.Errorf("content does not have digest %s", layer.DiffID)
	}
	layer.Size, layer.Inodes = usage.size, usage.inodes
	if err := record.Save(filepath.Join(tmp, "layer.json"), layer, false); err != nil {
		return err
	}
	// One sync for the whole tree, then the rename that makes it exist.
	if err := syncFS(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, l.dir(layer.ChainID))
}

func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// Remove deletes every layer that keep does not name and that nobody is unpacking.
func (l *Layers) Remove(keep func(chain string) bool) error {
	entries, err := os.ReadDir(l.root)
	if err != nil {
		return fmt.Errorf("read layer directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || keep(e.Name()) {
			continue
		}
		l.mu.Lock()
		_, busy := l.busy[digest.NewDigestFromEncoded(digest.SHA256, e.Name())]
		trash := filepath.Join(l.root, ".trash-"+e.Name())
		if !busy {
			err = os.Rename(filepath.Join(l.root, e.Name()), trash)
		}
		l.mu.Unlock()
		if busy {
			continue
		}
		if err == nil {
			err = os.RemoveAll(trash)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
