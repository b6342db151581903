package etcd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/skiff-k8s/skiff/store"
)

// TestMain lets the test binary stand in for a server process that a test can kill.
func TestMain(m *testing.M) {
	switch os.Getenv("STORE_TEST_CHILD") {
	case "":
		os.Exit(m.Run())
	case "etcd": // upstream's own server
		etcdmain.Main(os.Args)
		os.Exit(0)
	case "write":
		fmt.Println("error", writeForEver(os.Getenv("STORE_TEST_DIR"), 0))
	case "fill":
		// No reserve: etcd itself has to run into the full disk.
		fmt.Println("error", writeForEver(os.Getenv("STORE_TEST_DIR"), 256<<10))
	}
	os.Exit(1)
}

// writeForEver creates keys, telling of each once the store has acknowledged it.
func writeForEver(dir string, size int) error {
	s, err := New(Config{DataDir: dir, ReserveBytes: 1})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for i := 0; ; i++ {
		key := fmt.Sprintf("/key/%d-%d", os.Getpid(), i)
		if _, err := s.Create(ctx, key, make([]byte, size), 0); err != nil {
			return <-done
		}
		fmt.Println("wrote", key)
	}
}

func child(t *testing.T, mode, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_CHILD="+mode, "STORE_TEST_DIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func TestSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []string
	for round := range 3 {
		cmd, out := child(t, "write", dir)
		for n := 0; out.Scan(); {
			key, ok := strings.CutPrefix(out.Text(), "wrote ")
			if !ok {
				t.Fatal(out.Text())
			}
			acknowledged = append(acknowledged, key)
			if n++; n == 50*(round+1) {
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // says that it was killed
	}
	s, _ := run(t, Config{DataDir: dir})
	for _, key := range acknowledged {
		if _, _, err := s.Get(t.Context(), key); err != nil {
			t.Errorf("a write that was acknowledged is lost: %v", err)
		}
	}
}

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, Config{DataDir: dir})
	rev, err := s.Create(t.Context(), "/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), "/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("watch after the end: %v, want ErrClosed", err)
	}
	if _, _, err := s.Get(t.Context(), "/a"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("get after the end: %v, want ErrClosed", err)
	}
	s, _ = run(t, Config{DataDir: dir})
	kv, _, err := s.Get(t.Context(), "/a")
	if err != nil {
		t.Fatal(err)
	}
	if kv.ModRevision != rev || !bytes.Equal(kv.Value, []byte("1")) {
		t.Errorf("after the restart: %+v", kv)
	}
}

func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	run(t, Config{DataDir: dir})
	other, err := New(Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	err = other.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "in use by another process") || !strings.Contains(err.Error(), dir) {
		t.Errorf("second server on one directory: %v", err)
	}
	if _, _, err := other.Get(t.Context(), "/a"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("get from it: %v, want ErrClosed", err)
	}
}

func TestRefusesWritesWhenSpaceIsLow(t *testing.T) {
	free := int64(1 << 40)
	now := time.Now()
	g := &spaceGuard{
		dir: "/data", reserve: 64 << 20,
		now:  func() time.Time { return now },
		free: func(string) (int64, error) { return free, nil },
	}
	if err := g.check(); err != nil {
		t.Error(err)
	}
	free = 10 << 20
	now = now.Add(spaceCheckEvery)
	if err := g.check(); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("with little space: %v, want ErrNoSpace", err)
	}
	free = 1 << 40
	now = now.Add(spaceCheckEvery)
	if err := g.check(); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestQuota(t *testing.T) {
	s, _ := run(t, Config{DataDir: t.TempDir(), QuotaBytes: 2 << 20})
	var err error
	// etcd learns the size of its file when it commits, ten times a second: on a fast disk many
	// writes pass in between.
	for i := 0; i < 2000 && err == nil; i++ {
		_, err = s.Create(t.Context(), fmt.Sprintf("/quota/%d", i), make([]byte, 100<<10), 0)
	}
	if !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("writing beyond the quota: %v, want ErrNoSpace", err)
	}
	kv, _, err := s.Get(t.Context(), "/quota/0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(t.Context(), kv.Key, kv.ModRevision); err != nil {
		t.Errorf("delete when the quota is used up: %v", err)
	}
}

func TestValueTooLarge(t *testing.T) {
	s, _ := run(t, Config{DataDir: t.TempDir()})
	if _, err := s.Create(t.Context(), "/large", make([]byte, 2<<20), 0); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("value of 2 MiB: %v, want ErrTooLarge", err)
	}
}

// TestDiskFull fills a small file system under a server without reserve.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("etcd-test", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	cmd, out := child(t, "fill", dir)
	last := ""
	for out.Scan() {
		last = out.Text()
	}
	_ = cmd.Wait() // exits with 1
	if !strings.HasPrefix(last, "error ") || !strings.Contains(last, store.ErrNoSpace.Error()) || !strings.Contains(last, dir) {
		t.Errorf("the server ended with %q, want an error that says that the disk is full", last)
	}
}
