package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAutoscaler has a container burn CPU while a file in it says so, and looks at what the
// autoscaler makes of it: more pods, and one again afterwards.
func TestAutoscaler(t *testing.T) {
	c := up(t)
	c.loadShell(t)
	file := filepath.Join(t.TempDir(), "burner.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: burner}
spec:
  selector: {matchLabels: {app: burner}}
  template:
    metadata: {labels: {app: burner}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: burner
        image: test.local/shell:v1
        imagePullPolicy: Never
        command: ["/bin/sh", "-c", "trap exit TERM; while :; do [ -s /burn ] || sleep 1; done"]
        resources: {requests: {cpu: 20m}, limits: {cpu: 100m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burner}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burner}
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: ContainerResource
    containerResource: {name: cpu, container: burner, target: {type: Utilization, averageUtilization: 50}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.k(t, "apply", "-f", file)
	c.k(t, "rollout", "status", "deployment/burner", "--timeout=180s")
	pod := strings.TrimSpace(c.k(t, "get", "pods", "-l", "app=burner", "-o", "name"))
	pods := func(want string) {
		t.Helper()
		eventually(t, 5*time.Minute, want+" replicas", func() error {
			got, err := c.try("get", "deployment", "burner", "-o", "jsonpath={.spec.replicas} {.status.readyReplicas}")
			if err != nil || got != want+" "+want {
				about, _ := c.try("describe", "hpa", "burner")
				return fmt.Errorf("%q, %v\n%s", got, err, about)
			}
			return nil
		})
	}
	c.k(t, "exec", pod, "--", "/bin/sh", "-c", "echo yes > /burn")
	pods("3")
	about := c.k(t, "describe", "hpa", "burner")
	for _, want := range []string{"SuccessfulRescale", "cpu container resource utilization (percentage of request) above target", "ScalingActive", "ValidMetricFound"} {
		if !strings.Contains(about, want) {
			t.Errorf("describe hpa does not say %q:\n%s", want, about)
		}
	}
	c.k(t, "exec", pod, "--", "/bin/sh", "-c", ": > /burn")
	pods("1")
	if events := c.k(t, "get", "events", "--field-selector", "reason=SuccessfulRescale"); !strings.Contains(events, "All metrics below target") {
		t.Errorf("events: %s", events)
	}
}
