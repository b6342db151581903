// Package image keeps images: their configuration and names here, their
// unpacked layers in snapshot. It pulls from registries, loads from files and
// carries the images that are built into skiff.
//
// It must not know containers, sandboxes or CRI.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/snapshot"
)

const imageVersion = 1

// ErrNotFound says that the store has no such image.
var ErrNotFound = errors.New("image not found")

// Image is an image whose layers are unpacked. It is immutable once returned.
type Image struct {
	record.Header
	ID      digest.Digest   `json:"id"`      // digest of the configuration
	Tags    []string        `json:"tags"`    // docker.io/library/busybox:1.36
	Digests []string        `json:"digests"` // docker.io/library/busybox@sha256:…
	DiffIDs []digest.Digest `json:"diffIDs"`
	Size    int64           `json:"size"`
	Inodes  int64           `json:"inodes"`
	Config  json.RawMessage `json:"config"`
	Created time.Time       `json:"created"`

	file v1.ConfigFile
}

// ConfigFile is the parsed configuration; it must not be changed.
func (i *Image) ConfigFile() *v1.ConfigFile { return &i.file }

// Chain is the chain ID of each layer, lowest first.
func (i *Image) Chain() []digest.Digest { return snapshot.ChainIDs(i.DiffIDs) }

// Config configures a Store.
type Config struct {
	Root       string // directory of the store
	Layers     *snapshot.Layers
	Registries Registries
	// Builtin makes an image that skiff carries, or nil for another name.
	Builtin func(tag string) (v1.Image, error)
	Logger  *slog.Logger
}

// Store is safe for concurrent use.
type Store struct {
	cfg     Config
	fetcher *fetcher

	mu     sync.RWMutex
	images map[digest.Digest]*Image
	// pins counts, per chain ID, the pulls under way: their layers belong to
	// no image yet and must not be collected.
	pins map[digest.Digest]int
}

// New opens the store and reads its index.
func New(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, images: map[digest.Digest]*Image{}, pins: map[digest.Digest]int{}}
	for _, dir := range []string{s.indexDir(), s.blobDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make image store: %w", err)
		}
	}
	f, err := newFetcher(s.blobDir(), cfg.Registries)
	if err != nil {
		return nil, err
	}
	s.fetcher = f
	entries, err := os.ReadDir(s.indexDir())
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.indexDir(), e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove unfinished record: %w", err)
			}
			continue
		}
		img, err := s.read(path)
		if err != nil {
			if errors.Is(err, record.ErrNewer) {
				return nil, err
			}
			cfg.Logger.Warn("dropping an image whose record is unusable", "path", path, "err", err)
			continue
		}
		s.images[img.ID] = img
	}
	return s, nil
}

func (s *Store) indexDir() string { return filepath.Join(s.cfg.Root, "index") }
func (s *Store) blobDir() string  { return filepath.Join(s.cfg.Root, "blobs") }

func (s *Store) read(path string) (*Image, error) {
	var img Image
	if err := record.Load(path, &img, imageVersion); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(img.Config, &img.file); err != nil {
		return nil, fmt.Errorf("parse configuration of image %s: %w", img.ID, err)
	}
	for _, c := range img.Chain() {
		if _, err := s.cfg.Layers.Get(c); err != nil {
			return nil, err
		}
	}
	return &img, nil
}

// List returns all images, newest first.
func (s *Store) List() []*Image {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*Image, 0, len(s.images))
	for _, img := range s.images {
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b *Image) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID.String(), b.ID.String())
	})
	return out
}

// Get finds an image by ID, by tag or by digest reference; ErrNotFound if
// there is none.
func (s *Store) Get(ref string) (*Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if img := s.find(ref); img != nil {
		return img, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, ref)
}

func (s *Store) find(ref string) *Image {
	if img, ok := s.images[digest.Digest(ref)]; ok {
		return img
	}
	if img, ok := s.images[digest.NewDigestFromEncoded(digest.SHA256, ref)]; ok {
		return img
	}
	norm, err := Normalize(ref)
	if err != nil {
		return nil
	}
	for _, img := range s.images {
		if slices.Contains(img.Tags, norm) || slices.Contains(img.Digests, norm) {
			return img
		}
	}
	return nil
}

