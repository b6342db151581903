package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// nodes of the cluster as skiff node ls shows them.
func (c *cluster) nodes(t testing.TB) string {
	t.Helper()
	out, err := run(c.skiff, "node", "ls", "--data-dir", c.dir)
	if err != nil {
		t.Fatalf("node ls: %v", err)
	}
	return out
}

// further are the names of the nodes in namespaces.
func (c *cluster) further(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.dir, "run", "netns"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// fromNode asks over HTTP from a further node's network namespace.
func (c *cluster) fromNode(node, host, port string) (string, error) {
	cmd := exec.Command("nsenter", "--net="+filepath.Join(c.dir, "run", "netns", node), busybox, "nc", "-w", "5", host, port)
	cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
	out, err := cmd.Output()
	return string(out), err
}

// on are the pods of an app by their node.
func (c *cluster) on(t testing.TB, app string) map[string][]string {
	t.Helper()
	out := c.k(t, "get", "pods", "-l", "app="+app, "-o", `jsonpath={range .items[?(@.status.phase=="Running")]}{.spec.nodeName} {.metadata.name} {.status.podIP}{"\n"}{end}`)
	pods := map[string][]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 {
			pods[f[0]] = append(pods[f[0]], f[1]+" "+f[2])
		}
	}
	return pods
}

