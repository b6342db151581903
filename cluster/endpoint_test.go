package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":              "192.0.2.1:6443",
		"192.0.2.1:443":          "192.0.2.1:443",
		"k8s.example.com":        "k8s.example.com:6443",
		"k8s.example.com:8443":   "k8s.example.com:8443",
		"2001:db8::1":            "[2001:db8::1]:6443",
		"[2001:db8::1]:443":      "[2001:db8::1]:443",
		"":                       "",
		"0.0.0.0":                "",
		"127.0.0.1:6443":         "",
		"a b":                    "",
		"https://192.0.2.1:6443": "",
		"192.0.2.1:0":            "",
		"192.0.2.1:70000":        "",
	} {
		got, err := parseEndpoint(in, 6443)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", in, got, err, want)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "--control-plane-endpoint="+in) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestEvenMembers(t *testing.T) {
	for n, want := range map[int]string{1: "", 2: "the loss of 0, as 1", 3: "", 4: "the loss of 1, as 3", 5: ""} {
		if got := evenMembers(n); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%d members: %q", n, got)
		}
	}
}

// endpointConfig is a cluster behind an endpoint.
func endpointConfig(t *testing.T) *Config {
	t.Helper()
	c, err := newConfig("default")
	if err != nil {
		t.Fatal(err)
	}
	c.NodeName, c.NodeIPs, c.ControlPlaneEndpoint = "m1", []netip.Addr{netip.MustParseAddr("192.0.2.11")}, "k8s.example.com:443"
	return c
}

// TestEndpointEverywhere: what others are told is the endpoint, what is here is asked here.
func TestEndpointEverywhere(t *testing.T) {
	c, dir := endpointConfig(t), t.TempDir()
	if err := c.save(dir); err != nil {
		t.Fatal(err)
	}
	creds, err := EnsureCredentials(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	p := Paths{dir}
	file, err := clientcmd.LoadFromFile(p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, cl := range file.Clusters {
		if cl.Server != "https://k8s.example.com:443" {
			t.Errorf("the kubeconfig leads to %s", cl.Server)
		}
	}
	if admin, err := AdminConfig(p); err != nil || admin.Host != c.Server() {
		t.Errorf("this host's own commands ask %v (%v)", admin, err)
	}
	if got := c.join(creds).Server; got != "https://k8s.example.com:443" {
		t.Errorf("nodes are led to %s", got)
	}
	if n := c.node(); n.Server != c.Server() {
		t.Errorf("the node beside it asks %s", n.Server)
	}
	serving, err := certificate(creds.APIServer)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"k8s.example.com", "192.0.2.11", "127.0.0.1"} {
		if err := serving.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	q := c.quorum(p)
	if q == nil || q.Peer.String() != "192.0.2.11:2380" || q.Client.String() != "192.0.2.11:2379" {
		t.Fatalf("etcd's member is %+v", q)
	}
	if ports := c.ports(); !slices.Contains(ports, 2379) || !slices.Contains(ports, 2380) {
		t.Errorf("ports %v", ports)
	}
	c.ControlPlaneEndpoint = ""
	if c.quorum(p) != nil || c.kubeconfigServer() != c.Server() {
		t.Error("a cluster without an endpoint has several members")
	}
}

// TestTakeJoined: what the user says of a cluster that is joined must be so.
func TestTakeJoined(t *testing.T) {
	external := &ExternalEtcd{Servers: []string{"https://192.0.2.1:2379"}}
	for _, c := range []struct {
		name, want string
		change     func(*Config)
		opts       UpOptions
	}{
		{name: "nothing said"},
		{name: "same endpoint", opts: UpOptions{Reach: Reach{Endpoint: "k8s.example.com:443"}}},
		{name: "other endpoint", opts: UpOptions{Reach: Reach{Endpoint: "other.example.com"}}, want: "the cluster has k8s.example.com:443"},
		{name: "etcd of others, not here", opts: UpOptions{Etcd: external}, want: "--etcd-servers"},
		{name: "etcd of others", change: func(c *Config) { c.Etcd = external }, want: "give --etcd-servers https://192.0.2.1:2379"},
		{name: "etcd of others, said", change: func(c *Config) { c.Etcd = external }, opts: UpOptions{Etcd: external}},
		{name: "address of pods", change: func(c *Config) { c.NodeIPs[0] = netip.MustParseAddr("10.244.1.1") }, want: "is among those of the cluster's pods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := endpointConfig(t)
			if c.change != nil {
				c.change(cfg)
			}
			err := cfg.takeJoined(c.opts)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestJoinControlPlaneFlags: what is lacking is said before anything is asked or made.
func TestJoinControlPlaneFlags(t *testing.T) {
	key, token := strings.Repeat("0a", 32), "abcdef.0123456789abcdef@sha256:"+strings.Repeat("0a", 32)
	own := t.TempDir()
	if err := endpointConfig(t).save(own); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want, dir string
		join            ControlPlaneJoin
	}{
		{"no key", "--certificate-key is required", "", ControlPlaneJoin{Server: "192.0.2.1", Token: token}},
		{"bad key", "--certificate-key is no key", "", ControlPlaneJoin{Server: "192.0.2.1", Token: token, CertificateKey: "12"}},
		{"no server", "--server is required", "", ControlPlaneJoin{Token: token, CertificateKey: key}},
		{"no token", "--token is required", "", ControlPlaneJoin{Server: "192.0.2.1", CertificateKey: key}},
		{"no hash", "has no hash of the cluster's CA", "", ControlPlaneJoin{Server: "192.0.2.1", Token: token[:23], CertificateKey: key}},
		{"own cluster", "holds a control plane that others join", own, ControlPlaneJoin{Server: "192.0.2.1", Token: token, CertificateKey: key}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := UpOptions{Name: "default", Dir: c.dir, Join: c.join, Progress: t.Output()}
			if o.Dir == "" {
				o.Dir = t.TempDir()
			}
			err := o.joinControlPlane(t.Context(), newSteps(t.Output()))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
