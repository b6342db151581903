package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTop looks at what nodes and pods use, and at what becomes of it where a metrics-server
// is installed: skiff steps back, across restarts, and serves again once that is gone.
func TestTop(t *testing.T) {
	c := up(t)
	c.k(t, "create", "deployment", "hello", "--image=skiff.local/hello:v1")
	c.k(t, "rollout", "status", "deployment/hello", "--timeout=60s")
	ip := c.k(t, "get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].status.podIP}")

	// The first answer needs no earlier one.
	nodes := strings.Fields(c.k(t, "top", "nodes", "--no-headers"))
	if len(nodes) != 5 || used(nodes[3], "Mi") == 0 {
		t.Errorf("kubectl top nodes: %q", nodes)
	}

	ctx, cancel := context.WithCancel(context.Background())
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		client := &http.Client{Timeout: 5 * time.Second}
		for ctx.Err() == nil {
			if resp, err := client.Get("http://" + ip + ":8080/"); err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	defer func() { cancel(); <-worked }()
	eventually(t, 2*time.Minute, "a pod that works uses CPU", func() error {
		out, err := c.try("top", "pods", "--containers", "--no-headers")
		if f := strings.Fields(out); err != nil || len(f) != 4 || f[1] != "hello" || used(f[2], "m") < 2 {
			return fmt.Errorf("kubectl top pods: %q, %v", out, err)
		}
		return nil
	})
	if out := c.k(t, "get", "pods.metrics.k8s.io", "-A"); !strings.Contains(out, "WINDOW") || !strings.Contains(out, "hello-") {
		t.Errorf("kubectl get pods.metrics.k8s.io: %s", out)
	}
	for role, want := range map[string]string{"view": "yes", "system:node-proxier": "no"} {
		c.k(t, "create", "rolebinding", strings.ReplaceAll(role, ":", "-"), "--clusterrole="+role, "--user="+role)
		if out, _ := c.try("auth", "can-i", "list", "pods.metrics.k8s.io", "--as="+role); strings.TrimSpace(out) != want {
			t.Errorf("may who has the role %s see metrics of pods: %s", role, out)
		}
	}

	theirs := filepath.Join(t.TempDir(), "apiservice.yaml")
	if err := os.WriteFile(theirs, []byte(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
spec: {group: metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true,
  service: {namespace: kube-system, name: metrics-server}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	away := func(when string) {
		t.Helper()
		eventually(t, time.Minute, "metrics are another server's, which is not there, "+when, func() error {
			if out, err := c.try("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"); err == nil {
				return fmt.Errorf("answered: %s", out)
			} else if !strings.Contains(err.Error(), "unable to handle the request") && !strings.Contains(err.Error(), "service unavailable") {
				return err
			}
			return nil
		})
	}
	c.k(t, "apply", "-f", theirs)
	away("after apply")
	if out, err := run(c.skiff, "down", "--data-dir", c.dir); err != nil {
		t.Fatalf("skiff down: %v\n%s", err, out)
	}
	c.up(t)
	away("after a restart")
	if out := c.k(t, "get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.spec.service.name}"); out != "metrics-server" {
		t.Errorf("the APIService leads to %q", out)
	}
	c.k(t, "delete", "-f", theirs)
	eventually(t, time.Minute, "metrics are served again", func() error {
		_, err := c.try("top", "nodes")
		return err
	})
}

// used is the number before a unit; 0 if there is none.
func used(text, unit string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(text, unit))
	if err != nil || !strings.HasSuffix(text, unit) {
		return 0
	}
	return n
}
