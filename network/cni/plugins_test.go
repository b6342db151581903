package cni

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

// debian is where the package containernetworking-plugins puts them.
const debian = "/usr/lib/cni"

// host is a network namespace that stands for a machine; plugins are run in it.
type host struct {
	t   *testing.T
	net *Network
	dir string
	ns  netns.NsHandle
}

// newHost moves the test's thread into a namespace of its own, which plugins inherit.
func newHost(t *testing.T, plugins string) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces; run by make test")
	}
	if _, err := os.Stat(plugins + "/bridge"); err != nil {
		t.Fatalf("no CNI plugins: %v; apt install containernetworking-plugins", err)
	}
	runtime.LockOSThread() // never unlocked: the namespace ends with the thread
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	h := &host{t: t, dir: t.TempDir(), ns: ns}
	h.sh("ip link set lo up; ip addr add 192.0.2.7/32 dev lo")
	if h.net, err = New(Config{ConfDir: h.dir, BinDirs: []string{plugins}, StateDir: t.TempDir(), Logger: slog.Default()}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) sh(script string) string {
	h.t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

func (h *host) conf(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.dir+"/10-test.conflist", []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := h.net.Ready(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

type sandbox struct {
	Sandbox
	name string
	ips  []netip.Addr
}

// pod attaches a namespace and serves its name at port 8080 there.
func (h *host) pod(id string, ports ...Port) *sandbox {
	h.t.Helper()
	name := fmt.Sprintf("skiff-cni-%d-%s", os.Getpid(), id)
	h.sh("ip netns add " + name + "; ip -n " + name + " link set lo up")
	h.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	s := &sandbox{name: name, Sandbox: Sandbox{ID: id, Namespace: "ns", Name: id, NetNS: "/run/netns/" + name, Ports: ports}}
	var err error
	if s.ips, err = h.net.Attach(h.t.Context(), s.Sandbox); err != nil {
		h.t.Fatal(err)
	}
	h.in(name, func() {
		l, err := net.Listen("tcp", ":8080")
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(id))
				c.Close()
			}
		}()
	})
	return s
}

