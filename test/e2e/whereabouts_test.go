package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWhereabouts has other people's CNI plugin give pods their addresses: whereabouts, which keeps them
// in custom resources and elects a leader for each call, in a cluster without a configuration of its own
// until then.
func TestWhereabouts(t *testing.T) {
	plugins, crds := os.Getenv("SKIFF_CNI_PLUGINS"), os.Getenv("SKIFF_CRDS")
	if plugins == "" || crds == "" {
		t.Skip("SKIFF_CNI_PLUGINS and SKIFF_CRDS are not set; run by make -C test/upstream/cni")
	}
	binaries(t)
	const bridge = "e2ewhere0"
	if out, err := exec.Command("ip", "link", "add", bridge, "type", "bridge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", bridge).Run() })
	c := upWith(t, "--cni-bin-dir", plugins)
	c.k(t, "apply", "-f", filepath.Join(crds, "whereabouts.cni.cncf.io_ippools.yaml"), "-f", filepath.Join(crds, "whereabouts.cni.cncf.io_overlappingrangeipreservations.yaml"))
	c.k(t, "wait", "--for=condition=Established", "crd/ippools.whereabouts.cni.cncf.io", "crd/overlappingrangeipreservations.whereabouts.cni.cncf.io", "--timeout=30s")
	if out, err := exec.Command("ip", "addr", "add", "10.79.1.1/24", "dev", bridge).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	flat := filepath.Join(t.TempDir(), "whereabouts.conf")
	if err := os.WriteFile(flat, fmt.Appendf(nil, `{"datastore":"kubernetes","kubernetes":{"kubeconfig":%q}}`, filepath.Join(c.dir, "kubeconfig")), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"whereabouts","plugins":[{"type":"bridge","bridge":%q,
		"ipam":{"type":"whereabouts","range":"10.79.1.0/24","range_start":"10.79.1.16","gateway":"10.79.1.1","configuration_path":%q}}]}`, bridge, flat)
	dir := filepath.Join(c.dir, "cni", "net.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10-whereabouts.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	c.k(t, "create", "deployment", "hello", "--image=skiff.local/hello:v1", "--replicas=3")
	c.k(t, "rollout", "status", "deployment/hello", "--timeout=120s")
	ips := strings.Fields(c.k(t, "get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[*].status.podIP}"))
	allocations := func() string {
		return c.k(t, "get", "ippools.whereabouts.cni.cncf.io", "-A", "-o", "jsonpath={.items[*].spec.allocations}")
	}
	if len(ips) != 3 {
		t.Errorf("pods have %v, want three addresses", ips)
	}
	for _, ip := range ips {
		if !strings.HasPrefix(ip, "10.79.1.") {
			t.Errorf("a pod has %s, want an address of whereabouts", ip)
		}
		eventually(t, 30*time.Second, "the pod answers", func() error {
			_, err := run("curl", "-fsS", "-m", "5", "http://"+ip+":8080/")
			return err
		})
	}
	if out := allocations(); strings.Count(out, "podref") != 3 || !strings.Contains(out, "default/hello-") {
		t.Errorf("the pool says %s, want three pods by name", out)
	}
	c.k(t, "run", "stays", "--image=skiff.local/hello:v1") // till the cluster's end, when nobody answers the plugin
	c.k(t, "wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
	c.k(t, "delete", "deployment", "hello")
	eventually(t, time.Minute, "all addresses are given back", func() error {
		if out := allocations(); strings.Contains(out, "hello-") {
			return fmt.Errorf("the pool says %s", out)
		}
		return nil
	})
}
