package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	tool "github.com/skiff-k8s/skiff/host/iptables"
	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/iptables"
	"github.com/skiff-k8s/skiff/proxy/ipvs"
	"github.com/skiff-k8s/skiff/proxy/nftables"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

const (
	// patience is how long what is to become true may take, silence how long nobody must answer.
	patience = 30 * time.Second
	silence  = time.Second
	apiPort  = 8001
)

// cluster is a lab with an API server on its link and a proxy on each node.
type cluster struct {
	*lab
	client kubernetes.Interface
	api    string
	family int // 0: IPv4, 1: IPv6
	mode   mode
	serial int
}

// mode is in what the modes of proxies differ.
type mode struct {
	// open leaves alone what no Service has: it goes to where it is routed.
	open bool
	// far binds what begins on a node to the external traffic policy where it finds an endpoint there.
	far bool
	// loopback is whether node ports are open at it, of IPv4.
	loopback bool
}

func newCluster(t *testing.T, m mode) *cluster {
	t.Helper()
	l := newLab(t)
	srv := servertest.New(t)
	k, err := kubernetes.NewForConfig(srv.Config())
	l.must(err)
	c := &cluster{lab: l, client: k, mode: m, api: fmt.Sprintf("http://%s:%d", l.hosts["client"].ips[0], apiPort)}
	l.in(l.hosts["client"], func() {
		ln, err := net.Listen("tcp", fmt.Sprint(":", apiPort))
		l.must(err)
		h := &http.Server{Handler: srv}
		go func() { _ = h.Serve(ln) }() // until closed
		t.Cleanup(func() { h.Close() })
	})
	for i, name := range []string{"n1", "n2"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("z", i+1)}}}
		for _, ip := range l.hosts[name].ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
		_, err := k.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		l.must(err)
		_, err = k.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		l.must(err)
	}
	cidr := "kubernetes"
	_, err = k.NetworkingV1().ServiceCIDRs().Create(t.Context(), serviceCIDR(cidr), metav1.CreateOptions{})
	l.must(err)
	_, err = k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	l.must(err)
	return c
}

// proxies is what runs on each node. It returns what ends it on a node.
type proxies func(c *cluster, node string, where []string) (stop func())

// backend is what is common to those of all modes.
type backend interface {
	proxy.Backend
	Families() []corev1.IPFamily
}

// making makes a backend for a node.
type making func(c *cluster, node string, ports nodeports.Where, log *slog.Logger) (backend, error)

func onNftables(c *cluster, node string, ports nodeports.Where, log *slog.Logger) (backend, error) {
	return nftables.New(nftables.Config{Table: "skiff-lab", ServiceCIDRs: serviceCIDRs, PodCIDRs: podCIDRs, NodePorts: ports,
		NodeIPs: c.hosts[node].ips[:], Logger: log})
}

func onIPTables(v tool.Variant) making {
	return func(c *cluster, node string, ports nodeports.Where, log *slog.Logger) (backend, error) {
		return iptables.New(iptables.Config{ServiceCIDRs: serviceCIDRs, PodCIDRs: podCIDRs, NodePorts: ports,
			NodeIPs: c.hosts[node].ips[:], LocalhostNodePorts: true, Variant: &v, Logger: log})
	}
}

func onIPVS(c *cluster, node string, ports nodeports.Where, log *slog.Logger) (backend, error) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		c.t.Skip("needs a kernel with IPVS; run by make ipvs-guest")
	}
	return ipvs.New(ipvs.Config{ServiceCIDRs: serviceCIDRs, PodCIDRs: podCIDRs, NodePorts: ports, NodeIPs: c.hosts[node].ips[:], Logger: log})
}

// ours runs the proxy of this tree in a node's namespace.
func ours(on making) proxies {
	return func(c *cluster, node string, where []string) func() { return run(c, on, node, where) }
}

