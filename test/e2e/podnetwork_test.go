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

// TestPodNetwork has a server here and agents on two machines, each behind a link of its own, of which
// one is in the subnet of the server's address: these two reach each other's pods by routes, all others by
// VXLAN, Services too. An agent that is away loses nothing, a node that goes takes its routes along.
func TestPodNetwork(t *testing.T) {
	skiff, kubectl := binaries(t)
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{skiff: skiff, kubectl: kubectl, name: "default", dir: filepath.Join(dir, "d")}
	before := namespaceTraces(t)
	machines := map[string]*machine{
		"one": newMachine(t, "n1", "192.168.233.1", "192.168.233.2"),
		"two": newMachine(t, "n2", "192.168.234.1", "192.168.234.2"),
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		for name, m := range machines {
			if out, err := m.on(skiff, "down", "--purge", "--data-dir", m.dir).CombinedOutput(); err != nil {
				t.Errorf("down --purge of %s: %v\n%s", name, err, out)
			}
			if out, err := m.on("sh", "-c", "ip -br link; ip route show proto 83").CombinedOutput(); err != nil || strings.Count(string(out), "\n") != 2 {
				t.Errorf("on machine %s is left:\n%s(%v)", name, out, err)
			}
			m.remove()
		}
		if out, err := run(skiff, "down", "--purge", "--data-dir", c.dir); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		if out, err := run("ip", "route", "show", "proto", "83"); err != nil || out != "" {
			t.Errorf("routes are left: %s(%v)", out, err)
		}
		for _, left := range difference(namespaceTraces(t), before) {
			t.Errorf("left behind: %s", left)
		}
		_ = os.RemoveAll(dir)
	})
	server := start(t, exec.Command(skiff, "server", "--data-dir", c.dir, "--node-ip", "192.168.233.1", "--node-name", "first"))
	join := strings.Fields(server.await(t, "^ *skiff agent --server https://192.168.233.1:[0-9]+ --token "))
	agents := map[string]*background{}
	for name, m := range machines {
		agents[name] = start(t, m.on(append([]string{skiff, "agent", "--data-dir", m.dir, "--node-name", name}, join[2:]...)...))
	}
	for name, a := range agents {
		a.await(t, "^node "+name+" of the cluster .* runs")
		eventually(t, time.Minute, "the node registers", func() error {
			_, err := c.try("wait", "node/"+name, "--for=condition=Ready", "--timeout=60s")
			return err
		})
	}
	manifest := filepath.Join(t.TempDir(), "hello.json")
	if err := os.WriteFile(manifest, []byte(`{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"hello"},"spec":{"selector":{"matchLabels":{"app":"hello"}},"template":{"metadata":{"labels":{"app":"hello"}},
			"spec":{"containers":[{"name":"hello","image":"skiff.local/hello:v1"}]}}}},
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"hello"},"spec":{"selector":{"app":"hello"},"ports":[{"port":80,"targetPort":8080}]}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	c.k(t, "apply", "-f", manifest)
	c.k(t, "rollout", "status", "daemonset/hello", "--timeout=90s")
	pods := strings.Fields(c.k(t, "get", "pods", "-o", `jsonpath={range .items[*]}{.spec.nodeName}={.status.podIP} {end}`))
	if len(pods) != 3 {
		t.Fatalf("pods are %v, want one a node", pods)
	}
	ips := map[string]string{}
	for _, p := range pods {
		node, ip, _ := strings.Cut(p, "=")
		ips[node] = ip
	}
	service := c.k(t, "get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	on := func(node string, args ...string) (string, error) {
		if m, ok := machines[node]; ok {
			out, err := m.on(args...).CombinedOutput()
			return string(out), err
		}
		return run(args[0], args[1:]...)
	}
	reach := func(nodes ...string) {
		t.Helper()
		for _, from := range nodes {
			urls := []string{"http://" + service + "/", "http://" + service + "/", "http://" + service + "/"}
			for _, to := range nodes {
				urls = append(urls, "http://"+ips[to]+":8080/")
			}
			for _, url := range urls {
				eventually(t, 30*time.Second, from+" reaches "+url, func() error {
					out, err := on(from, "curl", "-fsS", "-m", "5", url)
					if err == nil && !strings.Contains(out, "Hello") {
						err = fmt.Errorf("answer is %q", out)
					}
					return err
				})
			}
		}
	}
	reach("first", "one", "two")
	for _, want := range []struct{ node, to, by string }{
		{"first", "one", "via 192.168.233.2"}, {"first", "two", "-vx4"}, {"one", "first", "via 192.168.233.1"}, {"one", "two", "-vx4"}, {"two", "one", "-vx4"}, {"two", "first", "-vx4"},
	} {
		if out, err := on(want.node, "ip", "route", "get", ips[want.to]); err != nil || !strings.Contains(out, want.by) {
			t.Errorf("%s sends to %s's pods %s(%v), want %s", want.node, want.to, out, err, want.by)
		}
	}
	// The agent's process ends and comes again: nothing is lost meanwhile, and what was is put right.
	if err := agents["one"].end(t, syscall.SIGTERM); err != nil {
		t.Errorf("the agent ends with %v", err)
	}
	reach("first", "one", "two")
	if out, err := on("one", "sh", "-c", "ip route flush proto 83"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	again := start(t, machines["one"].on(skiff, "agent", "--data-dir", machines["one"].dir))
	again.await(t, "^node one of the cluster .* runs")
	reach("first", "one", "two")
	// A node goes.
	if err := agents["two"].end(t, syscall.SIGTERM); err != nil {
		t.Errorf("the agent ends with %v", err)
	}
	c.k(t, "delete", "node", "two")
	for _, node := range []string{"first", "one"} {
		eventually(t, 30*time.Second, "what led to the node's pods is gone", func() error {
			out, err := on(node, "sh", "-c", "ip route show proto 83; ip -br link")
			if err == nil && (strings.Contains(out, ips["two"][:strings.LastIndex(ips["two"], ".")]+".0/24") || strings.Contains(out, "-vx4")) {
				err = fmt.Errorf("there is %s", out)
			}
			return err
		})
	}
}
