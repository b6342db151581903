package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOneClearLine: what a user can get wrong is answered by one line that names it.
func TestOneClearLine(t *testing.T) {
	skiff, _ := binaries(t)
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged")
	if err := os.MkdirAll(damaged, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(damaged, "cluster.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", ":6443")
	if err != nil {
		t.Fatalf("port 6443 must be free for this test: %v", err)
	}
	defer ln.Close()
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"port taken", []string{"up", "--detach", "--api-port", "6443", "--data-dir", filepath.Join(dir, "new")}, []string{"port 6443", "taken"}},
		{"bad name", []string{"up", "--detach", "--name", "Not_A_Name"}, []string{"--name", "Not_A_Name"}},
		{"long directory", []string{"up", "--detach", "--data-dir", "/tmp/" + strings.Repeat("x", 120)}, []string{"--data-dir", "shorter"}},
		{"unknown flag", []string{"up", "--nodez", "3"}, []string{"--nodez"}},
		{"unknown verb", []string{"upp"}, []string{"upp"}},
		{"no cluster to end", []string{"down", "--data-dir", filepath.Join(dir, "none")}, []string{"no cluster", "none"}},
		{"no cluster for an image", []string{"image", "ls", "--data-dir", filepath.Join(dir, "none")}, []string{"no cluster"}},
		{"no data directory", []string{"control-plane"}, []string{"data-dir"}},
		{"an empty one", []string{"node", "--data-dir", dir}, []string{"no cluster", dir}},
	} {
		t.Run(c.name, func(t *testing.T) { oneLine(t, exec.Command(skiff, c.args...), c.want) })
	}
	ln.Close()
	t.Run("someone else's directory", func(t *testing.T) {
		oneLine(t, exec.Command(skiff, "up", "--detach", "--data-dir", other), []string{"precious", "--data-dir"})
	})
	t.Run("damaged configuration", func(t *testing.T) {
		oneLine(t, exec.Command(skiff, "up", "--detach", "--data-dir", damaged), []string{"cluster.json", "damaged"})
	})
	t.Run("disk full", func(t *testing.T) {
		small := filepath.Join(dir, "small")
		if err := os.MkdirAll(small, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("none", small, "tmpfs", 0, "size=16m"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := syscall.Unmount(small, 0); err != nil {
				t.Error(err)
			}
		}()
		oneLine(t, exec.Command(skiff, "up", "--detach", "--data-dir", filepath.Join(small, "d")), []string{"disk space", "small"})
	})
	t.Run("not root", func(t *testing.T) {
		// A copy that nobody may run: the tree may be out of their reach.
		bin := filepath.Join(dir, "skiff")
		text, err := os.ReadFile(skiff)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(bin, text, 0o755); err != nil {
			t.Fatal(err)
		}
		for d := dir; d != "/"; d = filepath.Dir(d) {
			if st, err := os.Stat(d); err == nil && st.Mode()&0o001 == 0 {
				if err := os.Chmod(d, st.Mode()|0o011); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.Command(bin, "up", "--detach", "--data-dir", "/tmp/skiff-nobody")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		oneLine(t, cmd, []string{"root"})
	})
}

func oneLine(t *testing.T, cmd *exec.Cmd, want []string) {
	t.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Run(); err == nil {
		t.Fatal("succeeded")
	}
	text := strings.TrimSpace(errs.String())
	if text == "" || strings.Contains(text, "\n") {
		t.Errorf("want one line, got:\n%s", text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not mention %q", text, w)
		}
	}
}

func TestMistakesWithARunningCluster(t *testing.T) {
	c := up(t)
	oneLine(t, exec.Command(c.skiff, "up", "--detach", "--name", "other", "--data-dir", c.dir), []string{"e2e", "other"})
	for _, bad := range []struct{ manifest, want string }{
		{"testdata/no-selector.yaml", "spec.selector"},
		{"testdata/not-yaml.yaml", "not-yaml.yaml"},
	} {
		if _, err := c.try("apply", "-f", bad.manifest); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want an error that names %s", bad.manifest, err, bad.want)
		}
	}
	// Up again is no error: everything runs already.
	if out := c.up(t); !strings.Contains(out, "runs already") {
		t.Errorf("second up:\n%s", out)
	}
}

func TestCheckAndVersion(t *testing.T) {
	skiff, _ := binaries(t)
	out, err := run(skiff, "check")
	if err != nil {
		t.Fatalf("check: %v\n%s", err, out)
	}
	out, err = run(skiff, "version")
	if err != nil || !strings.Contains(out, "v1.37.2") || !strings.Contains(out, "skiff v") {
		t.Fatalf("version: %q, %v", out, err)
	}
}
