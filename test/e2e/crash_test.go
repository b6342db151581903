package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// state is what must not change when processes are killed: each container's id and
// restarts, and when each pod became ready.
func (c *cluster) state(t testing.TB) string {
	t.Helper()
	return c.k(t, "get", "pods", "-l", "app=web", "--sort-by=.metadata.name", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].lastTransitionTime}{"\n"}{end}`)
}

func TestKillNine(t *testing.T) {
	c := up(t)
	c.k(t, "apply", "-f", "testdata/deployment.yaml")
	c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
	ip := c.k(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	before := c.state(t)
	if strings.Count(before, " 0 True ") != 3 {
		t.Fatalf("not three ready pods:\n%s", before)
	}
	for _, roles := range [][]string{{"control-plane"}, {"node"}, {"control-plane", "node"}} {
		t.Run(strings.Join(roles, " and "), func(t *testing.T) {
			for _, r := range roles {
				c.kill(t, r)
			}
			for range 5 { // what runs goes on: containers, rules in the kernel
				if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "web-") {
					t.Errorf("the service answers %q", body)
				}
			}
			c.up(t)
			eventually(t, 60*time.Second, "the same containers are ready, never restarted", func() error {
				if after := c.state(t); after != before {
					return fmt.Errorf("before:\n%safter:\n%s", before, after)
				}
				return nil
			})
			// New work is taken up again.
			c.k(t, "run", "later", "--image=skiff.local/hello:v1", "--restart=Never")
			c.k(t, "wait", "pod/later", "--for=condition=Ready", "--timeout=180s")
			c.k(t, "delete", "pod", "later", "--grace-period=1", "--timeout=180s")
			if after := c.state(t); after != before {
				t.Errorf("a moment later:\nbefore:\n%safter:\n%s", before, after)
			}
		})
	}
}

// TestDownAfterKill leaves nothing, although nobody was there to clean up: up checks that.
func TestDownAfterKill(t *testing.T) {
	c := up(t)
	c.k(t, "apply", "-f", "testdata/deployment.yaml")
	c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
	c.kill(t, "node")
	c.kill(t, "control-plane")
}

func TestDownAndUpKeepsTheCluster(t *testing.T) {
	c := up(t)
	c.k(t, "create", "configmap", "kept", "--from-literal=a=b")
	c.k(t, "create", "deployment", "back", "--image=skiff.local/hello:v1")
	c.k(t, "rollout", "status", "deployment/back", "--timeout=180s")
	if out, err := run(c.skiff, "down", "--data-dir", c.dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	c.up(t)
	if out := c.k(t, "get", "configmap", "kept", "-o", "jsonpath={.data.a}"); out != "b" {
		t.Errorf("the ConfigMap reads %q", out)
	}
	eventually(t, 60*time.Second, "the pod comes back", func() error {
		_, err := c.try("rollout", "status", "deployment/back", "--timeout=1s")
		return err
	})
}
