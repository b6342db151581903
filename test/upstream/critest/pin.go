package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// pinned is the one image that the suite names by its digest.
const pinned = "gcr.io/k8s-staging-cri-tools/test-image-digest"

// pin puts the digest of the image that stands in for the pinned one into the built suite: no
// other image has the digest that is there. Digests are of one length, and the program's only
// place where the name is.
func pin(images, suite string) error {
	if images == "" || suite == "" {
		return errors.New("-images and -suite are required")
	}
	digest, err := digestOf(images, pinned+":latest")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(suite)
	if err != nil {
		return fmt.Errorf("read the suite: %w", err)
	}
	changed, err := withDigest(program, digest)
	if err != nil {
		return fmt.Errorf("%s: %w", suite, err)
	}
	if bytes.Equal(changed, program) {
		return nil
	}
	if err := os.WriteFile(suite+".new", changed, 0o755); err != nil {
		return err
	}
	return os.Rename(suite+".new", suite)
}

var named = regexp.MustCompile(regexp.QuoteMeta(pinned) + `@(sha256:[0-9a-f]{64})`)

func withDigest(program []byte, digest string) ([]byte, error) {
	places := named.FindAllSubmatchIndex(program, -1)
	if len(places) == 0 {
		return nil, fmt.Errorf("it does not name %s by a digest", pinned)
	}
	out := bytes.Clone(program)
	for _, p := range places {
		if p[3]-p[2] != len(digest) {
			return nil, fmt.Errorf("digest %q is not as long as that of %s", digest, pinned)
		}
		copy(out[p[2]:], digest)
	}
	return out, nil
}

func digestOf(layout, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		return "", fmt.Errorf("read the images: %w", err)
	}
	var index struct {
		Manifests []struct {
			Digest      string            `json:"digest"`
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return "", fmt.Errorf("read the images: %w", err)
	}
	for _, m := range index.Manifests {
		if m.Annotations["org.opencontainers.image.ref.name"] == name {
			return m.Digest, nil
		}
	}
	return "", fmt.Errorf("the layout %s has no %s", layout, name)
}
