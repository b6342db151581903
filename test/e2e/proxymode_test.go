package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestProxyMode changes the mode of a node's proxy and back: the Service answers in each, at loopback in the mode
// iptables too, and the rules of the former mode go.
func TestProxyMode(t *testing.T) {
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		t.Skip("needs the programs of iptables (Debian's package iptables)")
	}
	c := upWith(t, "--proxy-mode=iptables", "-f", clusterFile(t, "apiVersion: skiff.dev/v1alpha1\nkind: Cluster\nmanifests: [base.yaml, apps]\n"))
	c.k(t, "wait", "--for=create", "deployment/web", "-n", "shop", "--timeout=60s")
	c.k(t, "rollout", "status", "deployment/web", "-n", "shop", "--timeout=180s")
	ip := c.k(t, "get", "service", "web", "-n", "shop", "-o", "jsonpath={.spec.clusterIP}")
	hello := func(address string) {
		t.Helper()
		eventually(t, time.Minute, address+" should answer", func() error {
			body, err := ask(address)
			if err == nil && !strings.Contains(body, "Hello from skiff") {
				err = fmt.Errorf("it says %q", body)
			}
			return err
		})
	}
	chains := func() int { return strings.Count(strings.Join(namespaceTraces(t), "\n"), "chain KUBE-") }
	hello(strings.TrimSpace(ip))
	hello("127.0.0.1:30080")
	if chains() == 0 {
		t.Log("the host's iptables are of the legacy variant")
	}
	c.up(t, "--proxy-mode=nftables")
	hello(strings.TrimSpace(ip))
	eventually(t, time.Minute, "chains of iptables should go", func() error {
		if n := chains(); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
	c.up(t, "--proxy-mode=iptables")
	hello("127.0.0.1:30080")
}