// Normalize writes a reference in full: docker.io/library/busybox:latest.
// A reference with both tag and digest is named by its digest.
func Normalize(ref string) (string, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return display(r.Name()), nil
}

func display(full string) string {
	if rest, ok := strings.CutPrefix(full, name.DefaultRegistry+"/"); ok {
		return "docker.io/" + rest
	}
	return full
}

// put records img, taking its names away from other images.
func (s *Store) put(img *Image) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.images[img.ID]; ok {
		img.Tags = union(old.Tags, img.Tags)
		img.Digests = union(old.Digests, img.Digests)
	}
	for _, other := range s.images {
		if other.ID == img.ID {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(other.Tags), func(t string) bool { return slices.Contains(img.Tags, t) })
		if len(kept) == len(other.Tags) {
			continue
		}
		// Nameless images stay until they are collected: containers may use them.
		changed := *other
		changed.Tags = kept
		if err := s.save(&changed); err != nil {
			return nil, err
		}
	}
	if err := s.save(img); err != nil {
		return nil, err
	}
	return img, nil
}

func (s *Store) save(img *Image) error {
	if err := record.Save(s.path(img.ID), img, true); err != nil {
		return err
	}
	s.images[img.ID] = img
	return nil
}

func (s *Store) path(id digest.Digest) string {
	return filepath.Join(s.indexDir(), id.Encoded()+".json")
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// Remove forgets an image; named by one tag of several, only that tag. An
// unknown image is no error. Layers go with Collect.
func (s *Store) Remove(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	img := s.find(ref)
	if img == nil {
		return nil
	}
	if norm, err := Normalize(ref); err == nil && len(img.Tags) > 1 && slices.Contains(img.Tags, norm) {
		changed := *img
		changed.Tags = slices.DeleteFunc(slices.Clone(img.Tags), func(t string) bool { return t == norm })
		return s.save(&changed)
	}
	if err := os.Remove(s.path(img.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove image %s: %w", img.ID, err)
	}
	delete(s.images, img.ID)
	return nil
}

// Collect deletes layers that no image has and that inUse does not name.
func (s *Store) Collect(inUse []digest.Digest) error {
	keep := map[string]bool{}
	for _, c := range inUse {
		keep[c.Encoded()] = true
	}
	// Held throughout: no pull can begin to rely on a layer meanwhile.
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, img := range s.images {
		for _, c := range img.Chain() {
			keep[c.Encoded()] = true
		}
	}
	for c := range s.pins {
		keep[c.Encoded()] = true
	}
	return s.cfg.Layers.Remove(func(chain string) bool { return keep[chain] })
}

// pin protects layers from Collect until release.
func (s *Store) pin(chain []digest.Digest) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chain {
		s.pins[c]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range chain {
			if s.pins[c]--; s.pins[c] == 0 {
				delete(s.pins, c)
			}
		}
	}
}

// Usage sums the layers of all images, each once.
func (s *Store) Usage() (bytes, inodes uint64) {
	seen := map[digest.Digest]bool{}
	for _, img := range s.List() {
		for _, c := range img.Chain() {
			if seen[c] {
				continue
			}
			seen[c] = true
			if l, err := s.cfg.Layers.Get(c); err == nil {
				bytes += uint64(l.Size)
				inodes += uint64(l.Inodes)
			}
		}
	}
	return bytes, inodes
}

// Ensure returns the named image, making it if it is built in and missing.
func (s *Store) Ensure(ctx context.Context, ref string) (*Image, error) {
	img, err := s.Get(ref)
	if !errors.Is(err, ErrNotFound) || s.cfg.Builtin == nil {
		return img, err
	}
	norm, nerr := Normalize(ref)
	if nerr != nil {
		return nil, nerr
	}
	built, berr := s.cfg.Builtin(norm)
	if berr != nil {
		return nil, berr
	}
	if built == nil {
		return nil, err
	}
	return s.add(ctx, built, []string{norm}, nil, nil)
}
