package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// file is one entry of a layer: a text, a copy of from, a link or a directory.
type file struct {
	path, text, from, link string
	dir                    bool
	mode                   int64
}

// layerOf makes a layer whose bytes depend on nothing but its files.
func layerOf(files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	for _, f := range files {
		if err := parents(w, made, path.Dir(f.path)); err != nil {
			return nil, err
		}
		if err := entry(w, f); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}

func parents(w *tar.Writer, made map[string]bool, dir string) error {
	if dir == "." || dir == "/" || made[dir] {
		return nil
	}
	if err := parents(w, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	return entry(w, file{path: dir, dir: true, mode: 0o755})
}

func entry(w *tar.Writer, f file) error {
	h := &tar.Header{Name: f.path, Mode: f.mode, ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}
	body := []byte(f.text)
	switch {
	case f.dir:
		h.Typeflag, h.Name = tar.TypeDir, f.path+"/"
	case f.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
	case f.from != "":
		var err error
		if body, err = os.ReadFile(f.from); err != nil {
			return err
		}
	}
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	if h.Typeflag == tar.TypeReg {
		h.Size = int64(len(body))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := w.Write(body)
	return err
}
