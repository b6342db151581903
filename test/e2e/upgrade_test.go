package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFormerDataDirectories takes up what older versions left: every testdata/datadirs/VERSION.tar.gz
// holds a data directory with the objects of testdata/deployment.yaml, crd.yaml, boat.yaml and a Secret.
// A new version adds its own and removes none.
func TestFormerDataDirectories(t *testing.T) {
	archives, err := filepath.Glob("testdata/datadirs/*.tar.gz")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, a := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(a), ".tar.gz"), func(t *testing.T) {
			archive, err := filepath.Abs(a)
			if err != nil {
				t.Fatal(err)
			}
			c := upFrom(t, "fixture", func(dir string) {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if out, err := exec.Command("tar", "-C", dir, "-xzf", archive).CombinedOutput(); err != nil {
					t.Fatalf("unpack: %v\n%s", err, out)
				}
			})
			if out := c.k(t, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); out != "Yg==" {
				t.Errorf("the Secret reads %q", out)
			}
			if out := c.k(t, "get", "boat", "one", "-o", "jsonpath={.spec.oars}"); out != "2" {
				t.Errorf("the custom resource has %q oars", out)
			}
			c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
			c.k(t, "scale", "deployment/web", "--replicas=4")
			c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
		})
	}
}
