package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kubeadm, unmodified, joins a machine to a server of skiff's: it discovers the cluster by
// token and hash, and its kubelet, upstream's or skiff's, bootstraps its certificates and runs
// pods. KUBEADM_BIN and KUBELET_BIN are upstream's (make kubeadm builds them and sets these).
func TestKubeadmJoin(t *testing.T) {
	skiff, kubectl := binaries(t)
	kubeadm, kubelet := os.Getenv("KUBEADM_BIN"), os.Getenv("KUBELET_BIN")
	if kubeadm == "" || kubelet == "" {
		t.Skip("KUBEADM_BIN and KUBELET_BIN are not set; run by make kubeadm")
	}
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{skiff: skiff, kubectl: kubectl, name: "default", dir: filepath.Join(dir, "d")}
	m := newMachine(t, "m2", "192.168.232.1", "192.168.232.2")
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		if out, err := run(skiff, "down", "--purge", "--data-dir", c.dir); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		_ = os.RemoveAll(dir)
	})
	server := start(t, exec.Command(skiff, "server", "--data-dir", c.dir, "--node-ip", "192.168.232.1", "--node-name", "first"))
	join := strings.Fields(server.await(t, "^ *skiff agent --server "))
	url := join[3]
	bearer, hash, _ := strings.Cut(join[len(join)-1], "@")
	// kubeadm's own view of the cluster.
	kubeconfig := filepath.Join(c.dir, "kubeconfig")
	if out, err := run(kubeadm, "token", "list", "--kubeconfig", kubeconfig); err != nil || !strings.Contains(out, bearer) {
		t.Errorf("kubeadm token list: %v\n%s", err, out)
	}
	if out, err := run(kubeadm, "token", "create", "--print-join-command", "--kubeconfig", kubeconfig); err != nil || !strings.Contains(out, hash) {
		t.Errorf("kubeadm token create: %v\n%s", err, out)
	}
	for node, program := range map[string][]string{"upstream": {kubelet}, "ours": {skiff, "kubelet"}} {
		t.Run(node, func(t *testing.T) {
			script, err := filepath.Abs("testdata/kubeadm-join.sh")
			if err != nil {
				t.Fatal(err)
			}
			args := append([]string{"unshare", "-m", "--propagation", "private", script, filepath.Join(dir, node), skiff, kubeadm}, program...)
			cmd := m.on(append(args, "--", url, bearer, hash, node)...)
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			b := start(t, cmd)
			if line := b.await(t, "^(joined|failed)$"); line != "joined" {
				for range 40 {
					select {
					case line := <-b.line:
						t.Log(line)
					case <-time.After(100 * time.Millisecond):
					}
				}
			}
			defer func() {
				if text, err := os.ReadFile(filepath.Join(dir, node, "kubelet.log")); err == nil && t.Failed() {
					lines := strings.Split(string(text), "\n")
					t.Logf("kubelet log:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
				}
				_ = input.Close()
				if err := <-b.done; err != nil {
					t.Errorf("leave: %v\n%s", err, b.out)
				}
				b.done <- err
				c.k(t, "delete", "node", node)
			}()
			// Upstream's kubelet tries ever more rarely to make its CSINode, up to two minutes apart, and
			// is not ready before: on a busy machine its first tries come before its Node is there.
			eventually(t, 4*time.Minute, "the node is ready", func() error {
				_, err := c.try("wait", "node/"+node, "--for=condition=Ready", "--timeout=60s")
				return err
			})
			c.k(t, "run", "on-"+node, "--image=skiff.local/hello:v1", `--overrides={"spec":{"nodeName":"`+node+`"}}`)
			c.k(t, "wait", "pod/on-"+node, "--for=condition=Ready", "--timeout=60s")
			eventually(t, time.Minute, "its serving certificate is signed", func() error {
				_, err := c.try("logs", "on-"+node)
				return err
			})
			c.k(t, "delete", "pod", "on-"+node, "--timeout=60s")
		})
	}
}
