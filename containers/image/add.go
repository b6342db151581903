package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/snapshot"
)

// opener opens a layer as a plain tar stream.
type opener = func() (io.ReadCloser, error)

// stager brings the blob of a layer, which unpacked is chain, near.
type stager func(ctx context.Context, chain digest.Digest, l v1.Layer) (opener, error)

// add unpacks an image's layers and records it. Before that stage, if given, is called
// for several of them at a time.
func (s *Store) add(ctx context.Context, img v1.Image, tags, digests []string, stage stager) (*Image, error) {
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("parse image configuration: %w", err)
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, fmt.Errorf("read image layers: %w", err)
	}
	if len(layers) != len(file.RootFS.DiffIDs) {
		return nil, fmt.Errorf("image has %d layers and %d diff IDs", len(layers), len(file.RootFS.DiffIDs))
	}
	out := &Image{
		Header: record.Header{Version: imageVersion},
		ID:     digest.FromBytes(raw), Tags: tags, Digests: digests,
		Config: bytes.Clone(raw), Created: time.Now().UTC(), file: *file,
	}
	for _, d := range file.RootFS.DiffIDs {
		id := digest.Digest(d.String())
		if err := id.Validate(); err != nil || id.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("diff ID %q is not a sha256 digest", d)
		}
		out.DiffIDs = append(out.DiffIDs, id)
	}
	chain := snapshot.ChainIDs(out.DiffIDs)
	defer s.pin(chain)()
	if err := s.unpackAll(ctx, out, chain, layers, stage); err != nil {
		return nil, err
	}
	return s.put(out)
}

type staged struct {
	open opener
	err  error
}

func (s *Store) unpackAll(ctx context.Context, out *Image, chain []digest.Digest, layers []v1.Layer, stage stager) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make([]chan staged, len(layers))
	slots := make(chan struct{}, 3) // downloads at a time, per image
	for i, l := range layers {
		ready[i] = make(chan staged, 1)
		if _, err := s.cfg.Layers.Get(chain[i]); err == nil || stage == nil {
			ready[i] <- staged{open: l.Uncompressed}
			continue
		}
		go func() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				ready[i] <- staged{err: ctx.Err()}
				return
			}
			defer func() { <-slots }()
			open, err := stage(ctx, chain[i], l)
			ready[i] <- staged{open, err}
		}()
	}
	p := progressOf(ctx)
	if p == nil {
		p = &progress{} // nobody looks
	}
	p.layers.Add(int64(len(layers)))
	// In order: a layer may refer to what lies beneath it.
	var failed error
	for i := range layers {
		st := <-ready[i]
		if failed != nil {
			continue // only waits for the downloads to end
		}
		if st.err == nil {
			var l *snapshot.Layer
			if l, st.err = s.cfg.Layers.Ensure(ctx, out.DiffIDs[i], chain[:i], p.unpacking(st.open)); st.err == nil {
				p.done.Add(1)
				out.Size += l.Size
				out.Inodes += l.Inodes
			}
		}
		if st.err != nil {
			failed = st.err
			cancel()
		}
	}
	return failed
}

// unpacking counts what is read of a layer.
func (p *progress) unpacking(open opener) opener {
	return func() (io.ReadCloser, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		return &counted{r, &p.unpacked}, nil
	}
}

// decompress tells gzip, zstd and plain tar apart by their first bytes: media
// types are often wrong.
func decompress(r io.ReadCloser) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read layer: %w", err), r.Close())
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read gzip layer: %w", err), r.Close())
		}
		return stacked{z, r}, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read zstd layer: %w", err), r.Close())
		}
		return stacked{z.IOReadCloser(), r}, nil
	}
	return stacked{io.NopCloser(br), r}, nil
}

type stacked struct {
	io.ReadCloser
	under io.Closer
}

func (s stacked) Close() error { return errors.Join(s.ReadCloser.Close(), s.under.Close()) }
