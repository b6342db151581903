package e2e

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// clusterFile writes a cluster file beside the files that the examples of docs/cluster-file.md name.
func clusterFile(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.Mkdir(filepath.Join(dir, "apps"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"cluster.yaml": text, "registry-ca.pem": string(ca),
		"base.yaml":    "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n",
		"apps/web.yml": webManifest,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tag, err := name.NewTag("test.local/shell:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(dir, "app.tar"), tag, shellImage(t)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "cluster.yaml")
}

const webManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: hello, image: "skiff.local/hello:v1", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`

// TestClusterFileExamples starts the cluster of each example in docs/cluster-file.md.
func TestClusterFileExamples(t *testing.T) {
	binaries(t)
	text, err := os.ReadFile("../../docs/cluster-file.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			example := string(b[1])
			if strings.Contains(example, "nodeIPs") {
				// This host has other addresses: the example's are refused, by name.
				out, err := run(os.Getenv("SKIFF_BIN"), "up", "--detach", "--data-dir", filepath.Join(t.TempDir(), "d"), "-f", clusterFile(t, example))
				if err == nil || !strings.Contains(err.Error(), ": network.nodeIPs: ") {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			cluster := "default"
			if m := regexp.MustCompile(`(?m)^name: (.*)$`).FindStringSubmatch(example); m != nil {
				cluster = m[1]
			}
			upFrom(t, cluster, func(string) {}, "-f", clusterFile(t, example))
		})
	}
}

// ask asks a port of the host.
func ask(address string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestClusterFile is the life of a cluster that a file describes.
func TestClusterFile(t *testing.T) {
	file := clusterFile(t, `apiVersion: skiff.dev/v1alpha1
kind: Cluster
nodes:
- {}
- name: second
  labels: {disk: fast}
  taints: [{key: only, effect: NoSchedule}]
- {}
apiServer:
  extraArgs: {max-requests-inflight: 300}
ports:
- {hostPort: 18080, nodePort: 30080}
- {hostPort: 18081, nodePort: 30080, node: second, listenAddress: 127.0.0.1}
manifests: [base.yaml, apps]
images: [app.tar]
`)
	c := upWith(t, "-f", file)
	c.k(t, "wait", "--for=create", "deployment/web", "-n", "shop", "--timeout=60s")
	c.k(t, "rollout", "status", "deployment/web", "-n", "shop", "--timeout=180s")
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
	hello("127.0.0.1:18080")
	hello("127.0.0.1:18081")
	if out := c.k(t, "get", "node", "second", "-o", "jsonpath={.metadata.labels.disk} {.spec.taints[*].key}"); !strings.HasPrefix(out, "fast ") || !strings.Contains(out, "only") {
		t.Errorf("node second has %s", out)
	}
	if n := strings.Count(c.images(t), "test.local/shell:v1"); n < 1 {
		t.Errorf("images\n%s", c.images(t))
	}
	out, err := run(c.skiff, "manifests", "--data-dir", c.dir)
	if err != nil || strings.Count(out, "Applied") != 2 {
		t.Errorf("manifests: %v\n%s", err, out)
	}

	change := func(old, new string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), old) {
			t.Fatalf("the file has no %q", old)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("changed", func(t *testing.T) {
		change("- {}\napiServer", "apiServer")
		change("18080", "18082")
		change("inflight: 300", "inflight: 301")
		c.up(t, "-f", file)
		hello("127.0.0.1:18082")
		hello("127.0.0.1:18081")
		if body, err := ask("127.0.0.1:18080"); err == nil {
			t.Errorf("the former port answers %q", body)
		}
		if out := c.k(t, "get", "nodes", "-o", "name"); strings.Count(out, "node/") != 2 {
			t.Errorf("nodes %s", out)
		}
		// Once more is no change: nothing starts again.
		before := []int{c.pid(t, "control-plane"), c.pid(t, "node")}
		c.up(t, "-f", file)
		if now := []int{c.pid(t, "control-plane"), c.pid(t, "node")}; now[0] != before[0] || now[1] != before[1] {
			t.Errorf("processes %v, before %v", now, before)
		}
	})
	t.Run("a port in use", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := strings.TrimPrefix(l.Addr().String(), "127.0.0.1:")
		change("18081", port)
		_, err = run(c.skiff, "up", "--detach", "--name", c.name, "--data-dir", c.dir, "-f", file)
		if err == nil || !strings.Contains(err.Error(), ": ports[1].hostPort: listen on port "+port+"/TCP: ") {
			t.Errorf("%v", err)
		}
		change(port, "18081")
	})
	t.Run("emptied", func(t *testing.T) {
		change("manifests: [base.yaml, apps]", "manifests: []")
		c.up(t, "-f", file)
		c.k(t, "wait", "--for=delete", "namespace/shop", "--timeout=120s")
		if out, err := run(c.skiff, "manifests", "--data-dir", c.dir); err != nil || !strings.Contains(out, "no manifests") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
