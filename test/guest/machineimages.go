package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	imagestore "github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
)

const (
	helloImage = imagestore.HelloRepository + ":v1"
	shellImage = "skiff.local/shell:v1"
	pauseImage = "skiff.local/pause:v1"
)

// writeImages makes the archive of all images that the machine's pods need: it has no registry to pull from.
func writeImages(path string) error {
	hello, err := imagestore.HelloImage(helloImage, oci.Hello.Read)
	if err != nil {
		return err
	}
	shell, err := busybox("/bin/sh")
	if err != nil {
		return err
	}
	pause, err := busybox("/bin/sh", "-c", "while :; do sleep 1000; done")
	if err != nil {
		return err
	}
	images := map[name.Tag]v1.Image{}
	for ref, img := range map[string]v1.Image{helloImage: hello, shellImage: shell, pauseImage: pause} {
		tag, err := name.NewTag(ref)
		if err != nil {
			return err
		}
		images[tag] = img
	}
	return tarball.MultiWriteToFile(path, images)
}

// busybox is an image of Debian's busybox-static.
func busybox(entrypoint ...string) (v1.Image, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	headers := []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
	}
	for _, applet := range []string{"sh", "cat", "sleep", "id", "nc", "hostname"} {
		headers = append(headers, &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
	}
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(program); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Entrypoint: entrypoint, Env: []string{"PATH=/bin"}}
	return mutate.ConfigFile(img, file)
}
