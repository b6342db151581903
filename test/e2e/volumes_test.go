package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const volumesManifest = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 4
  serviceName: db
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: db}}}
      securityContext: {runAsUser: 1000, runAsGroup: 1000}
      containers:
      - name: shell
        image: test.local/shell:v1
        command: [/bin/sh, -c, "echo start >> /data/log; exec sleep 1000000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// volumeDirs are the directories of volumes on all nodes.
func (c *cluster) volumeDirs(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"volumes/pvc-*", "nodes/*/volumes/pvc-*"} {
		found, err := filepath.Glob(filepath.Join(c.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// TestVolumes: a StatefulSet with claims works out of the box on two nodes; what it wrote
// outlives pods, kills and restarts; nothing is left when it is deleted.
func TestVolumes(t *testing.T) {
	c := upWith(t, "--nodes", "2")
	c.loadShell(t)
	path := filepath.Join(t.TempDir(), "db.yaml")
	if err := os.WriteFile(path, []byte(volumesManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	ready := func(starts int) {
		t.Helper()
		c.k(t, "rollout", "status", "statefulset/db", "--timeout=180s")
		for i := range 4 {
			eventually(t, time.Minute, fmt.Sprintf("db-%d should have started %d times on its volume", i, starts), func() error {
				out, err := c.try("exec", fmt.Sprintf("db-%d", i), "--", "cat", "/data/log")
				if err == nil && strings.Count(out, "start") != starts {
					err = fmt.Errorf("%d times", strings.Count(out, "start"))
				}
				return err
			})
		}
	}
	c.k(t, "apply", "-f", path)
	// Kills at any moment of provisioning: each is taken up again.
	for _, role := range []string{"control-plane", "node", "control-plane"} {
		c.kill(t, role)
		c.up(t)
	}
	ready(1)
	if dirs := c.volumeDirs(t); len(dirs) != 4 {
		t.Errorf("directories %v", dirs)
	}
	if out := c.k(t, "get", "pv", "-o", `jsonpath={range .items[*]}{.status.phase} {.spec.storageClassName} {.metadata.annotations.pv\.kubernetes\.io/provisioned-by}{"\n"}{end}`); strings.Count(out, "Bound local-path skiff.dev/local-path\n") != 4 {
		t.Errorf("volumes\n%s", out)
	}
	c.k(t, "delete", "pods", "-l", "app=db")
	ready(2)
	c.k(t, "scale", "statefulset/db", "--replicas=0")
	c.k(t, "wait", "--for=delete", "pods", "-l", "app=db", "--timeout=60s")
	if out, err := run(c.skiff, "down", "--data-dir", c.dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	c.up(t)
	c.k(t, "scale", "statefulset/db", "--replicas=4")
	ready(3)

	c.k(t, "delete", "statefulset", "db")
	c.k(t, "delete", "pvc", "--all", "--wait=false")
	c.kill(t, "node") // while it removes directories
	c.up(t)
	c.k(t, "wait", "--for=delete", "pv", "--all", "--timeout=60s")
	if dirs := c.volumeDirs(t); len(dirs) != 0 {
		t.Errorf("left behind: %v", dirs)
	}
}
