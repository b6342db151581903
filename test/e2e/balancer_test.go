package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A load balancer's address answers a client on the nodes' link, from the other node when the one that
// answers is cut off; the host's own ports are closed at it, and nothing is left behind.
func TestLoadBalancer(t *testing.T) {
	skiff, kubectl := binaries(t)
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{skiff: skiff, kubectl: kubectl, name: "default", dir: filepath.Join(dir, "d")}
	const bridge = "sk-e2e-lan"
	before := namespaceTraces(t)
	m, client := newMachine(t, "m1", "192.168.232.254", "192.168.232.2"), newMachine(t, "cl", "192.168.232.253", "192.168.232.9")
	for _, args := range []string{
		"link add " + bridge + " type bridge", "addr add 192.168.232.1/24 dev " + bridge, "link set " + bridge + " up",
		"addr flush dev " + m.link, "addr flush dev " + client.link, "link set " + m.link + " master " + bridge, "link set " + client.link + " master " + bridge,
		"-n " + m.netns + " route replace default via 192.168.232.1",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		_ = exec.Command("ip", "link", "set", m.link, "master", bridge).Run() // as the test may have left it
		if out, err := m.on(skiff, "down", "--purge", "--data-dir", m.dir).CombinedOutput(); err != nil {
			t.Errorf("down --purge of the agent: %v\n%s", err, out)
		}
		if out, err := run(skiff, "down", "--purge", "--data-dir", c.dir); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		for _, on := range []*exec.Cmd{exec.Command("ip", "addr"), m.on("ip", "addr")} {
			if out, err := on.CombinedOutput(); err != nil || strings.Contains(string(out), "192.168.232.20") {
				t.Errorf("an address is left:\n%s(%v)", out, err)
			}
		}
		m.remove()
		client.remove()
		_ = exec.Command("ip", "link", "del", bridge).Run()
		for _, left := range difference(namespaceTraces(t), before) {
			t.Errorf("left behind: %s", left)
		}
		_ = os.RemoveAll(dir)
	})
	server := start(t, exec.Command(skiff, "server", "--data-dir", c.dir, "--node-ip", "192.168.232.1", "--node-name", "first", "--load-balancer-pool", "192.168.232.200-192.168.232.209"))
	join := strings.Fields(server.await(t, "^ *skiff agent --server "))
	agent := start(t, m.on(append([]string{skiff, "agent", "--data-dir", m.dir, "--node-name", "second"}, join[2:]...)...))
	agent.await(t, "^node second of the cluster .* runs")
	eventually(t, time.Minute, "the node registers", func() error {
		_, err := c.try("wait", "node/second", "--for=condition=Ready", "--timeout=60s")
		return err
	})
	// A pod on each node, so that either serves alone.
	c.k(t, "create", "deployment", "hello", "--image=skiff.local/hello:v1", "--replicas=2")
	c.k(t, "rollout", "status", "deployment/hello", "--timeout=60s")
	// The first node does not serve at first: it is the other that will be cut off.
	c.k(t, "label", "node", "first", "node.kubernetes.io/exclude-from-external-load-balancers=true")
	c.k(t, "expose", "deployment", "hello", "--port=80", "--target-port=8080", "--type=LoadBalancer")
	announced := func(want string) func() error {
		return func() error {
			if got, err := c.try("get", "service", "hello", "-o", `jsonpath={.metadata.annotations.skiff\.dev/announced-by} {.status.loadBalancer.ingress[0].ip}`); err != nil || got != want+" 192.168.232.200" {
				return fmt.Errorf("%s, %w", got, err)
			}
			return nil
		}
	}
	answers := func() error {
		out, err := client.on("curl", "-s", "-m", "1", "http://192.168.232.200/").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Hello from skiff") {
			return fmt.Errorf("%s %w", out, errors.Join(err, errors.New("no greeting")))
		}
		return nil
	}
	eventually(t, time.Minute, "the second node is named", announced("second"))
	eventually(t, time.Minute, "the address answers", answers)
	for where, cmd := range map[string]*exec.Cmd{"the node that answers": m.on("curl", "-s", "-m", "2", "http://192.168.232.200/"), "another node": exec.Command("curl", "-s", "-m", "2", "http://192.168.232.200/")} {
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Hello from skiff") {
			t.Errorf("from %s: %s (%v)", where, out, err)
		}
	}
	if out, err := client.on("curl", "-sk", "-m", "2", "https://192.168.232.200:10250/healthz").CombinedOutput(); err == nil {
		t.Errorf("the kubelet's port is open at the address: %s", out)
	}
	c.k(t, "label", "node", "first", "node.kubernetes.io/exclude-from-external-load-balancers-")
	c.k(t, "scale", "deployment", "hello", "--replicas=4")
	c.k(t, "rollout", "status", "deployment/hello", "--timeout=60s")
	if out, err := exec.Command("ip", "link", "set", m.link, "nomaster").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, time.Minute, "the first node is named", announced("first"))
	eventually(t, time.Minute, "the address answers again", answers)
	if out, err := exec.Command("ip", "link", "set", m.link, "master", bridge).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, time.Minute, "the second node takes the address off", func() error {
		if out, err := m.on("ip", "addr").CombinedOutput(); err != nil || strings.Contains(string(out), "192.168.232.200") {
			return fmt.Errorf("%s %w", out, errors.Join(err, errors.New("it is there")))
		}
		return nil
	})
	c.k(t, "delete", "service", "hello")
	eventually(t, time.Minute, "the first node takes the address off", func() error {
		if out, err := exec.Command("ip", "addr").CombinedOutput(); err != nil || strings.Contains(string(out), "192.168.232.200") {
			return fmt.Errorf("%s %w", out, errors.Join(err, errors.New("it is there")))
		}
		return nil
	})
	if err := agent.end(t, syscall.SIGTERM); err != nil {
		t.Logf("agent: %v", err)
	}
}
