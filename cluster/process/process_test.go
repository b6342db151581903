package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// TestMain lets the test binary play the process.
func TestMain(m *testing.M) {
	if lock := os.Getenv("SKIFF_TEST_LOCK"); lock != "" {
		f, err := Lock(lock)
		if err != nil {
			println(err.Error())
			os.Exit(3)
		}
		for {
			_ = syscall.Pause() // until killed; the runtime's own signals end a pause
			runtime.KeepAlive(f)
		}
	}
	os.Exit(m.Run())
}

func start(t *testing.T, lock, log string) *Child {
	t.Helper()
	t.Setenv("SKIFF_TEST_LOCK", lock)
	c, err := Start([]string{os.Args[0]}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(c.PID, syscall.SIGKILL) })
	return c
}

func waitLocked(t *testing.T, lock string) {
	t.Helper()
	for range 1000 {
		if pid, err := Running(lock); err == nil && pid != 0 {
			return
		}
		time.Sleep(5 * time.Millisecond) // the lock is another process's: nothing to wait on
	}
	t.Fatal("never locked")
}

func TestLockLivesAndDiesWithItsProcess(t *testing.T) {
	lock, log := filepath.Join(t.TempDir(), "a.lock"), filepath.Join(t.TempDir(), "a.log")
	if pid, err := Running(lock); pid != 0 || err != nil {
		t.Fatalf("nothing runs, got %d, %v", pid, err)
	}
	c := start(t, lock, log)
	waitLocked(t, lock)
	if pid, _ := Running(lock); pid != c.PID {
		t.Fatalf("pid %d holds the lock, want %d", pid, c.PID)
	}
	second := start(t, lock, log)
	if err := second.Failure(); err == nil || !strings.Contains(err.Error(), ErrRunning.Error()) {
		t.Fatalf("a second process said %v", err)
	}
	if _, err := Lock(lock); !errors.Is(err, ErrRunning) {
		t.Fatalf("Lock: %v, want ErrRunning", err)
	}
	if err := Stop(t.Context(), lock, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	<-c.Done
	if err := Stop(t.Context(), lock, time.Second); err != nil {
		t.Fatalf("stopping what does not run: %v", err)
	}
	f, err := Lock(lock)
	if err != nil {
		t.Fatalf("lock of a dead process: %v", err)
	}
	f.Close()
}

// Whoever looks holds the lock for a moment, and must not make a start fail.
func TestLockBesideOnlookers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := Running(path); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 50 {
		l, err := Lock(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make namespaces; run by make test")
	}
	ns := filepath.Join(t.TempDir(), "ns")
	if err := netlink.EnsureNamespace(ns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.RemoveNamespace(ns); err != nil {
			t.Error(err)
		}
	}()
	log := filepath.Join(t.TempDir(), "log")
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Place{NetNS: ns, Hostname: "elsewhere"}.Start([]string{"/bin/sh", "-c", "cat /proc/sys/kernel/hostname; ls -iL /proc/self/ns/net"}, log)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(ns)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("elsewhere\n%d /proc/self/ns/net\n", st.Sys().(*syscall.Stat_t).Ino)
	if string(text) != want {
		t.Errorf("the process finds %q, want %q", text, want)
	}
	if now, err := os.Hostname(); err != nil || now != before {
		t.Errorf("the starter's host name is %q, was %q (%v)", now, before, err)
	}
	if _, err := (Place{NetNS: ns + "-none"}).Start([]string{"/bin/true"}, log); err == nil || !strings.Contains(err.Error(), ns+"-none") {
		t.Errorf("a namespace that is not there: %v", err)
	}
}
