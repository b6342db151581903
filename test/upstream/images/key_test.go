package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// programsIn writes a file for each program that the catalog names.
func programsIn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, im := range images(dir, pair{}) {
		for _, f := range im.files {
			if f.from != "" {
				if err := os.WriteFile(f.from, []byte(filepath.Base(f.from)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return dir
}

func key(t *testing.T, all []image) string {
	t.Helper()
	k, err := keyOf(all)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The same content elsewhere is the same images; any change of content is not.
func TestKeyFollowsContent(t *testing.T) {
	one, two := programsIn(t), programsIn(t)
	if key(t, images(one, pair{})) != key(t, images(two, pair{})) {
		t.Error("the key depends on where the programs are")
	}
	base := key(t, images(one, pair{}))
	if key(t, images(one, pair{cert: "other"})) == base {
		t.Error("another certificate left the key as it was")
	}
	changed := images(one, pair{})
	changed[0].cmd = []string{"other"}
	if key(t, changed) == base {
		t.Error("another command left the key as it was")
	}
	if err := os.WriteFile(filepath.Join(two, "etcd"), []byte("newer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if key(t, images(two, pair{})) == base {
		t.Error("another program left the key as it was")
	}
}

func TestKeyNamesTheMissingProgram(t *testing.T) {
	dir := programsIn(t)
	if err := os.Remove(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	if _, err := keyOf(images(dir, pair{})); err == nil || !strings.Contains(err.Error(), "registry.k8s.io/etcd") {
		t.Errorf("keyOf: %v, want an error that names the image", err)
	}
}

func TestPairIsKept(t *testing.T) {
	dir := t.TempDir()
	one, err := localhostPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := localhostPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	if one != two || !validForAYear([]byte(one.cert)) {
		t.Error("the cache's pair was not taken again")
	}
	if err := os.WriteFile(filepath.Join(dir, "localhost.crt"), []byte("no certificate"), 0o644); err != nil {
		t.Fatal(err)
	}
	if three, err := localhostPair(dir); err != nil || three == one {
		t.Errorf("a spoilt pair was not replaced: %v", err)
	}
}
