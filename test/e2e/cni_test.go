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

// TestCNI has Debian's CNI plugins make the pod network: the node waits for a configuration, pods have
// the plugins' addresses and skiff's host ports, what fails is told in events, and nothing is left.
func TestCNI(t *testing.T) {
	const plugins, bridge = "/usr/lib/cni", "e2ecni0"
	binaries(t)
	if _, err := os.Stat(plugins + "/host-local"); err != nil {
		t.Fatalf("no CNI plugins: %v; apt install containernetworking-plugins", err)
	}
	// The bridge is the plugins', and stays when the cluster goes.
	if out, err := exec.Command("ip", "link", "add", bridge, "type", "bridge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", bridge).Run() })
	confDir, ipam := t.TempDir(), t.TempDir()
	write := func(kind string) {
		text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"e2e","plugins":[{"type":%q,"bridge":%q,"isGateway":true,"ipMasq":false,"hairpinMode":true,
			"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.79.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`, kind, bridge, ipam)
		if err := os.WriteFile(filepath.Join(confDir, "10-e2e.conflist"), []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
	waited := make(chan string, 1)
	c := upFrom(t, "e2e", func(dir string) {
		c := &cluster{kubectl: os.Getenv("KUBECTL_BIN"), dir: dir}
		go func() {
			out := ""
			for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(out, confDir); time.Sleep(50 * time.Millisecond) {
				out, _ = c.try("get", "nodes", "-o", `jsonpath={.items[0].status.conditions[?(@.type=="Ready")].status} {.items[0].status.conditions[?(@.type=="Ready")].message}`)
			}
			waited <- out
			write("bridge")
		}()
	}, "--cni-conf-dir", confDir, "--cni-bin-dir", plugins)
	if out := <-waited; !strings.HasPrefix(out, "False") || !strings.Contains(out, "no CNI configuration in "+confDir) {
		t.Errorf("without a configuration the node is %q, want NotReady and why", out)
	}
	pod := func(name, port string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":%q}},"spec":{"containers":[{"name":"c","image":"skiff.local/hello:v1","ports":[{"containerPort":8080%s}]}]}}`, name, name, port)
	}
	apply := func(text string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "pod.json")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c.k(t, "apply", "-f", file)
	}
	apply(pod("one", `,"hostPort":18099`))
	c.k(t, "wait", "--for=condition=Ready", "pod/one", "--timeout=60s")
	c.k(t, "expose", "pod", "one", "--port=80", "--target-port=8080")
	ip := c.k(t, "get", "pod", "one", "-o", "jsonpath={.status.podIP}")
	if !strings.HasPrefix(ip, "10.79.0.") {
		t.Errorf("the pod has %s, want an address of the plugins'", ip)
	}
	service := c.k(t, "get", "service", "one", "-o", "jsonpath={.spec.clusterIP}")
	node := c.k(t, "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}")
	reached := func() {
		t.Helper()
		for _, url := range []string{"http://" + ip + ":8080/", "http://" + service + "/", "http://" + node + ":18099/"} {
			eventually(t, 30*time.Second, url+" answers", func() error {
				_, err := run("curl", "-fsS", "-m", "5", url)
				return err
			})
		}
	}
	reached()

	// A configuration that does not work is for new pods, and its words are in their events.
	write("nonesuch")
	apply(pod("two", ""))
	eventually(t, time.Minute, "the pod's events say which plugin is missing", func() error {
		out, err := c.try("get", "events", "--field-selector=involvedObject.name=two,reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
		if err == nil && (!strings.Contains(out, "nonesuch") || !strings.Contains(out, plugins)) {
			err = fmt.Errorf("events are %q", out)
		}
		return err
	})
	write("bridge")
	c.k(t, "wait", "--for=condition=Ready", "pod/two", "--timeout=90s")

	// The node process is killed: pods go on, and are taken off by what they came up with.
	c.kill(t, "node")
	reached()
	c.up(t)
	write("nonesuch")
	c.k(t, "delete", "pod", "one", "two", "--timeout=60s")
	write("bridge")
	eventually(t, 30*time.Second, "no address is taken any more", func() error {
		left, err := filepath.Glob(filepath.Join(ipam, "e2e", "10.*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("taken are %v", left)
		}
		return err
	})
}
