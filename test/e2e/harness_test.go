// Package e2e drives built binaries on this host: real clusters with real containers, as
// a user would by command line. It needs root, SKIFF_BIN and KUBECTL_BIN (make e2e sets them).
package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cluster is one that the test started.
type cluster struct {
	skiff, kubectl string
	name, dir      string
}

// binaries skips where there is nothing to drive.
func binaries(t testing.TB) (skiff, kubectl string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for containers; run by make test")
	}
	skiff, kubectl = os.Getenv("SKIFF_BIN"), os.Getenv("KUBECTL_BIN")
	if skiff == "" || kubectl == "" {
		t.Skip("SKIFF_BIN and KUBECTL_BIN are not set; run by make test")
	}
	return skiff, kubectl
}

// up starts a cluster that is taken away, traces checked, when the test ends.
func up(t testing.TB) *cluster { return upWith(t) }

// upWith gives skiff up further flags.
func upWith(t testing.TB, flags ...string) *cluster {
	t.Helper()
	return upFrom(t, "e2e", func(string) {}, flags...)
}

// upFrom lets prepare fill the data directory first.
func upFrom(t testing.TB, name string, prepare func(dir string), flags ...string) *cluster {
	t.Helper()
	skiff, kubectl := binaries(t)
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-") // short: unix sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{skiff: skiff, kubectl: kubectl, name: name, dir: filepath.Join(dir, "d")}
	prepare(c.dir)
	before := namespaceTraces(t)
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		own := ownTraces(t, c.dir)
		if out, err := run(skiff, "down", "--purge", "--data-dir", c.dir); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		for _, left := range append(own(), difference(namespaceTraces(t), before)...) {
			t.Errorf("left behind: %s", left)
		}
		_ = os.RemoveAll(dir)
	})
	c.up(t, flags...)
	return c
}

func (c *cluster) up(t testing.TB, flags ...string) string {
	t.Helper()
	out, err := run(c.skiff, append([]string{"up", "--detach", "--name", c.name, "--data-dir", c.dir}, flags...)...)
	if err != nil {
		t.Fatalf("skiff up: %v\n%s", err, out)
	}
	return out
}

// report shows what explains a failure.
func (c *cluster) report(t testing.TB) {
	for _, args := range [][]string{{"get", "pods,nodes,deployments,jobs,endpointslices", "-A", "-o", "wide"}, {"get", "events", "-A"}} {
		out, _ := c.try(args...)
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
	for _, role := range []string{"control-plane", "node"} {
		text, _ := os.ReadFile(filepath.Join(c.dir, "log", role+".log"))
		lines := strings.Split(string(text), "\n")
		t.Logf("%s log:\n%s", role, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

// k runs kubectl and fails the test if it fails.
func (c *cluster) k(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) try(args ...string) (string, error) {
	return run(c.kubectl, append([]string{"--kubeconfig", filepath.Join(c.dir, "kubeconfig"), "--request-timeout=60s"}, args...)...)
}

// run returns standard output; an error carries standard error.
func run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// eventually polls another process's state until it is as wanted.
func eventually(t testing.TB, within time.Duration, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, but after %s: %v", what, within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// pid of a role of the cluster, from its lock file.
func (c *cluster) pid(t testing.TB, role string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "run", role+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatalf("lock of %s: %v", role, err)
	}
	return pid
}

func (c *cluster) kill(t testing.TB, role string) {
	t.Helper()
	if err := syscall.Kill(c.pid(t, role), syscall.SIGKILL); err != nil {
		t.Fatalf("kill %s: %v", role, err)
	}
}

// start runs a role by hand and returns its pid; up's clean-up ends it.
func (c *cluster) start(t testing.TB, role string) int {
	t.Helper()
	cmd := exec.Command(c.skiff, role, "--data-dir", c.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }() // reaped; the lock tells whether it runs
	return cmd.Process.Pid
}

// apiReady asks once.
func (c *cluster) apiReady() bool {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // only whether it answers is asked
	resp, err := client.Get("https://127.0.0.1:6443/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
