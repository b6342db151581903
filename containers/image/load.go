package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// annotations by which layouts name their images: the OCI image spec's own,
// and containerd's, which has the full reference.
const (
	refNameAnnotation        = "org.opencontainers.image.ref.name"
	containerdNameAnnotation = "io.containerd.image.name"
)

// Load reads images from a directory in OCI layout, a tar of one, or a tar
// as `docker save` writes it, and returns their names, or IDs where they have none.
func (s *Store) Load(ctx context.Context, path string) ([]string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	if st.IsDir() {
		return s.loadLayout(ctx, path)
	}
	kind, err := archiveKind(path)
	if err != nil {
		return nil, fmt.Errorf("load images from %s: %w", path, err)
	}
	if kind == "manifest.json" {
		return s.loadTarball(ctx, path)
	}
	dir, err := os.MkdirTemp(s.cfg.Root, ".layout-*")
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := untarLayout(path, dir); err != nil {
		return nil, fmt.Errorf("load images from %s: %w", path, err)
	}
	return s.loadLayout(ctx, dir)
}

// archiveKind looks which index the tar has; Docker's, if it has both.
func archiveKind(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	tr := tar.NewReader(f)
	kind := ""
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("not a tar archive: %w", err)
		}
		switch filepath.Clean(h.Name) {
		case "manifest.json":
			return "manifest.json", nil
		case "index.json":
			kind = "index.json"
		}
	}
	if kind == "" {
		return "", errors.New("neither manifest.json (docker save) nor index.json (OCI layout) is in it")
	}
	return kind, nil
}

func (s *Store) loadTarball(ctx context.Context, path string) ([]string, error) {
	opener := func() (io.ReadCloser, error) { return os.Open(path) }
	manifest, err := tarball.LoadManifest(opener)
	if err != nil {
		return nil, fmt.Errorf("load images from %s: %w", path, err)
	}
	var loaded []string
	for i, m := range manifest {
		// The library picks an image by tag; one without needs to be alone.
		var tag *name.Tag
		if len(m.RepoTags) > 0 {
			t, err := name.NewTag(m.RepoTags[0])
			if err != nil {
				return loaded, fmt.Errorf("image %d in %s: %w", i, path, err)
			}
			tag = &t
		}
		img, err := tarball.Image(opener, tag)
		if err != nil {
			return loaded, fmt.Errorf("image %d in %s: %w", i, path, err)
		}
		var tags []string
		for _, t := range m.RepoTags {
			full, err := Normalize(t)
			if err != nil {
				return loaded, err
			}
			tags = append(tags, full)
		}
		got, err := s.add(ctx, img, tags, nil, nil)
		if err != nil {
			return loaded, fmt.Errorf("image %d in %s: %w", i, path, err)
		}
		loaded = append(loaded, names(got, tags)...)
	}
	return loaded, nil
}

func (s *Store) loadLayout(ctx context.Context, dir string) ([]string, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("load images from %s: not an OCI layout: %w", dir, err)
	}
	return s.loadIndex(ctx, index, "")
}

// loadIndex loads every named image; of an index within, the one for this machine.
func (s *Store) loadIndex(ctx context.Context, index v1.ImageIndex, inherited string) ([]string, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	var loaded []string
	for _, d := range m.Manifests {
		ref := inherited
		for _, key := range []string{refNameAnnotation, containerdNameAnnotation} {
			if v := d.Annotations[key]; v != "" {
				ref = v
			}
		}
		switch {
		case d.MediaType.IsIndex():
			child, err := index.ImageIndex(d.Digest)
			if err != nil {
				return loaded, fmt.Errorf("read image index %s: %w", d.Digest, err)
			}
			got, err := s.loadIndex(ctx, child, ref)
			loaded = append(loaded, got...)
			if err != nil {
				return loaded, err
			}
		case d.MediaType.IsImage():
			if p := d.Platform; p != nil && p.OS != "" && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
				continue
			}
			img, err := index.Image(d.Digest)
			if err != nil {
				return loaded, fmt.Errorf("read image %s: %w", d.Digest, err)
			}
			var tags, digests []string
			if ref != "" {
				full, err := Normalize(ref)
				if err != nil {
					return loaded, err
				}
				tags = []string{full}
				if repo, _, ok := strings.Cut(full, "@"); ok {
					tags, digests = nil, []string{repo + "@" + d.Digest.String()}
				}
			}
			got, err := s.add(ctx, img, tags, digests, nil)
			if err != nil {
				return loaded, fmt.Errorf("image %s: %w", d.Digest, err)
			}
			loaded = append(loaded, names(got, tags)...)
		}
	}
	if len(loaded) == 0 && inherited == "" {
		return nil, fmt.Errorf("the layout has no image for linux/%s", runtime.GOARCH)
	}
	return loaded, nil
}

func names(img *Image, tags []string) []string {
	if len(tags) == 0 {
		return []string{img.ID.String()}
	}
	return tags
}

// untarLayout writes the regular files of a layout's tar beneath dir.
func untarLayout(path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		name := filepath.Clean(h.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, tr)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
}
