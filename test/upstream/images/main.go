// Command images assembles the container images that the upstream tests name, from
// Debian packages and Go builds, into one OCI layout. Every image is a stand-in: it holds
// what the tests use of the real one, and says so in /etc/skiff-stand-in. Where the layout
// holds already what the same packages, programs and catalog make, nothing is done.
//
//	images -out DIR -programs DIR [-cache DIR] [-suite conformance|critest]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

func main() {
	var out, cache, programs, suite string
	flag.StringVar(&out, "out", "", "directory of the OCI layout to make")
	flag.StringVar(&cache, "cache", "", "directory that keeps the Debian base between runs (default OUT.cache)")
	flag.StringVar(&programs, "programs", "", "directory of the built commands that images hold")
	flag.StringVar(&suite, "suite", "conformance", "whose images: conformance or critest")
	flag.Parse()
	if err := run(out, cache, programs, suite); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(out, cache, programs, suite string) error {
	if out == "" || programs == "" {
		return errors.New("-out and -programs are required")
	}
	if cache == "" {
		cache = out + ".cache"
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	all, err := catalog(suite, cache, programs)
	if err != nil {
		return err
	}
	key, err := keyOf(all)
	if err != nil {
		return err
	}
	if made, err := os.ReadFile(filepath.Join(out, keyFile)); err == nil && string(made) == key {
		return nil
	}
	fmt.Println("assembling test images")
	if err := assemble(out, cache, all); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, keyFile), []byte(key), 0o644); err != nil {
		return fmt.Errorf("note what the layout was made of: %w", err)
	}
	return nil
}

func catalog(suite, cache, programs string) ([]image, error) {
	switch suite {
	case "conformance":
		pair, err := localhostPair(cache)
		if err != nil {
			return nil, err
		}
		return images(programs, pair), nil
	case "critest":
		busybox, err := staticBusybox(cache)
		if err != nil {
			return nil, err
		}
		return criImages(programs, busybox), nil
	}
	return nil, fmt.Errorf("-suite %q is neither conformance nor critest", suite)
}

// assemble replaces the layout once all images are in the new one.
func assemble(out, cache string, all []image) error {
	base, err := debianBase(cache)
	if err != nil {
		return err
	}
	tmp := out + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	dir, err := layout.Write(tmp, empty.Index)
	if err != nil {
		return fmt.Errorf("make layout: %w", err)
	}
	for _, im := range all {
		img, err := build(base, im)
		if err != nil {
			return fmt.Errorf("image %s: %w", im.names[0], err)
		}
		for _, name := range im.names {
			if err := dir.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name})); err != nil {
				return fmt.Errorf("image %s: %w", name, err)
			}
			fmt.Println("  " + name)
		}
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

func build(base v1.Layer, im image) (v1.Image, error) {
	own, err := layerOf(append(im.files, standIn(im)))
	if err != nil {
		return nil, err
	}
	layers := []v1.Layer{own}
	if !im.scratch {
		layers = []v1.Layer{base, own}
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.OS = "amd64", "linux"
	cf.Config = v1.Config{Entrypoint: im.entrypoint, Cmd: im.cmd, User: im.user, StopSignal: im.stopSignal, ExposedPorts: map[string]struct{}{},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	return mutate.ConfigFile(img, cf)
}

func standIn(im image) file {
	return file{path: "etc/skiff-stand-in", text: "A stand-in for " + im.names[0] + ", assembled from Debian packages and Go modules for skiff's tests.\n"}
}
