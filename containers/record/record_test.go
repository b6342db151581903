package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

type thing struct {
	Header
	Name string `json:"name"`
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing.json")
	for _, name := range []string{"a", "b"} {
		if err := Save(path, thing{Header{1}, name}, true); err != nil {
			t.Fatal(err)
		}
		var got thing
		if err := Load(path, &got, 1); err != nil || got.Name != name {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Fatalf("temporary files left: %v, %v", left, err)
	}
}

func TestNewerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing.json")
	if err := Save(path, thing{Header{2}, "x"}, false); err != nil {
		t.Fatal(err)
	}
	var got thing
	if err := Load(path, &got, 1); !errors.Is(err, ErrNewer) {
		t.Fatalf("got %v", err)
	}
	if err := Load(filepath.Join(t.TempDir(), "none"), &got, 1); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}
