package outcome

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	one  = "[sig-a] one"
	two  = "[sig-b] two"
	gone = "[sig-b] gone"
)

func TestCauses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "causes.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("# why\n" + two + "\n\n\tIt wants two nodes.\n" + one + "\n  flaky\n" + gone + "\n  was so\n")
	causes, err := ReadCauses(path)
	if err != nil || len(causes) != 3 || causes[two] != "It wants two nodes." {
		t.Errorf("got %q, %v", causes, err)
	}
	got := strings.Join(kept().Stale(causes), "\n")
	if !strings.Contains(got, one+" passes") || !strings.Contains(got, gone+" is no test of this suite") || strings.Contains(got, two) {
		t.Errorf("stale: %s", got)
	}
	for name, text := range map[string]string{
		"no cause":         one + "\n",
		"no cause between": one + "\n" + two + "\n  why\n",
		"no test":          "  why\n",
		"two causes":       one + "\n  why\n  and\n",
		"twice":            one + "\n  why\n" + one + "\n  why\n",
	} {
		write(text)
		if causes, err := ReadCauses(path); err == nil || !strings.Contains(err.Error(), "causes.txt") {
			t.Errorf("%s: read as %q, %v", name, causes, err)
		}
	}
}
