package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFreeShare(t *testing.T) {
	free, err := freeShare(t.TempDir())
	if err != nil || free < 0 || free > 1 {
		t.Errorf("got %g, %v", free, err)
	}
	if _, err := freeShare(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that does not exist has a disk")
	}
}

func TestRemoveDataWithoutMount(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("unmounting needs root")
	}
	if err := removeData(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}
