package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

func TestPull(t *testing.T) {
	_, host := newRegistry(t)
	root := t.TempDir()
	s := newStore(t, root, Registries{PlainHTTP: []string{host}})
	img := testImage(t, layer(t, "a", "one"), layer(t, "b", "two"))
	ref := host + "/some/app:v1"
	push(t, ref, img)
	got, err := s.Pull(context.Background(), ref, Auth{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	byDigest := host + "/some/app@" + d.String()
	if got.ID.String() != want.String() || got.Tags[0] != ref || got.Digests[0] != byDigest || got.Size != 6 {
		t.Errorf("got %+v", got)
	}
	// After a restart it is found by each of its names.
	s = newStore(t, root, Registries{})
	for _, n := range []string{ref, byDigest, got.ID.String(), got.ID.Encoded()} {
		if again, err := s.Get(n); err != nil || again.ID != got.ID {
			t.Errorf("%s: %v", n, err)
		}
	}
	blobs, err := os.ReadDir(s.blobDir())
	if err != nil || len(blobs) != 0 {
		t.Errorf("blobs left: %v %v", blobs, err)
	}
	if err := s.Remove(got.ID.String()); err != nil {
		t.Fatal(err)
	}
	if err := s.Collect(got.Chain()[:1]); err != nil { // a container has the first
		t.Fatal(err)
	}
	if _, err := s.Get(ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("still there: %v", err)
	}
	if _, err := s.cfg.Layers.Get(got.Chain()[0]); err != nil {
		t.Errorf("a layer in use is gone: %v", err)
	}
	if _, err := s.cfg.Layers.Get(got.Chain()[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a layer of no use is there: %v", err)
	}
}

func TestPullShares(t *testing.T) {
	c, host := newRegistry(t)
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
	shared := layer(t, "a", "shared")
	push(t, host+"/one:x", testImage(t, shared, layer(t, "b", "1")))
	push(t, host+"/two:x", testImage(t, shared, layer(t, "b", "2")))
	c.blobs.Store(0)
	var wg sync.WaitGroup
	for _, ref := range []string{"/one:x", "/two:x", "/one:x", "/two:x"} {
		wg.Go(func() {
			if _, err := s.Pull(context.Background(), host+ref, Auth{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := s.Pull(context.Background(), host+"/one:x", Auth{}); err != nil {
		t.Fatal(err)
	}
	// Three layers, and a configuration for each of five pulls.
	if n := c.blobs.Load(); n > 3+5 {
		t.Errorf("%d blobs were fetched", n)
	}
}

// A blob is there until the last pull that needs it has unpacked it: the layer may have
// another place in another image.
func TestPullsOfOneBlobAtOnce(t *testing.T) {
	_, host := newRegistry(t)
	shared, other := layer(t, "a", "shared"), layer(t, "b", "other")
	push(t, host+"/first:x", testImage(t, shared, other))
	push(t, host+"/second:x", testImage(t, other, shared))
	for range 20 {
		s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
		var wg sync.WaitGroup
		for _, ref := range []string{"/first:x", "/second:x", "/first:x", "/second:x"} {
			wg.Go(func() {
				if _, err := s.Pull(context.Background(), host+ref, Auth{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if blobs, err := os.ReadDir(s.blobDir()); err != nil || len(blobs) != 0 || len(s.fetcher.users) != 0 {
			t.Fatalf("left: %v, %v, %v", blobs, s.fetcher.users, err)
		}
	}
}

func TestPullEncodings(t *testing.T) {
	_, host := newRegistry(t)
	plain := layerTar(t, "f", "content")
	var gz, zs bytes.Buffer
	gw := gzip.NewWriter(&gz)
	zw, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{gw, zw} {
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, tt := range []struct {
		content  []byte
		layer    types.MediaType
		manifest types.MediaType
		config   types.MediaType
	}{
		{plain, types.OCIUncompressedLayer, types.OCIManifestSchema1, types.OCIConfigJSON},
		{gz.Bytes(), types.OCILayer, types.OCIManifestSchema1, types.OCIConfigJSON},
		{zs.Bytes(), types.OCILayerZStd, types.OCIManifestSchema1, types.OCIConfigJSON},
		{gz.Bytes(), types.DockerLayer, types.DockerManifestSchema2, types.DockerConfigJSON},
	} {
		t.Run(string(tt.layer), func(t *testing.T) {
			s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
			img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, tt.manifest), tt.config), mutate.Addendum{
				Layer: withDiffID{static.NewLayer(tt.content, tt.layer), digest.FromBytes(plain)}, MediaType: tt.layer,
			})
			if err != nil {
				t.Fatal(err)
			}
			ref := host + "/enc:" + string(rune('a'+i))
			push(t, ref, img)
			got, err := s.Pull(context.Background(), ref, Auth{})
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(s.cfg.Layers.Path(got.Chain()[0]), "f"))
			if err != nil || string(b) != "content" {
				t.Errorf("%q %v", b, err)
			}
		})
	}
}

// withDiffID is a layer whose content is compressed already.
type withDiffID struct {
	v1.Layer
	diffID digest.Digest
}

func (w withDiffID) DiffID() (v1.Hash, error) { return v1.NewHash(w.diffID.String()) }

func TestPullOfThisMachinesImage(t *testing.T) {
	_, host := newRegistry(t)
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
	mine, other := testImage(t, layer(t, "f", "mine")), testImage(t, layer(t, "f", "other"))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	ref, err := name.ParseReference(host+"/multi:x", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	got, err := s.Pull(context.Background(), ref.Name(), Auth{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := mine.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got.ID.String() != want.String() || !strings.HasSuffix(got.Digests[0], d.String()) {
		t.Errorf("got %+v", got)
	}
}

func TestPullErrors(t *testing.T) {
	_, host := newRegistry(t)
	ctx := context.Background()
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{host}})
	if _, err := s.Pull(ctx, host+"/none:x", Auth{}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no such image: %v", err)
	}
	if _, err := s.Pull(ctx, "Not A Reference", Auth{}); err == nil {
		t.Error("a broken reference was taken")
	}
	if _, err := s.Pull(ctx, "skiff.local/hello:v9", Auth{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such built-in: %v", err)
	}
	// Plain HTTP only where it is named.
	push(t, host+"/app:x", testImage(t, layer(t, "f", "x")))
	s = newStore(t, t.TempDir(), Registries{})
	if _, err := s.Pull(ctx, host+"/app:x", Auth{}); err == nil || !strings.Contains(err.Error(), "plain HTTP") {
		t.Errorf("plain HTTP to a host not named: %v", err)
	}
	if n := len(s.List()); n != 0 {
		t.Errorf("%d images", n)
	}
}

func TestMirrorsAndAuthOverHTTPS(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != "bob" || p != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer srv.Close()
	plain := httptest.NewServer(inner)
	defer plain.Close()
	push(t, strings.TrimPrefix(plain.URL, "http://")+"/library/app:x", testImage(t, layer(t, "f", "x")))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := x509.ParseCertificate(srv.Certificate().Raw); err != nil {
		t.Fatal(err)
	}
	reg := Registries{CAFile: ca, Mirrors: map[string][]string{"docker.io": {srv.URL}}}
	s := newStore(t, t.TempDir(), reg)
	if _, err := s.Pull(context.Background(), "app:x", Auth{Username: "bob", Password: "secret"}); err == nil {
		t.Error("a mirror got the credentials of the registry")
	}
	reg.Auth = map[string]Auth{strings.TrimPrefix(srv.URL, "https://"): {Username: "bob", Password: "secret"}}
	s = newStore(t, t.TempDir(), reg)
	got, err := s.Pull(context.Background(), "app:x", Auth{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Tags[0] != "docker.io/library/app:x" {
		t.Errorf("got %+v", got)
	}
	host := strings.TrimPrefix(srv.URL, "https://")
	s = newStore(t, t.TempDir(), Registries{CAFile: ca})
	if _, err := s.Pull(context.Background(), host+"/library/app:x", Auth{}); err == nil {
		t.Error("pulled without credentials")
	}
}
