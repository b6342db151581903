package etcd

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
)

// resident is how much of the database's map counts as this process's memory, in KiB.
func resident(t *testing.T, dir string) (kib int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours, found := false, false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if head, _, _ := strings.Cut(line, " "); strings.Contains(head, "-") {
			ours = strings.HasSuffix(line, dbPath(dir))
			found = found || ours
		}
		if ours {
			var n int
			if _, err := fmt.Sscanf(line, "Rss: %d kB", &n); err == nil {
				kib += n
			}
		}
	}
	if !found {
		t.Fatal("the database is not mapped")
	}
	return kib
}

func TestDropMap(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, Config{DataDir: dir})
	for i := range 200 {
		if _, err := s.Create(t.Context(), fmt.Sprintf("/a/%d", i), make([]byte, 100<<10), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s, _ = run(t, Config{DataDir: dir}) // maps 20 MB
	before := resident(t, dir)
	if before > 10<<10 {
		t.Errorf("after the start %d KiB of the database are resident", before)
	}
	// Everything can still be read, and is dropped again.
	for i := range 200 {
		if kv, _, err := s.Get(t.Context(), fmt.Sprintf("/a/%d", i)); err != nil || len(kv.Value) != 100<<10 {
			t.Fatalf("key %d: %d bytes, %v", i, len(kv.Value), err)
		}
	}
	read := resident(t, dir)
	if err := dropMap(dir); err != nil {
		t.Fatal(err)
	}
	if dropped := resident(t, dir); dropped >= read/2 {
		t.Errorf("%d KiB resident, %d before dropping", dropped, read)
	}
}
