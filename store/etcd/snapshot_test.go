package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/etcd/snapshot"
)

// saved is a snapshot of a member, by its socket.
func saved(t *testing.T, socket string) string {
	t.Helper()
	admin, err := Dial(Access{}, "unix://"+socket)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	from, err := admin.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(t.TempDir(), "snap.db")
	if _, err := snapshot.Save(from, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSnapshotRestore: what is saved comes back as a cluster of one that others join, at
// revisions that nobody has seen, and with nothing to watch before.
func TestSnapshotRestore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, stop := run(t, Config{Name: "m0", DataDir: t.TempDir(), Socket: socket})
	want := map[string]string{}
	for i := range 20 {
		key := fmt.Sprintf("/snap/%d", i)
		want[key] = strings.Repeat(key, 100)
		if _, err := s.Create(t.Context(), key, []byte(want[key]), 0); err != nil {
			t.Fatal(err)
		}
	}
	path := saved(t, socket)
	at, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "/snap/later", nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	info, err := snapshot.Status(path)
	if err != nil || info.Revision != at || !info.Checked || info.Keys < 20 {
		t.Errorf("status is %+v (%v), want revision %d", info, err, at)
	}

	files := newAuthority(t).issue(time.Now().Add(time.Hour))
	dir := filepath.Join(t.TempDir(), "restored")
	q := quorumAt(t, files)
	const bump = 1_000_000
	r := snapshot.Restoration{Snapshot: path, DataDir: dir, Name: "m0", PeerURL: q.peerURL(), Token: "new", BumpRevision: bump}
	if err := snapshot.Restore(r); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Restore(r); err == nil || !strings.Contains(err.Error(), "there is data already") {
		t.Errorf("restoring over data: %v", err)
	}
	restored := launch(t, Config{Name: "m0", DataDir: dir, Quorum: q}).await(t)
	joins := Config{Name: "m1", DataDir: t.TempDir(), Quorum: quorumAt(t, files)}
	joins.Quorum.Join = []string{q.clientURL()}
	for _, v := range []*voter{restored, launch(t, joins).await(t)} {
		page, err := v.List(t.Context(), "/snap/", store.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if page.Count != int64(len(want)) || page.Revision < at+bump {
			t.Errorf("%s has %d keys at revision %d, want %d at %d or more", v.cfg.Name, page.Count, page.Revision, len(want), at+bump)
		}
		for _, kv := range page.KVs {
			if want[kv.Key] != string(kv.Value) {
				t.Errorf("%s: %s has another value", v.cfg.Name, kv.Key)
			}
		}
		w, err := v.Watch(t.Context(), "/snap/", at)
		if err == nil {
			_, err = w.Next(t.Context())
			w.Close()
		}
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("%s: a watch from before: %v, want ErrCompacted", v.cfg.Name, err)
		}
	}
	if _, err := restored.Update(t.Context(), "/snap/0", []byte("new"), func() int64 {
		kv, _, err := restored.Get(t.Context(), "/snap/0")
		if err != nil {
			t.Fatal(err)
		}
		return kv.ModRevision
	}(), 0); err != nil {
		t.Error(err)
	}
}

// TestSnapshotUpstream: etcd's own tools read ours, and ours restores theirs. The programs are
// named by ETCDCTL_BIN and ETCDUTL_BIN.
func TestSnapshotUpstream(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, _ := run(t, Config{Name: "m0", DataDir: t.TempDir(), Socket: socket})
	if _, err := s.Create(t.Context(), "/a", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	t.Run("etcdctl", func(t *testing.T) {
		bin := os.Getenv("ETCDCTL_BIN")
		if bin == "" {
			t.Skip("ETCDCTL_BIN is not set")
		}
		path := filepath.Join(t.TempDir(), "theirs.db")
		if out, err := exec.Command(bin, "--endpoints=unix://"+socket, "snapshot", "save", path).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if info, err := snapshot.Status(path); err != nil || !info.Checked {
			t.Errorf("status: %+v, %v", info, err)
		}
		dir := filepath.Join(t.TempDir(), "restored")
		if err := snapshot.Restore(snapshot.Restoration{Snapshot: path, DataDir: dir, Name: "m0", PeerURL: AlonePeerURL, Token: "t"}); err != nil {
			t.Fatal(err)
		}
		r, _ := run(t, Config{Name: "m0", DataDir: dir})
		if kv, _, err := r.Get(t.Context(), "/a"); err != nil || string(kv.Value) != "x" {
			t.Errorf("restored: %q, %v", kv.Value, err)
		}
	})
	t.Run("etcdutl", func(t *testing.T) {
		bin := os.Getenv("ETCDUTL_BIN")
		if bin == "" {
			t.Skip("ETCDUTL_BIN is not set")
		}
		path := saved(t, socket)
		info, err := snapshot.Status(path)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(bin, "snapshot", "status", path, "-w", "fields").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{fmt.Sprintf("\"Hash\" : %d\n", info.Hash), fmt.Sprintf("\"Revision\" : %d\n", info.Revision), fmt.Sprintf("\"Keys\" : %d\n", info.Keys)} {
			if !bytes.Contains(out, []byte(want)) {
				t.Errorf("etcdutl says\n%s, want %q", out, want)
			}
		}
	})
}

// TestSnapshotDamaged: whatever is wrong with a file is found before anything is made of it.
func TestSnapshotDamaged(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	run(t, Config{Name: "m0", DataDir: t.TempDir(), Socket: socket})
	good, err := os.ReadFile(saved(t, socket))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for _, c := range []struct {
		name, want string
		text       []byte
	}{
		{"flipped", "damaged", flipped},
		{"cut", "", good[:len(good)/2]},
		{"empty", "", nil},
		{"text", "", []byte(strings.Repeat("no database ", 1000))},
		{"no hash", "no hash behind", good[:len(good)-32]},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, dir := filepath.Join(t.TempDir(), "f"), filepath.Join(t.TempDir(), "d")
			if err := os.WriteFile(path, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
			err := snapshot.Restore(snapshot.Restoration{Snapshot: path, DataDir: dir, Name: "m", PeerURL: AlonePeerURL})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			for _, left := range []string{dir, dir + ".part"} {
				if _, err := os.Stat(left); err == nil {
					t.Errorf("%s is left", left)
				}
			}
		})
	}
	if _, err := snapshot.Save(bytes.NewReader(good[:len(good)-1]), filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("half a snapshot was saved")
	}
}