func run(c *cluster, on making, node string, where []string) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	log := slog.New(slog.NewTextHandler(testWriter{c.t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ports, err := nodeports.Parse(where)
	c.must(err)
	rules, err := on(c, node, ports, log)
	c.must(err)
	shared := informers.NewSharedInformerFactory(c.client, 0)
	px, err := proxy.New(proxy.Config{NodeName: node, Informers: shared, Backend: rules, Families: rules.Families(), Logger: log})
	c.must(err)
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
	c.must(err)
	px.SetNode(n)
	shared.StartWithContext(ctx)
	go func() {
		defer close(done)
		c.in(c.hosts[node], func() {
			if err := px.Run(ctx); err != nil {
				c.t.Error(err)
			}
		})
	}()
	c.must(px.WaitReady(c.t.Context()))
	return func() { cancel(); <-done; shared.Shutdown() }
}

// upstream runs kube-proxy in a node's namespace.
func upstream(binary, mode string) proxies {
	return func(c *cluster, node string, where []string) func() {
		dir := c.t.TempDir()
		kubeconfig := filepath.Join(dir, "kubeconfig")
		c.must(os.WriteFile(kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: lab
clusters: [{name: lab, cluster: {server: %q}}]
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
users: [{name: lab, user: {}}]
`, c.api), 0o600))
		if len(where) == 0 {
			where = []string{"all"}
		}
		c.start(c.hosts[node], &bytes.Buffer{}, binary, "--kubeconfig="+kubeconfig, "--hostname-override="+node, "--proxy-mode="+mode,
			"--cluster-cidr="+podCIDRs[0].String()+","+podCIDRs[1].String(), "--nodeport-addresses="+strings.Join(where, ","),
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
			"--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249")
		return func() {}
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func serviceCIDR(name string) (out *networkingv1.ServiceCIDR) {
	out = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, p := range serviceCIDRs {
		out.Spec.CIDRs = append(out.Spec.CIDRs, p.String())
	}
	return out
}

// vip is the n-th cluster IP of the family, ext the n-th address outside.
func (c *cluster) vip(n int) netip.Addr {
	return netip.MustParseAddr([2]string{fmt.Sprint("10.96.1.", n), fmt.Sprintf("fd00:10:96::1%02x", n)}[c.family])
}

func (c *cluster) ext(n int) netip.Addr {
	return netip.MustParseAddr([2]string{fmt.Sprint("203.0.113.", n), fmt.Sprintf("2001:db8:113::%x", n)}[c.family])
}

// where is an endpoint in the making: pod, and what is said of it.
type where struct {
	pod           string
	leaving, gone bool // serving while it terminates; neither
	zones, nodes  []string
	unready       bool
}

// service makes the n-th Service, of TCP and UDP, with one slice of endpoints.
func (c *cluster) service(n int, change func(*corev1.Service), eps ...where) string {
	c.t.Helper()
	c.serial++
	name := fmt.Sprintf("s%d-%d", n, c.serial)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: c.vip(n).String(), ClusterIPs: []string{c.vip(n).String()}, IPFamilies: []corev1.IPFamily{[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[c.family]},
		IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
		Ports: []corev1.ServicePort{{Name: "t", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(podPort)},
			{Name: "u", Protocol: corev1.ProtocolUDP, Port: 80, TargetPort: intstr.FromInt32(podPort)}},
	}}
	if change != nil {
		change(svc)
	}
	status := svc.Status
	made, err := c.client.CoreV1().Services("default").Create(c.t.Context(), svc, metav1.CreateOptions{})
	c.must(err)
	if len(status.LoadBalancer.Ingress) > 0 {
		made.Status = status
		_, err = c.client.CoreV1().Services("default").UpdateStatus(c.t.Context(), made, metav1.UpdateOptions{})
		c.must(err)
	}
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(c.t.Context(), c.slice(name, eps), metav1.CreateOptions{})
	c.must(err)
	return name
}

func (c *cluster) slice(service string, eps []where) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[c.family],
		Endpoints:   []discoveryv1.Endpoint{},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("t"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](podPort)},
			{Name: ptr.To("u"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](podPort)}}}
	for _, e := range eps {
		h := c.hosts[e.pod]
		ep := discoveryv1.Endpoint{Addresses: []string{h.ips[c.family].String()}, NodeName: &h.node, Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(!e.leaving && !e.gone && !e.unready), Serving: ptr.To(!e.gone && !e.unready), Terminating: ptr.To(e.leaving || e.gone)}}
		if len(e.zones)+len(e.nodes) > 0 {
			ep.Hints = &discoveryv1.EndpointHints{}
			for _, z := range e.zones {
				ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: z})
			}
			for _, n := range e.nodes {
				ep.Hints.ForNodes = append(ep.Hints.ForNodes, discoveryv1.ForNode{Name: n})
			}
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return s
}

// endpoints changes those of a Service.
func (c *cluster) endpoints(service string, eps ...where) {
	c.t.Helper()
	_, err := c.client.DiscoveryV1().EndpointSlices("default").Update(c.t.Context(), c.slice(service, eps), metav1.UpdateOptions{})
	c.must(err)
}

func (c *cluster) remove(service string) {
	c.t.Helper()
	c.must(c.client.DiscoveryV1().EndpointSlices("default").Delete(c.t.Context(), service, metav1.DeleteOptions{}))
	c.must(c.client.CoreV1().Services("default").Delete(c.t.Context(), service, metav1.DeleteOptions{}))
}

// wish is what is to become of requests: pods that answer, each at least once, or why none does.
type wish struct {
	from, network string
	to            netip.AddrPort
	by            netip.Addr // the client's address; not valid: any
	pods          string     // "a b", or refused, silent
	// source that pods see: own, or node for one of a node's; empty: any.
	source string
}

// expect waits until a wish is true, and checks that it stays so.
func (c *cluster) expect(w wish) {
	c.t.Helper()
	if w.network == "" {
		w.network = "tcp"
	}
	h := c.hosts[w.from]
	if w.from == "client" && !w.by.IsValid() {
		w.by = h.ips[c.family] // it has another
	}
	deadline := time.Now().Add(patience)
	not := w.pods == "refused" || w.pods == "silent"
	within := patience
	if w.pods == "silent" {
		within = silence
	}
	var last string
	for {
		seen, wrong := map[string]bool{}, ""
		tries := 1
		if !not {
			tries = 30 * len(strings.Fields(w.pods))
		}
		for i := 0; i < tries && wrong == "" && (not || i < 6 || len(seen) < len(strings.Fields(w.pods))); i++ {
			v := c.ask(h, w.network, w.by, w.to, min(within, 5*time.Second))
			last = v.String()
			switch {
			case not && v.not != w.pods && v.not != forbidden, !not && !slices.Contains(strings.Fields(w.pods), v.pod):
				wrong = last
			case w.source == "own" && v.source != h.ips[c.family] && v.source != w.by:
				wrong = last + ", not its own address"
			case w.source == "node" && c.nodeOf(v.source) == "":
				wrong = last + ", not an address of a node"
			}
			seen[v.pod] = true
		}
		if wrong == "" && (not || len(seen) == len(strings.Fields(w.pods))) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("%s %s → %s: %s (seen %v), want %s %s", w.from, w.network, w.to, last, seen, w.pods, w.source)
			return
		}
		time.Sleep(50 * time.Millisecond) // between looks at what nothing announces
	}
}

// nodeOf is the node that has an address, gateways of pods included.
func (c *cluster) nodeOf(a netip.Addr) (node string) {
	for _, n := range []string{"n1", "n2"} {
		c.in(c.hosts[n], func() {
			all, err := net.InterfaceAddrs()
			c.must(err)
			for _, x := range all {
				if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr() == a {
					node = n
				}
			}
		})
	}
	return node
}

func (c *cluster) at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func (c *cluster) node(n string, port uint16) netip.AddrPort {
	return c.at(c.hosts[n].ips[c.family], port)
}

// get asks for a Service's health.
func (c *cluster) get(from string, to netip.AddrPort) (code int, header http.Header, body string, err error) {
	k := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return c.dial(c.hosts[from], "tcp", netip.Addr{}, to, 5*time.Second)
	}}}
	r, err := k.Get("http://" + to.String() + "/healthz")
	if err != nil {
		return 0, nil, "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return r.StatusCode, r.Header, string(text), err
}