func TestNodes(t *testing.T) {
	c := upWith(t, "--nodes", "3")
	further := c.further(t)
	if len(further) != 2 {
		t.Fatalf("further nodes: %v", further)
	}
	c.loadShell(t)
	c.k(t, "apply", "-f", "testdata/nodes.yaml")
	c.k(t, "rollout", "status", "daemonset/everywhere", "--timeout=180s")
	c.k(t, "rollout", "status", "deployment/spread", "--timeout=180s")

	t.Run("nodes share the machine", func(t *testing.T) {
		var cpu, memory int64
		for line := range strings.Lines(c.k(t, "get", "nodes", "-o", `jsonpath={range .items[*]}{.status.allocatable.cpu} {.status.allocatable.memory}{"\n"}{end}`)) {
			f := strings.Fields(line)
			a, errA := resource.ParseQuantity(f[0])
			b, errB := resource.ParseQuantity(f[1])
			if errA != nil || errB != nil {
				t.Fatalf("%q: %v, %v", line, errA, errB)
			}
			cpu, memory = cpu+a.MilliValue(), memory+b.Value()
		}
		var info syscall.Sysinfo_t
		if err := syscall.Sysinfo(&info); err != nil {
			t.Fatal(err)
		}
		total := int64(info.Totalram) * int64(info.Unit)
		if most := int64(runtime.NumCPU()) * 1000; cpu > most || cpu < most*9/10 {
			t.Errorf("the nodes allocate %d mCPU of %d", cpu, most)
		}
		if memory > total || memory < total/2 {
			t.Errorf("the nodes allocate %d bytes of %d", memory, total)
		}
	})
	pods := c.on(t, "everywhere")
	t.Run("a DaemonSet runs on each", func(t *testing.T) {
		for node, list := range pods {
			if len(list) != 1 {
				t.Errorf("%s runs %v", node, list)
			}
		}
		if len(pods) != 3 {
			t.Errorf("pods run on %v", pods)
		}
	})
	t.Run("spread pods run on each", func(t *testing.T) {
		if spread := c.on(t, "spread"); len(spread) != 3 {
			t.Errorf("pods run on %v", spread)
		}
	})
	ip := c.k(t, "get", "service", "everywhere", "-o", "jsonpath={.spec.clusterIP}")
	port := c.k(t, "get", "service", "everywhere", "-o", "jsonpath={.spec.ports[0].nodePort}")
	t.Run("pods reach pods, Services and names from each node", func(t *testing.T) {
		for node, list := range pods {
			name, _, _ := strings.Cut(list[0], " ")
			for other, to := range pods {
				toName, toIP, _ := strings.Cut(to[0], " ")
				out := c.k(t, "exec", name, "-c", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+toIP+" 8080")
				if !strings.Contains(out, toName) {
					t.Errorf("from %s to %s: %q", node, other, out)
				}
			}
			for _, host := range []string{ip, "everywhere.default.svc.cluster.local"} {
				seen := map[string]bool{}
				eventually(t, 60*time.Second, "every endpoint answers on "+node, func() error {
					out := c.k(t, "exec", name, "-c", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+host+" 80")
					for _, to := range pods {
						if toName, _, _ := strings.Cut(to[0], " "); strings.Contains(out, toName) {
							seen[toName] = true
						}
					}
					if len(seen) < 3 {
						return fmt.Errorf("%s: %d answered; last: %q", host, len(seen), out)
					}
					return nil
				})
			}
		}
	})
	t.Run("nodes reach pods and Services", func(t *testing.T) {
		for other, to := range pods {
			_, toIP, _ := strings.Cut(to[0], " ")
			if body := get(t, "http://"+toIP+":8080/"); !strings.Contains(body, "everywhere-") {
				t.Errorf("from the host to %s: %q", other, body)
			}
			for _, node := range further {
				if out, err := c.fromNode(node, toIP, "8080"); err != nil || !strings.Contains(out, "everywhere-") {
					t.Errorf("from %s to %s: %q, %v", node, other, out, err)
				}
			}
		}
		first := strings.Fields(c.k(t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))[0]
		for range 6 { // endpoints are chosen at random
			if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "everywhere-") {
				t.Errorf("the service answers %q on the host", body)
			}
			for _, node := range further {
				for _, to := range [][2]string{{ip, "80"}, {c.address(t, node), port}, {c.address(t, first), port}} {
					if out, err := c.fromNode(node, to[0], to[1]); err != nil || !strings.Contains(out, "everywhere-") {
						t.Errorf("from %s to the service at %v: %q, %v", node, to, out, err)
					}
				}
				if body := get(t, "http://"+c.address(t, node)+":"+port+"/"); !strings.Contains(body, "everywhere-") {
					t.Errorf("node port of %s answers %q on the host", node, body)
				}
			}
		}
	})
	t.Run("logs and exec on each node", func(t *testing.T) {
		for node, list := range pods {
			name, _, _ := strings.Cut(list[0], " ")
			if out := c.k(t, "logs", name, "-c", "shell"); out != "shell is here\n" {
				t.Errorf("logs on %s: %q", node, out)
			}
			if out := c.k(t, "exec", name, "-c", "shell", "--", "echo", "hi"); out != "hi\n" {
				t.Errorf("exec on %s: %q", node, out)
			}
		}
	})
	t.Run("kill -9 and up", func(t *testing.T) {
		before := c.restarts(t)
		for _, node := range further {
			c.killAgent(t, node)
		}
		if out, err := c.fromNode(further[0], ip, "80"); err != nil || !strings.Contains(out, "everywhere-") {
			t.Errorf("without agents the service answers %q, %v", out, err)
		}
		c.up(t)
		if after := c.restarts(t); after != before {
			t.Errorf("before:\n%safter:\n%s", before, after)
		}
	})
	t.Run("node add", func(t *testing.T) { nodeAdd(t, c) })
	t.Run("node rm drains", func(t *testing.T) {
		gone := further[0]
		if out, err := run(c.skiff, "node", "rm", gone, "--data-dir", c.dir, "--timeout=2m"); err != nil {
			t.Fatalf("node rm: %v\n%s", err, out)
		}
		c.k(t, "rollout", "status", "deployment/spread", "--timeout=180s")
		if out := c.k(t, "get", "nodes", "-o", "name"); strings.Contains(out, "/"+gone+"\n") {
			t.Errorf("still there:\n%s", out)
		}
		if out := c.k(t, "get", "pods", "-A", "--field-selector=spec.nodeName="+gone, "-o", "name"); out != "" {
			t.Errorf("its pods are left:\n%s", out)
		}
		id, _, err := identity(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, left := range traces(t, filepath.Join(c.dir, "nodes", gone), "skiff-"+id[:8]+"/nodes/"+gone) {
			t.Errorf("left behind: %s", left)
		}
		if _, err := os.Stat(filepath.Join(c.dir, "run", "netns", gone)); !os.IsNotExist(err) {
			t.Errorf("its namespace is left: %v", err)
		}
		if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "everywhere-") {
			t.Errorf("the service answers %q", body)
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		first := strings.TrimSpace(c.k(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
		for _, m := range []struct {
			args []string
			want []string
		}{
			{[]string{"node", "rm", "none"}, []string{"none", "skiff node ls"}},
			{[]string{"node", "rm", first}, []string{first, "skiff down"}},
			{[]string{"node", "add", further[1]}, []string{further[1], "taken"}},
			{[]string{"node", "add", "Not_A_Name"}, []string{"Not_A_Name"}},
			{[]string{"node", "add", "x", "--taints", "a=b"}, []string{"--taints", "a=b"}},
			{[]string{"node", "add", "x", "--labels", "-a=b"}, []string{"label", "-a"}},
			{[]string{"up", "--detach", "--nodes", "1"}, []string{"--nodes 1", "skiff node rm"}},
			{[]string{"up", "--detach", "--nodes", "0"}, []string{"--nodes 0"}},
			{[]string{"up", "--detach", "--pod-cidr", "10.9.0.0/16"}, []string{"--pod-cidr", "10.9.0.0/16", "stays"}},
			{[]string{"image", "ls", "--node", "none"}, []string{"--node none"}},
		} {
			oneLine(t, exec.Command(c.skiff, append(m.args, "--data-dir", c.dir)...), m.want)
		}
	})
}

// nodeAdd adds a node that only who tolerates it is scheduled to, drains it against a budget, and takes it away.
func nodeAdd(t *testing.T, c *cluster) {
	if out, err := run(c.skiff, "node", "add", "special", "--labels", "tier=gold,node-role.kubernetes.io/special=", "--taints", "only=special:NoSchedule", "--data-dir", c.dir); err != nil {
		t.Fatalf("node add: %v\n%s", err, out)
	}
	if out := c.nodes(t); !strings.Contains(out, "special") || strings.Contains(out, "NotReady") {
		t.Errorf("node ls:\n%s", out)
	}
	out := c.k(t, "get", "node", "special", "-o", `jsonpath={.metadata.labels.tier} {.metadata.labels} {.spec.taints}`)
	for _, want := range []string{"gold ", "node-role.kubernetes.io/special", `"effect":"NoSchedule"`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	eventually(t, 60*time.Second, "the share of each node is a quarter", func() error {
		for _, q := range strings.Fields(c.k(t, "get", "nodes", "-o", "jsonpath={.items[*].status.capacity.cpu}")) {
			if cpu, err := resource.ParseQuantity(q); err != nil || cpu.MilliValue() != int64(runtime.NumCPU())*1000/4 {
				return fmt.Errorf("a node has %s CPUs (%v)", q, err)
			}
		}
		return nil
	})
	bare := []string{"run", "bare", "--image=skiff.local/hello:v1", "--restart=Never", "--overrides", `{"spec":{"nodeName":"special","terminationGracePeriodSeconds":1}}`}
	c.k(t, bare...)
	c.k(t, "wait", "pod/bare", "--for=condition=Ready", "--timeout=180s")
	oneLine(t, exec.Command(c.skiff, "node", "rm", "special", "--data-dir", c.dir), []string{"default/bare", "--force"})
	c.k(t, "create", "pdb", "bare", "--selector=run=bare", "--min-available=1")
	eventually(t, 60*time.Second, "the budget is counted", func() error {
		if n := c.k(t, "get", "pdb", "bare", "-o", "jsonpath={.status.currentHealthy}"); n != "1" {
			return fmt.Errorf("healthy: %q", n)
		}
		return nil
	})
	oneLine(t, exec.Command(c.skiff, "node", "rm", "special", "--force", "--timeout=2s", "--data-dir", c.dir), []string{"default/bare", "disruption budget", "uncordon special"})
	c.k(t, "delete", "pdb", "bare")
	if out, err := run(c.skiff, "node", "rm", "special", "--force", "--data-dir", c.dir); err != nil {
		t.Fatalf("node rm: %v\n%s", err, out)
	}
}

// address of a node.
func (c *cluster) address(t testing.TB, node string) string {
	t.Helper()
	return c.k(t, "get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
}

func (c *cluster) killAgent(t testing.TB, node string) {
	t.Helper()
	(&cluster{dir: filepath.Join(c.dir, "nodes", node)}).kill(t, "node")
}

// restarts tells whether containers of the pods on all nodes are those of before.
func (c *cluster) restarts(t testing.TB) string {
	t.Helper()
	return c.k(t, "get", "pods", "--sort-by=.metadata.name", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.podIP} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
}

// TestReboot simulates one: processes, mounts, namespaces, links, tables and control groups are gone.
func TestReboot(t *testing.T) {
	c := upWith(t, "--nodes", "2")
	c.loadShell(t)
	c.k(t, "apply", "-f", "testdata/nodes.yaml")
	c.k(t, "scale", "deployment/spread", "--replicas=2")
	c.k(t, "rollout", "status", "daemonset/everywhere", "--timeout=180s")
	c.k(t, "run", "once", "--image=test.local/shell:v1", "--restart=Never", "--", "/bin/sh", "-c", "exit 0")
	c.k(t, "wait", "pod/once", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
	c.reboot(t)
	c.up(t)
	for _, what := range []string{"daemonset/everywhere", "deployment/spread"} {
		c.k(t, "rollout", "status", what, "--timeout=180s")
	}
	pods := c.on(t, "everywhere")
	if len(pods) != 2 {
		t.Fatalf("pods run on %v", pods)
	}
	for n, list := range pods {
		_, ip, _ := strings.Cut(list[0], " ")
		if body := get(t, "http://"+ip+":8080/"); !strings.Contains(body, "everywhere-") {
			t.Errorf("on %s: %q", n, body)
		}
	}
	if out := c.k(t, "get", "pod", "once", "-o", "jsonpath={.status.phase}"); out != "Succeeded" {
		t.Errorf("a pod that was done is %s", out)
	}
}

// reboot ends all that a reboot would, and leaves the files.
func (c *cluster) reboot(t *testing.T) {
	t.Helper()
	id, bridge, err := identity(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	group := "skiff-" + id[:8]
	eventually(t, 60*time.Second, "all processes end", func() error {
		var left []string
		for _, trace := range traces(t, c.dir, group) {
			var pid int
			if n, _ := fmt.Sscanf(trace, "/proc/%d/cmdline", &pid); n == 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				left = append(left, trace)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	script := `
		awk '{print $2}' /proc/self/mounts | grep ^$0/ | sort -r | while read m; do umount -l "$m" || exit 1; done || exit 1
		for l in $(ip -o link | awk -F': ' '{print $2}' | sed 's/@.*//' | grep ^$1); do ip link del "$l" 2>/dev/null; done
		nft list tables | grep " $1" | while read t; do nft delete $t || exit 1; done || exit 1
		for d in $(find /sys/fs/cgroup -maxdepth 2 -name $2); do find "$d" -depth -type d -exec rmdir {} + ; done
		find $0 -name boot_id | while read f; do echo another > "$f"; done`
	if out, err := exec.Command("/bin/bash", "-c", script, c.dir, bridge, group).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run("ip", "-br", "link"); err != nil || strings.Contains(out, bridge) {
		t.Fatalf("links are left: %v\n%s", err, out)
	}
}

// TestSideBySide runs two clusters on one host.
func TestSideBySide(t *testing.T) {
	a := upFrom(t, "one", func(string) {}, "--nodes", "2")
	web := func(c *cluster) {
		c.k(t, "create", "deployment", "web", "--image=skiff.local/hello:v1", "--replicas=2", "--port=8080")
		c.k(t, "expose", "deployment", "web", "--port=80", "--target-port=8080")
		c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
	}
	web(a) // before the other is there, whose traces are compared with what was there
	b := upFrom(t, "two", func(string) {}, "--nodes", "2")
	web(b)
	ips := map[*cluster]string{}
	for _, c := range []*cluster{a, b} {
		ips[c] = c.k(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		for range 4 {
			if body := get(t, "http://"+ips[c]+"/"); !strings.Contains(body, "web-") {
				t.Errorf("%s answers %q", c.name, body)
			}
		}
	}
	if ips[a] == ips[b] {
		t.Errorf("both Services have %s", ips[a])
	}
	taken := strings.TrimSpace(a.k(t, "get", "nodes", "-o", "jsonpath={.items[0].spec.podCIDR}"))
	for _, m := range []struct {
		args []string
		want []string
	}{
		{[]string{"--pod-cidr", "10.244.0.0/16"}, []string{"--pod-cidr", "10.244.0.0/16", "\"one\""}},
		{[]string{"--service-cidr", "10.96.0.0/16"}, []string{"--service-cidr", "10.96.0.0/16", "\"one\""}},
		{[]string{"--pod-cidr", taken}, []string{"--pod-cidr", taken}},
		{[]string{"--api-port", "6443"}, []string{"--api-port", "6443", "\"one\""}},
		{[]string{"--kubelet-port", "10250"}, []string{"--kubelet-port", "10250", "\"one\""}},
	} {
		oneLine(t, exec.Command(a.skiff, append([]string{"up", "--detach", "--name", "three", "--data-dir", filepath.Join(t.TempDir(), "d")}, m.args...)...), m.want)
	}
	// The end of one is nothing to the other.
	if out, err := run(b.skiff, "down", "--data-dir", b.dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	if body := get(t, "http://"+ips[a]+"/"); !strings.Contains(body, "web-") {
		t.Errorf("%s answers %q", a.name, body)
	}
	b.up(t)
	b.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
	if body := get(t, "http://"+ips[b]+"/"); !strings.Contains(body, "web-") {
		t.Errorf("%s answers %q", b.name, body)
	}
}
