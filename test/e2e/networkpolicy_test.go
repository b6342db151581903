package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// policyTables are the nftables tables of NetworkPolicies here and on a further node.
func (c *cluster) policyTables(t testing.TB, node string) string {
	t.Helper()
	all := ""
	for _, argv := range [][]string{{"nft", "list", "tables"}, {"nsenter", "--net=" + filepath.Join(c.dir, "run", "netns", node), "nft", "list", "tables"}} {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.HasSuffix(strings.TrimSpace(line), "-policies") {
				all += line
			}
		}
	}
	return all
}

// TestNetworkPolicy isolates pods on two nodes, with traffic on one node, between both and through a Service.
func TestNetworkPolicy(t *testing.T) {
	c := upWith(t, "--nodes", "2")
	second := c.further(t)[0]
	c.loadShell(t)
	eventually(t, 60*time.Second, "pods are made", func() error { // once their ServiceAccount is there
		_, err := c.try("apply", "-f", "testdata/networkpolicy.yaml")
		return err
	})
	c.k(t, "wait", "pod", "--all", "-A", "--for=condition=Ready", "--timeout=120s")
	if left := c.policyTables(t, second); left != "" {
		t.Errorf("without policies there are tables: %s", left)
	}
	ip := func(pod string) string { return c.k(t, "get", "pod", pod, "-o", "jsonpath={.status.podIP}") }
	service := c.k(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	reaches := func(namespace, from, host, port string) bool {
		out, _ := c.try("exec", "-n", namespace, from, "-c", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 "+host+" "+port)
		return strings.Contains(out, "Hello")
	}
	// want is who reaches the pods web-0 and web-1, on a node each, and their Service.
	want := func(what string, near, far, stranger bool) {
		t.Helper()
		eventually(t, 60*time.Second, what, func() error {
			for _, to := range []struct{ host, port string }{{ip("web-0"), "8080"}, {ip("web-1"), "8080"}, {service, "80"}} {
				for _, from := range []struct {
					namespace, pod string
					want           bool
				}{{"default", "near", near}, {"default", "far", far}, {"elsewhere", "stranger", stranger}} {
					if got := reaches(from.namespace, from.pod, to.host, to.port); got != from.want {
						return fmt.Errorf("%s reaches %s is %t", from.pod, to.host, got)
					}
				}
			}
			return nil
		})
	}
	want("without policies everybody reaches everybody", true, true, true)

	c.k(t, "apply", "-f", policyFile(t, "web", `{podSelector: {matchLabels: {app: web}}, ingress: []}`))
	want("nobody reaches who is isolated", false, false, false)
	c.k(t, "apply", "-f", policyFile(t, "near", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {name: near}}}], ports: [{port: http}]}]}`))
	want("a pod is let in", true, false, false)
	c.k(t, "label", "pod", "far", "name=near", "--overwrite")
	want("a pod is let in that has got the label", true, true, false)
	c.k(t, "apply", "-f", policyFile(t, "near", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: elsewhere}}}]}]}`))
	want("a namespace is let in", false, false, true)
	// Probes come from the node.
	c.k(t, "wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=30s")

	// What a pod does first is under its policies too.
	c.k(t, "apply", "-f", policyFile(t, "caged", `{podSelector: {matchLabels: {app: caged}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {name: web-0}}}]}]}`))
	for i := range 3 {
		name := fmt.Sprint("caged-", i)
		c.k(t, "run", name, "--image=test.local/shell:v1", "--labels=app=caged", "--restart=Never", "--", "/bin/sh", "-c",
			"for i in 1 2 3 4; do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 "+ip("far")+" 8080; done; echo END")
		eventually(t, 60*time.Second, "the pod has tried", func() error {
			if out, err := c.try("logs", name); err != nil || !strings.Contains(out, "END") {
				return fmt.Errorf("%q, %v", out, err)
			}
			return nil
		})
		if out := c.k(t, "logs", name); strings.Contains(out, "Hello") {
			t.Errorf("a pod is free when it starts: %s", out)
		}
	}

	// They are in force while the node's process is gone, and for what changes meanwhile once it is back.
	c.kill(t, "node")
	eventually(t, 10*time.Second, "the node process is gone", func() error { return gone(c, "node") })
	if out := c.policyTables(t, second); strings.Count(out, "table ip ") != 2 || strings.Count(out, "table bridge ") != 2 {
		t.Errorf("tables are: %s", out)
	}
	c.k(t, "delete", "networkpolicy", "--all")
	c.start(t, "node")
	want("without policies again", true, true, true)
	eventually(t, 30*time.Second, "no table is left", func() error {
		if left := c.policyTables(t, second); left != "" {
			return fmt.Errorf("there are %s", left)
		}
		return nil
	})
}

// gone is nil once a role's process has ended.
func gone(c *cluster, role string) error {
	f, err := os.Open(filepath.Join(c.dir, "run", role+".lock"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("it runs: %w", err)
	}
	return nil
}

func policyFile(t testing.TB, name, spec string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
