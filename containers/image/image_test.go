package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/skiff-k8s/skiff/containers/snapshot"
)

func newStore(t *testing.T, root string, reg Registries) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: unpacks layers with their owners")
	}
	l, err := snapshot.NewLayers(filepath.Join(root, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		Root: filepath.Join(root, "images"), Layers: l, Registries: reg, Logger: slog.New(slog.DiscardHandler),
		Builtin: func(ref string) (v1.Image, error) {
			return HelloImage(ref, func() ([]byte, error) { return []byte("#!/hello"), nil })
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func layerTar(t *testing.T, name, content string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func layer(t *testing.T, name, content string) v1.Layer {
	t.Helper()
	b := layerTar(t, name, content)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testImage(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Config(img, v1.Config{User: "1234:5", Cmd: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// counting counts the blobs that are asked for.
type counting struct {
	http.Handler
	blobs atomic.Int64
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
		c.blobs.Add(1)
	}
	c.Handler.ServeHTTP(w, r)
}

func newRegistry(t *testing.T) (*counting, string) {
	t.Helper()
	c := &counting{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	return c, strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	img := testImage(t, layer(t, "f", "x"))
	dir := t.TempDir()
	tag, err := name.NewTag("example.com/app:1")
	if err != nil {
		t.Fatal(err)
	}
	docker := filepath.Join(dir, "docker.tar")
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(dir, "oci")
	p, err := layout.Write(oci, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "example.com/app:1"})); err != nil {
		t.Fatal(err)
	}
	ociTar := filepath.Join(dir, "oci.tar")
	f, err := os.Create(ociTar)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(oci)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{docker, oci, ociTar} {
		s := newStore(t, t.TempDir(), Registries{})
		ctx, at := Follow(context.Background())
		names, err := s.Load(ctx, path)
		if err != nil || len(names) != 1 || names[0] != "example.com/app:1" {
			t.Errorf("%s: %v, %v", path, names, err)
			continue
		}
		if p := at(); p.Bytes == 0 || p.Layers == 0 || p.Done != p.Layers {
			t.Errorf("%s: loaded, it is at %+v", path, p)
		}
		if got, err := s.Get("example.com/app:1"); err != nil || got.ID.String() != want.String() {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	s := newStore(t, t.TempDir(), Registries{})
	for _, path := range []string{garbage, filepath.Join(dir, "none"), dir} {
		if names, err := s.Load(context.Background(), path); err == nil {
			t.Errorf("%s: loaded %v", path, names)
		}
	}
}

func TestHello(t *testing.T) {
	s := newStore(t, t.TempDir(), Registries{})
	one, err := s.Pull(context.Background(), "skiff.local/hello:v1", Auth{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Ensure(context.Background(), "skiff.local/hello:v2")
	if err != nil {
		t.Fatal(err)
	}
	if one.ID == two.ID || one.DiffIDs[0] != two.DiffIDs[0] {
		t.Errorf("%v %v", one, two)
	}
}

func TestTagMoves(t *testing.T) {
	_, host := newRegistry(t)
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
	ref := host + "/app:latest"
	push(t, ref, testImage(t, layer(t, "f", "old")))
	old, err := s.Pull(context.Background(), ref, Auth{})
	if err != nil {
		t.Fatal(err)
	}
	push(t, ref, testImage(t, layer(t, "f", "new")))
	now, err := s.Pull(context.Background(), ref, Auth{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(ref); err != nil || got.ID != now.ID {
		t.Errorf("the tag names %v, %v", got, err)
	}
	if got, err := s.Get(old.ID.String()); err != nil || len(got.Tags) != 0 {
		t.Errorf("the old image: %v, %v", got, err)
	}
}
