// Command registry serves the images of an OCI layout over plain HTTP, whatever
// registry their names have: tests with the pull policy Always need one. With the names
// of those registries in /etc/hosts and in skiff up --plain-http-registry, pulls come here.
//
//	registry -layout DIR [-listen 127.0.0.1:80]
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	dir := flag.String("layout", "", "directory of the OCI layout")
	listen := flag.String("listen", "127.0.0.1:80", "address to listen on")
	flag.Parse()
	if err := run(*dir, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(dir, listen string) error {
	if dir == "" {
		return errors.New("-layout is required")
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- http.Serve(ln, registry.New(registry.Logger(log.New(io.Discard, "", 0)))) }()
	if err := fill(dir, ln.Addr().String()); err != nil {
		return err
	}
	return <-served
}

// fill pushes every image of the layout under its path and tag.
func fill(dir, host string) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("open layout %s: %w", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("read index of %s: %w", dir, err)
	}
	for _, d := range manifest.Manifests {
		tag, err := name.NewTag(d.Annotations["org.opencontainers.image.ref.name"])
		if err != nil {
			return fmt.Errorf("name of image %s: %w", d.Digest, err)
		}
		here, err := name.NewTag(host+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
		if err != nil {
			return fmt.Errorf("name of image %s: %w", tag, err)
		}
		img, err := index.Image(d.Digest)
		if err != nil {
			return fmt.Errorf("open image %s: %w", tag, err)
		}
		if err := remote.Write(here, img); err != nil {
			return fmt.Errorf("push image %s: %w", tag, err)
		}
		fmt.Println(tag)
	}
	return nil
}
