package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// HelloRepository names the built-in images: a tiny web server, in two
// versions so that roll-outs can be tried without a registry.
const HelloRepository = "skiff.local/hello"

// HelloTags are the versions there are.
var HelloTags = []string{"v1", "v2"}

// HelloImage assembles the built-in image of that full name from the server's
// program; nil for any other name. The same program gives the same digests.
func HelloImage(ref string, program func() ([]byte, error)) (v1.Image, error) {
	version, ok := strings.CutPrefix(ref, HelloRepository+":")
	if !ok {
		return nil, nil
	}
	known := false
	for _, t := range HelloTags {
		known = known || t == version
	}
	if !known {
		return nil, fmt.Errorf("%w: %s; built in are %s:%s", ErrNotFound, ref, HelloRepository, strings.Join(HelloTags, ", :"))
	}
	bin, err := program()
	if err != nil {
		return nil, err
	}
	archive, err := helloArchive(bin)
	if err != nil {
		return nil, fmt.Errorf("assemble %s: %w", ref, err)
	}
	// Uncompressed: it never travels, and compressing would cost every first start.
	layer := static.NewLayer(archive, types.OCIUncompressedLayer)
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("assemble %s: %w", ref, err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("assemble %s: %w", ref, err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	cfg.Config = v1.Config{
		Entrypoint:   []string{"/hello"},
		Env:          []string{"PATH=/", "HELLO_VERSION=" + version, "PORT=8080"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		User:         "65532:65532",
		WorkingDir:   "/",
		Labels:       map[string]string{"org.opencontainers.image.title": "hello", "org.opencontainers.image.version": version},
	}
	return mutate.ConfigFile(img, cfg)
}

func helloArchive(program []byte) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(len(program) + 16<<10)
	w := tar.NewWriter(&buf)
	epoch := time.Unix(0, 0)
	add := func(name string, mode int64, content []byte, kind byte) error {
		h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: kind, ModTime: epoch}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	for _, f := range []struct {
		name    string
		mode    int64
		content []byte
		kind    byte
	}{
		{"etc/", 0o755, nil, tar.TypeDir},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nhello:x:65532:65532:hello:/:/sbin/nologin\n"), tar.TypeReg},
		{"etc/group", 0o644, []byte("root:x:0:\nhello:x:65532:\n"), tar.TypeReg},
		{"tmp/", 0o1777, nil, tar.TypeDir},
		{"hello", 0o755, program, tar.TypeReg},
	} {
		if err := add(f.name, f.mode, f.content, f.kind); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
