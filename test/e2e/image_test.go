package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// busybox is Debian's busybox-static, which .ci/host installs.
const busybox = "/bin/busybox"

// shellImage holds busybox and links for its applets.
func shellImage(t testing.TB) v1.Image {
	t.Helper()
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatalf("busybox-static is not installed (.ci/host does): %v", err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	entry := func(h *tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	entry(&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	entry(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	entry(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, applet := range []string{"sh", "cat", "echo", "sleep", "nc", "nslookup", "printf", "tty", "ls", "id", "true", "false"} {
		entry(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Config(img, v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"/bin/sh"}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// loadShell loads the shell image through the command line.
func (c *cluster) loadShell(t testing.TB) {
	t.Helper()
	tag, err := name.NewTag("test.local/shell:v1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shell.tar")
	if err := tarball.WriteToFile(path, tag, shellImage(t)); err != nil {
		t.Fatal(err)
	}
	out, err := run(c.skiff, "image", "load", "--data-dir", c.dir, path)
	if err != nil || !strings.Contains(out, "test.local/shell:v1") {
		t.Fatalf("image load: %v\n%s", err, out)
	}
}

// images are those that image ls shows.
func (c *cluster) images(t testing.TB) string {
	t.Helper()
	out, err := run(c.skiff, "image", "ls", "--data-dir", c.dir)
	if err != nil {
		t.Fatalf("image ls: %v", err)
	}
	return out
}

func TestImages(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	c := upWith(t, "--plain-http-registry", host)
	if out := c.images(t); !strings.Contains(out, "skiff.local/hello:v1") {
		t.Errorf("the built-in image is missing:\n%s", out)
	}
	ref := host + "/tools/shell:v1"
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, shellImage(t)); err != nil {
		t.Fatal(err)
	}
	c.k(t, "run", "pulled", "--image="+ref, "--restart=Never", "--command", "--", "/bin/sh", "-c", "echo pulled")
	c.k(t, "wait", "pod/pulled", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
	if out := c.k(t, "logs", "pulled"); out != "pulled\n" {
		t.Errorf("the pulled image says %q", out)
	}
	c.k(t, "run", "missing", "--image="+host+"/no/such:image", "--restart=Never")
	c.k(t, "wait", "pod/missing", "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff", "--timeout=180s")
	c.k(t, "delete", "pod", "pulled", "missing", "--timeout=180s")

	c.loadShell(t)
	if out, err := run(c.skiff, "image", "rm", "--data-dir", c.dir, "test.local/shell:v1"); err != nil {
		t.Errorf("image rm: %v\n%s", err, out)
	}
	if out := c.images(t); strings.Contains(out, "test.local/shell") {
		t.Errorf("still listed:\n%s", out)
	}
	for _, bad := range [][]string{{"rm", "no.such/image:v1"}, {"load", "/no/such/file.tar"}, {"load", os.Args[0]}} {
		_, err := run(c.skiff, append([]string{"image", bad[0], "--data-dir", c.dir}, bad[1:]...)...)
		if err == nil || !strings.Contains(err.Error(), bad[1]) {
			t.Errorf("image %v: %v, want an error that names it", bad, err)
		}
	}
}
