//go:build kine

package etcd

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

// startKine runs the kine that KINE_BIN names, on a new SQLite database.
func startKine(t *testing.T, dir, address string) *upstream {
	t.Helper()
	bin := os.Getenv("KINE_BIN")
	if bin == "" {
		t.Fatal("KINE_BIN must name a kine: use make -C test/upstream/kine")
	}
	m := &upstream{t: t, url: "http://" + address}
	// It would keep the last 1000 revisions whatever is compacted.
	m.cmd = exec.Command(bin, "--listen-address=tcp://"+address,
		"--endpoint=sqlite://"+filepath.Join(dir, "kine.db")+"?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&cache=shared",
		"--metrics-bind-address=0", "--compact-interval=0", "--compact-min-retain=0")
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.cmd.Stdout, m.cmd.Stderr = t.Output(), t.Output()
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := m.cmd
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
	})
	return m
}

func TestKine(t *testing.T) {
	m := startKine(t, t.TempDir(), freePort(t))
	s := dial(t, ClientConfig{Endpoints: []string{m.url}})
	storetest.Run(t, func(t *testing.T) store.Store { return s }, map[string]string{
		"WatchFuture": "kine ends a watch from a revision that is still to come; the API server opens none",
	})
}

func TestKineSurvivesKills(t *testing.T) {
	dir, address := t.TempDir(), freePort(t)
	m := startKine(t, dir, address)
	s := dial(t, ClientConfig{Endpoints: []string{m.url}})
	w, err := s.Watch(t.Context(), "/kill/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	acknowledged := writeWhile(t, s, "/kill/", func(wrote *atomic.Int64) {
		for range 3 {
			waitFor(t, wrote, wrote.Load()+50)
			m.kill()
			m = startKine(t, dir, address)
		}
		waitFor(t, wrote, wrote.Load()+50)
	})
	checkAll(t, s, w, acknowledged)
}
