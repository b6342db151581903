package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerdict: a script that did not end, or not well, is an error, whatever it said.
func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		said, out, err string
	}{
		"well":        {"a\nb\n\nexit 0\n", "a\nb\n", ""},
		"silent":      {"\nexit 0\n", "", ""},
		"failed":      {"oh\n\nexit 3\n", "oh\n", "exit status 3"},
		"cut off":     {"exit 0\nmore", "exit 0\nmore", "did not say"},
		"nothing":     {"", "", "did not say"},
		"says exit 0": {"exit 0\n\nexit 1\n", "exit 0\n", "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := verdict([]byte(test.said))
			if out != test.out || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q, %v; want %q, %q", out, err, test.out, test.err)
			}
		})
	}
}

// TestReplace: files of the cache are linked into the machine's root; what replaces them leaves the cache as it is.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("Debian's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(kept, filepath.Join(dir, "root/etc/file")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"etc/file", "new/dir/file"} {
		if err := replace(filepath.Join(dir, "root"), at, []byte("ours"), 0o755); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "root", at)); err != nil || string(b) != "ours" {
			t.Errorf("%s: %q, %v", at, b, err)
		}
	}
	if b, err := os.ReadFile(kept); err != nil || string(b) != "Debian's" {
		t.Errorf("the cache has %q, %v", b, err)
	}
}

// TestMachineFiles: a unit that is enabled is there; what is JSON reads as JSON.
func TestMachineFiles(t *testing.T) {
	for at, target := range machineLinks {
		if target = strings.TrimPrefix(target, "/"); strings.HasPrefix(target, "etc/") && machineTexts[target] == "" {
			t.Errorf("%s: there is no %s", at, target)
		}
	}
	var conflist struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet string }
			}
		}
	}
	if err := json.Unmarshal([]byte(bridgeConflist("10.244.7.0/24")), &conflist); err != nil {
		t.Fatal(err)
	}
	if got := conflist.Plugins[0].IPAM.Ranges[0][0].Subnet; got != "10.244.7.0/24" {
		t.Errorf("subnet %q", got)
	}
	var list map[string]any
	if err := json.Unmarshal([]byte(manifests), &list); err != nil {
		t.Error(err)
	}
}