// in runs f on this thread in a namespace.
func (h *host) in(name string, f func()) {
	h.t.Helper()
	ns, err := netns.GetFromName(name)
	if err != nil {
		h.t.Fatal(err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		h.t.Fatal(err)
	}
	f()
	if err := netns.Set(h.ns); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) ask(to string) (string, error) {
	c, err := net.DialTimeout("tcp", to, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func (h *host) want(to, who string) {
	h.t.Helper()
	if got, err := h.ask(to); err != nil || got != who {
		h.t.Errorf("%s: answered by %q, %v, want %q", to, got, err, who)
	}
}

func at(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }

// TestDebianBridge is what kubeadm's users write: bridge, host-local, portmap and a bandwidth limit.
func TestDebianBridge(t *testing.T) {
	h := newHost(t, debian)
	h.conf(`{"cniVersion":"1.0.0","name":"debian","plugins":[
		{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"` + t.TempDir() + `",
			"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
		{"type":"portmap","capabilities":{"portMappings":true},"snat":true},
		{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`)
	if !h.net.MapsPorts() {
		t.Error("portmap is not seen")
	}
	a := h.pod("a", Port{HostPort: 8888, ContainerPort: 8080, Protocol: "tcp"})
	b := h.pod("b")
	if len(a.ips) != 2 || !a.ips[0].Is4() || !a.ips[1].Is6() {
		t.Fatalf("got %v, want an address of each family", a.ips)
	}
	h.want(at(a.ips[0], 8080), "a")
	h.in(b.name, func() { h.want(at(a.ips[0], 8080), "a"); h.want(at(a.ips[1], 8080), "a") })
	h.want("192.0.2.7:8888", "a")
	h.in(b.name, func() { h.want("192.0.2.7:8888", "a") })
	limited := Sandbox{ID: "c", Ingress: 1e6, NetNS: b.NetNS}
	h.sh("ip -n " + b.name + " link del eth0")
	if err := h.net.Detach(t.Context(), "b", b.NetNS); err != nil {
		t.Fatal(err)
	}
	if _, err := h.net.Attach(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	if out := h.sh("tc qdisc show"); !strings.Contains(out, "tbf") || !strings.Contains(out, "rate 1Mbit") {
		t.Errorf("queues are %s, want a limit of 1Mbit", out)
	}
	for _, id := range []string{"a", "c"} {
		if err := h.net.Detach(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.ask("192.0.2.7:8888"); err == nil {
		t.Error("a host port outlives its sandbox")
	}
}

// TestDebianPTP is a network of another kind, by the older form of configuration.
func TestDebianPTP(t *testing.T) {
	h := newHost(t, debian)
	h.conf(`{"cniVersion":"0.4.0","name":"p2p","plugins":[{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"` + t.TempDir() + `","subnet":"10.78.0.0/29","routes":[{"dst":"0.0.0.0/0"}]}},{"type":"loopback"}]}`)
	a, b := h.pod("a"), h.pod("b")
	h.sh("sysctl -qw net.ipv4.ip_forward=1")
	h.want(at(a.ips[0], 8080), "a")
	h.in(b.name, func() { h.want(at(a.ips[0], 8080), "a") })
	// Again: CHECK finds all in order, and nothing changes.
	if again, err := h.net.Attach(t.Context(), a.Sandbox); err != nil || fmt.Sprint(again) != fmt.Sprint(a.ips) {
		t.Errorf("attached again: %v, %v, want %v", again, err, a.ips)
	}
	// A link that was taken away is made anew.
	h.sh("ip -n " + a.name + " link del eth0")
	again, err := h.net.Attach(t.Context(), a.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	h.want(at(again[0], 8080), "a")

	// The range is used up: the plugin's own words come through, and nothing stays behind.
	for i := range 3 {
		h.pod(fmt.Sprint("more", i))
	}
	name := fmt.Sprintf("skiff-cni-%d-last", os.Getpid())
	h.sh("ip netns add " + name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	_, err = h.net.Attach(t.Context(), Sandbox{ID: "last", NetNS: "/run/netns/" + name})
	if err == nil || !strings.Contains(err.Error(), "no IP addresses available in range set") || strings.ContainsAny(err.Error(), "\n") {
		t.Errorf("error is %v, want host-local's", err)
	}
	if h.net.Attached("last") {
		t.Error("what failed is attached")
	}
	if err := h.net.Collect(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if out := h.sh("ip -o link show type veth"); strings.Count(out, "\n") != 1 {
		t.Errorf("links are %s, want that of a only", out)
	}
}

// TestNewestPlugins is specification 1.1: plugins say whether they can serve, and are told which
// sandboxes are left.
func TestNewestPlugins(t *testing.T) {
	plugins := os.Getenv("SKIFF_CNI_PLUGINS")
	if plugins == "" {
		t.Skip("SKIFF_CNI_PLUGINS is not set; run by make -C test/upstream/cni")
	}
	h := newHost(t, plugins)
	data := t.TempDir()
	h.conf(`{"cniVersion":"1.1.0","cniVersions":["1.0.0","1.1.0"],"name":"newest","plugins":[
		{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"` + data + `",
			"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
		{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true},"snat":true}]}`)
	a := h.pod("a", Port{HostPort: 8888, ContainerPort: 8080, Protocol: "tcp"})
	b := h.pod("b")
	h.want(at(a.ips[0], 8080), "a")
	h.in(b.name, func() { h.want(at(a.ips[0], 8080), "a"); h.want(at(a.ips[1], 8080), "a") })
	h.want("192.0.2.7:8888", "a")
	if again, err := h.net.Attach(t.Context(), a.Sandbox); err != nil || fmt.Sprint(again) != fmt.Sprint(a.ips) {
		t.Errorf("attached again: %v, %v, want %v", again, err, a.ips)
	}
	if err := h.net.Collect(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(data + "/newest/10.*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != a.ips[0].String() {
		t.Errorf("addresses taken are %v, %v, want that of a only", left, err)
	}
	h.want(at(a.ips[0], 8080), "a")
}
