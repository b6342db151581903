package main

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// written is a layout with one image under two names.
func written(t *testing.T) (dir string, img v1.Image) {
	t.Helper()
	dir = t.TempDir()
	path, err := ocilayout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = random.Image(512, 3); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"registry.k8s.io/e2e-test-images/agnhost:2.55", "registry.k8s.io/pause:3.10.2"} {
		if err := path.AppendImage(img, ocilayout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref})); err != nil {
			t.Fatal(err)
		}
	}
	return dir, img
}

func serve(t *testing.T, dir string) string {
	t.Helper()
	l, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(l)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestPullByTagAndDigest(t *testing.T) {
	dir, img := written(t)
	host := serve(t, dir)
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"/e2e-test-images/agnhost:2.55", "/pause:3.10.2", "/pause@" + want.String()} {
		parsed, err := name.ParseReference(host+ref, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		got, err := remote.Image(parsed)
		if err != nil {
			t.Fatalf("pull %s: %v", ref, err)
		}
		if err := validate.Image(got); err != nil {
			t.Errorf("image %s as pulled: %v", ref, err)
		}
		if d, _ := got.Digest(); d != want {
			t.Errorf("%s is %s, want %s", ref, d, want)
		}
	}
}

func TestUnknownIsNotFound(t *testing.T) {
	dir, _ := written(t)
	host := serve(t, dir)
	for _, ref := range []string{"/pause:3.9", "/e2e-test-images/pause:3.10.2", "/pause@sha256:" + strings.Repeat("0", 64)} {
		parsed, err := name.ParseReference(host+ref, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		_, err = remote.Image(parsed)
		var refused *transport.Error
		if !errors.As(err, &refused) || refused.StatusCode != 404 {
			t.Errorf("pull %s: %v, want 404", ref, err)
		}
	}
}

func TestPushIsRefused(t *testing.T) {
	dir, img := written(t)
	host := serve(t, dir)
	ref, err := name.ParseReference(host+"/pushed:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err == nil {
		t.Error("the registry took an image in")
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct{ index, want string }{
		"no index":  {"", "open layout"},
		"no JSON":   {"{", "read index"},
		"no name":   {`{"manifests":[{"digest":"sha256:1"}]}`, "not host/repository:tag"},
		"name only": {`{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"pause"}}]}`, "not host/repository:tag"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.index != "" {
				if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(test.index), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err := open(dir)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("open: %v, want an error with %q", err, test.want)
			}
		})
	}
}
