package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/skiff-k8s/skiff/store"
)

// TestDataDirOfUpstream: the embedded member's directory is an ordinary etcd's, which
// upstream's server takes over with all history, and which the member takes back.
func TestDataDirOfUpstream(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(s store.Store, who string) (revs []int64) {
		for i := range 20 {
			rev, err := s.Create(t.Context(), fmt.Sprintf("/dir/%s/%d", who, i), []byte(who), 0)
			if err != nil {
				t.Fatal(err)
			}
			revs = append(revs, rev)
		}
		return revs
	}
	check := func(s store.Store, who string, revs []int64) {
		t.Helper()
		for i, rev := range revs {
			kv, _, err := s.Get(t.Context(), fmt.Sprintf("/dir/%s/%d", who, i))
			if err != nil || kv.ModRevision != rev || string(kv.Value) != who {
				t.Errorf("key %d of %s reads as %+v, %v; want revision %d", i, who, kv, err, rev)
			}
		}
		p, err := s.List(t.Context(), "/dir/"+who+"/", store.ListOptions{Revision: revs[4]})
		if err != nil || len(p.KVs) != 5 {
			t.Errorf("at revision %d there are %d keys, %v; want 5", revs[4], len(p.KVs), err)
		}
	}

	s, stop := run(t, Config{DataDir: dir, Name: "node"})
	embedded := write(s, "embedded")
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	m := members(t, 1, nil)[0]
	m.args = []string{"--name=node", "--data-dir=" + dir, "--listen-client-urls=" + m.url, "--advertise-client-urls=" + m.url,
		"--listen-peer-urls=http://" + freePort(t), "--log-level=fatal"}
	m.start()
	c := dial(t, ClientConfig{Endpoints: []string{m.url}})
	check(c, "embedded", embedded)
	external := write(c, "external")
	m.kill()

	s, _ = run(t, Config{DataDir: dir, Name: "node"})
	check(s, "embedded", embedded)
	check(s, "external", external)
	if rev, err := s.Revision(t.Context()); err != nil || rev != external[len(external)-1] {
		t.Errorf("revision %d, %v; want %d", rev, err, external[len(external)-1])
	}
}
