package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// machineEnv tells the test binary that it runs in namespaces of its own.
const machineEnv = "SKIFF_E2E_MACHINE"

// onMachine runs a test in network and mount namespaces of its own, whose one link has these
// addresses. It returns false to whoever has started it there.
func onMachine(t *testing.T, addresses ...string) bool {
	t.Helper()
	binaries(t)
	if os.Getenv(machineEnv) == "" {
		cmd := exec.Command("unshare", "--net", "--mount", "--propagation", "private", "--", os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
		cmd.Env = append(os.Environ(), machineEnv+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatalf("in namespaces of its own: %v", err)
		}
		return false
	}
	commands := []string{"mount --make-rshared /", "ip link set lo up", "ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up"}
	for _, a := range addresses {
		p := netip.MustParsePrefix(a)
		flag, option := "-4", ""
		if p.Addr().Is6() {
			flag, option = "-6", " nodad"
		}
		commands = append(commands, "ip "+flag+" addr add "+a+" dev up0"+option, "ip "+flag+" route add default via "+p.Addr().Next().String()+" dev up0")
	}
	for _, c := range commands {
		f := strings.Fields(c)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	return true
}

func TestDualStack(t *testing.T) {
	if !onMachine(t, "192.168.131.1/24", "fd00:131::1/64") {
		return
	}
	c := upWith(t, "--pod-cidr", "10.247.0.0/16,fd00:247::/56", "--service-cidr", "10.103.0.0/16,fd00:103::/112")
	c.families(t, []string{"192.168.131.1", "fd00:131::1"}, []string{"10.247.0.0/24", "fd00:247::/64"}, []string{"10.103.0.0/16", "fd00:103::/112"})
}

func TestIPv6Only(t *testing.T) {
	if !onMachine(t, "fd00:131::1/64") {
		return
	}
	c := upWith(t, "--pod-cidr", "fd00:247::/56", "--service-cidr", "fd00:103::/112")
	c.families(t, []string{"fd00:131::1"}, []string{"fd00:247::/64"}, []string{"fd00:103::/112"})
}

// TestIPv6Nodes: pods on several nodes in namespaces reach each other, and Services.
func TestIPv6Nodes(t *testing.T) {
	if !onMachine(t, "fd00:131::1/64") {
		return
	}
	c := upWith(t, "--nodes", "2", "--pod-cidr", "fd00:247::/56", "--service-cidr", "fd00:103::/112")
	c.loadShell(t)
	c.k(t, "apply", "-f", "testdata/nodes.yaml")
	c.k(t, "rollout", "status", "daemonset/everywhere", "--timeout=180s")
	pods := c.on(t, "everywhere")
	if len(pods) != 2 {
		t.Fatalf("pods run on %v", pods)
	}
	service := c.k(t, "get", "service", "everywhere", "-o", "jsonpath={.spec.clusterIP}")
	port := c.k(t, "get", "service", "everywhere", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for from, list := range pods {
		name, _, _ := strings.Cut(list[0], " ")
		get := func(host, port string) string {
			return c.k(t, "exec", name, "-c", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+host+" "+port)
		}
		for to, list := range pods {
			toName, toIP, _ := strings.Cut(list[0], " ")
			if out := get(toIP, "8080"); !strings.Contains(out, toName) {
				t.Errorf("from a pod on %s to one on %s at %s: %q", from, to, toIP, out)
			}
			host := c.k(t, "get", "node", to, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
			if out := get(host, port); !strings.Contains(out, "everywhere") {
				t.Errorf("from a pod on %s to the node port of %s at %s: %q", from, to, host, out)
			}
		}
		if out := get(service, "80"); !strings.Contains(out, "everywhere") {
			t.Errorf("from a pod on %s to the Service at %s: %q", from, service, out)
		}
		if out := c.k(t, "logs", name, "-c", "shell"); !strings.Contains(out, "shell is here") {
			t.Errorf("logs of a pod on %s: %q", from, out)
		}
	}
}

// families checks that everything works over each family, and over no other.
func (c *cluster) families(t *testing.T, hosts, pods, services []string) {
	c.loadShell(t)
	c.k(t, "apply", "-f", "testdata/families.yaml")
	c.k(t, "wait", "--for=condition=Ready", "pod/server", "pod/client", "--timeout=120s")
	list := func(args ...string) []string { return strings.Fields(c.k(t, args...)) }

	node := list("get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
	if !slices.Equal(node, hosts) {
		t.Errorf("the node's addresses are %v, want %v", node, hosts)
	}
	ranges := list("get", "nodes", "-o", "jsonpath={.items[0].spec.podCIDRs[*]}")
	if !slices.Equal(ranges, pods) {
		t.Errorf("the node's ranges are %v, want %v", ranges, pods)
	}
	podIPs := list("get", "pod", "server", "-o", "jsonpath={.status.podIPs[*].ip}")
	within(t, "the pod's addresses", podIPs, pods)
	if got := list("get", "pod", "server", "-o", "jsonpath={.status.hostIPs[*].ip}"); !slices.Equal(got, hosts) {
		t.Errorf("status.hostIPs %v, want %v", got, hosts)
	}
	clientIPs := list("get", "pod", "client", "-o", "jsonpath={.status.podIPs[*].ip}")
	sh := func(command string) string { return c.k(t, "exec", "client", "--", "/bin/sh", "-c", command) }
	if got, want := strings.TrimSpace(sh("echo $POD_IPS $HOST_IPS")), strings.Join(clientIPs, ",")+" "+strings.Join(hosts, ","); got != want {
		t.Errorf("the downward API says %q, want %q", got, want)
	}
	hostsFile := sh("cat /etc/hosts")
	for _, ip := range clientIPs {
		if !strings.Contains(hostsFile, ip+"\tclient") {
			t.Errorf("/etc/hosts does not tell %s: %s", ip, hostsFile)
		}
	}
	clusterIPs := list("get", "service", "server", "-o", "jsonpath={.spec.clusterIPs[*]}")
	within(t, "the Service's addresses", clusterIPs, services)
	port := c.k(t, "get", "service", "server", "-o", "jsonpath={.spec.ports[0].nodePort}")

	get := func(host, port string) string {
		return sh("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 " + host + " " + port)
	}
	for i := range podIPs {
		for _, to := range []struct{ what, host, port string }{{"pod", podIPs[i], "8080"}, {"Service", clusterIPs[i], "80"}, {"node port", hosts[i], port}, {"host port", hosts[i], "18080"}} {
			eventually(t, 30*time.Second, to.what+" answers a pod at "+to.host, func() error {
				if out := get(to.host, to.port); !strings.Contains(out, "server") {
					return fmt.Errorf("%q", out)
				}
				return nil
			})
			if to.what == "pod" {
				continue
			}
			client := http.Client{Timeout: 5 * time.Second}
			resp, err := client.Get("http://" + net.JoinHostPort(to.host, to.port))
			if err != nil {
				t.Errorf("%s from the host: %v", to.what, err)
				continue
			}
			resp.Body.Close()
		}
	}
	for _, dns := range list("get", "service", "kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.clusterIPs[*]}") {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(dns, "53"))
		}}
		for name, want := range map[string][]string{"server": clusterIPs, "headless": podIPs} {
			got, err := r.LookupHost(t.Context(), name+".default.svc.cluster.local.")
			slices.Sort(got)
			if want = slices.Sorted(slices.Values(want)); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s at %s is %v (%v), want %v", name, dns, got, err, want)
			}
		}
	}
	if out := get("server.default.svc.cluster.local", "80"); !strings.Contains(out, "server") {
		t.Errorf("by name: %q", out)
	}
	if out := c.k(t, "logs", "client"); !strings.Contains(out, "shell is here") {
		t.Errorf("logs: %q", out)
	}
	addresses := list("get", "endpointslices", "-l", "kubernetes.io/service-name=server", "-o", "jsonpath={.items[*].endpoints[*].addresses[*]}")
	if slices.Sort(addresses); !slices.Equal(addresses, slices.Sorted(slices.Values(podIPs))) {
		t.Errorf("endpoint slices %v, want %v", addresses, podIPs)
	}
	if own := list("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIPs[*]}"); len(own) != 1 {
		t.Errorf("Service kubernetes has %v, want one address of the primary family", own)
	}
	// Again with what is stored.
	if out, err := run(c.skiff, "down", "--data-dir", c.dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	c.up(t)
	eventually(t, 60*time.Second, "pods run again with addresses of the same families", func() error {
		ips, err := c.try("get", "pod", "server", "-o", "jsonpath={.status.podIPs[*].ip}")
		if err != nil || len(strings.Fields(ips)) != len(podIPs) {
			return fmt.Errorf("%s: %v", ips, err)
		}
		return nil
	})
}

// within checks that there is one address in each range.
func within(t *testing.T, what string, ips, ranges []string) {
	t.Helper()
	if len(ips) != len(ranges) {
		t.Fatalf("%s are %v, want one in each of %v", what, ips, ranges)
	}
	for i := range ips {
		if !netip.MustParsePrefix(ranges[i]).Contains(netip.MustParseAddr(ips[i])) {
			t.Errorf("%s are %v, want one in each of %v", what, ips, ranges)
		}
	}
}
