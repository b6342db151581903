package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/cluster/clusterfile"
)

// parsed is a cluster file that lies in dir.
func parsed(t *testing.T, dir, text string) *clusterfile.File {
	t.Helper()
	f, err := clusterfile.Parse(filepath.Join(dir, "c.yaml"), []byte("apiVersion: skiff.dev/v1alpha1\nkind: Cluster\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fileConfig() *Config {
	return &Config{Name: "c", NodeName: "first", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, APIPort: 6443, KubeletPort: 10250,
		Labels: map[string]string{"role": "front"},
		Nodes: []NodeSpec{
			{Name: "a", Labels: map[string]string{"x": "y"}}, {Name: "first-2"}, {Name: "first-3"},
			{Name: "first-4", Labels: map[string]string{"pool": "w"}}, {Name: "gone", Leaving: true},
		}}
}

// TestNodesFollowTheFile: what is there stays where it is alike, what is missing comes, what is too much goes.
func TestNodesFollowTheFile(t *testing.T) {
	for _, tt := range []struct{ name, file, nodes, surplus string }{
		{"nothing said", "", "a first-2 first-3 first-4 gone-", ""},
		{"the first alone", "nodes: [{}]", "a first-2 first-3 first-4 gone-", "a first-2 first-3 first-4"},
		{"as it is", "nodes: [{}, {name: a}, {count: 2}, {labels: {pool: w}}]", "a first-2 first-3 first-4 gone-", ""},
		{"counted with the first", "nodes: [{count: 3}, {name: a}, {labels: {pool: w}}]", "a first-2 first-3 first-4 gone-", ""},
		{"one more", "nodes: [{}, {name: a}, {count: 3}, {labels: {pool: w}}]", "a first-2 first-3 first-4 gone- first-5", ""},
		{"one less", "nodes: [{}, {name: a}, {count: 1}, {labels: {pool: w}}]", "a first-2 first-3 first-4 gone-", "first-3"},
		{"others", "nodes: [{}, {name: b}, {labels: {pool: v}}]", "b a first-2 first-3 first-4 gone- first-5", "a first-2 first-3 first-4"},
		{"a name before those alike", "nodes: [{}, {}, {name: first-2}]", "first-2 first-3 a first-4 gone-", "a first-4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, f := fileConfig(), parsed(t, t.TempDir(), tt.file+"\n")
			if _, surplus, err := c.nodesOf(f, false); err != nil || !slices.Equal(surplus, strings.Fields(tt.surplus)) {
				t.Errorf("surplus %v, %v; want %s", surplus, err, tt.surplus)
			}
			if err := c.takeFile(f, false); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range c.Nodes {
				name := s.Name
				if s.Leaving {
					name += "-"
				}
				got = append(got, name)
			}
			slices.Sort(got)
			want := strings.Fields(tt.nodes)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("nodes %v, want %v", got, want)
			}
		})
	}
}

func TestWhatStaysIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("bad.yaml", "a: 1\nkind: [\n")
	write("empty/notes.txt", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used := netip.MustParseAddrPort(l.Addr().String()).Port()
	at := filepath.Join(dir, "c.yaml")
	for _, tt := range []struct{ file, want string }{
		{"network: {nodeIPs: [192.0.2.9]}", ":3: network.nodeIPs: cluster \"c\" was made with 192.0.2.1, which stays"},
		{"nodes: [{name: other}]", ":3: nodes[0].name: the first node is first, which stays"},
		{"nodes: [{labels: {}}]", ":3: nodes[0].labels: node first was registered with others; change them with kubectl label node first"},
		{"nodes: [{taints: [{key: a, effect: NoSchedule}]}]", ":3: nodes[0].taints: node first was registered with others; change them with kubectl taint node first"},
		{"nodes: [{}, {name: a, labels: {x: z}}]", ":3: nodes[1].labels: node a was registered with others"},
		{"nodes: [{}, {name: first}]", ":3: nodes[1].name: first is the first node"},
		{"ports: [{hostPort: 8080, nodePort: 1, node: nobody}]", ":3: ports[0].node: there is no node nobody"},
		{"ports: [{hostPort: 6443, nodePort: 1}]", ":3: ports[0].hostPort: 6443 is a port of the cluster itself"},
		{fmt.Sprintf("ports: [{hostPort: %d, nodePort: 1, listenAddress: 127.0.0.1}]", used), fmt.Sprintf(":3: ports[0].hostPort: listen on port %d/TCP: bind: address already in use", used)},
		{"images: [none.tar]", ":3: images[0]: " + filepath.Join(dir, "none.tar") + ": no such file or directory"},
		{"registries: {caFile: none.pem}", ":3: registries.caFile: " + filepath.Join(dir, "none.pem") + ": no such file"},
		{"registries: {caFile: bad.yaml}", ":3: registries.caFile: " + filepath.Join(dir, "bad.yaml") + " holds no PEM certificate"},
		{"manifests: [none.yaml]", ":3: manifests[0]: " + filepath.Join(dir, "none.yaml") + ": no such file or directory"},
		{"manifests: [empty]", ":3: manifests[0]: " + filepath.Join(dir, "empty") + " holds no .yaml, .yml or .json file"},
		{"manifests: [empty/notes.txt]", ":3: manifests[0]: " + filepath.Join(dir, "empty/notes.txt") + ": want a .yaml"},
		{"manifests:\n- bad.yaml", ":4: manifests[0]: " + filepath.Join(dir, "bad.yaml") + ":2: did not find"},
	} {
		c := fileConfig()
		if err := c.checkFile(parsed(t, dir, tt.file+"\n"), false, false); err == nil || !strings.HasPrefix(err.Error(), at+tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\ngot  %v\nwant %s%s", tt.file, err, at, tt.want)
		}
	}
	// What the cluster itself listens on is no obstacle, nor is what stays as it is.
	c := fileConfig()
	c.Ports = []PortMapping{{HostPort: used, NodePort: 2, Protocol: "TCP"}}
	if err := c.checkFile(parsed(t, dir, fmt.Sprintf("ports: [{hostPort: %d, nodePort: 1, listenAddress: 127.0.0.1}]\nnodes: [{name: first, labels: {role: front}}]\nnetwork: {nodeIPs: [192.0.2.1]}\n", used)), false, true); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfFlagsNameFields(t *testing.T) {
	f := parsed(t, "d", "network: {podCIDRs: [10.0.0.0/16]}\napiServer: {port: 7000}\n")
	for text, want := range map[string]string{
		"--pod-cidr=10.0.0.0/16 overlaps 10.0.0.0/8 of x": "d/c.yaml:3: network.podCIDRs: 10.0.0.0/16 overlaps 10.0.0.0/8 of x",
		"--api-port=7000 is a port of x":                  "d/c.yaml:4: apiServer.port: 7000 is a port of x",
		"--service-cidr=10.0.0.0/16 overlaps":             "--service-cidr=10.0.0.0/16 overlaps", // not of the file
		"something else":                                  "something else",
	} {
		if got := inFile(f, fmt.Errorf("%s", text)); got.Error() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestFileSettings: what a file says is kept, what it leaves out stays, what is empty empties.
func TestFileSettings(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "m/b/c.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`, "ca.pem": "x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, p := &Config{NodeName: "first", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Paths{data}
	plain := map[Role]string{ControlPlane: c.settings(ControlPlane), Node: c.settings(Node)}
	files := func() string {
		t.Helper()
		var all []string
		err := filepath.WalkDir(p.Manifests(), func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(p.Manifests(), path)
				all = append(all, rel)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, " ")
	}
	full := "nodes: [{labels: {a: b}, taints: [{key: k, effect: NoExecute}]}, {name: two}]\nports: [{hostPort: 80, nodePort: 30080, node: two}]\n" +
		"apiServer: {extraArgs: {profiling: false}}\nnetwork: {proxyMode: iptables, policy: false, loadBalancerPools: [192.0.2.240-192.0.2.250]}\nregistries: {caFile: ca.pem, auth: {r: {username: u, password: p}}}\nmanifests: [a.yaml, m]\n"
	take := func(text string, fresh bool) error {
		f := parsed(t, dir, text)
		return errors.Join(c.takeFile(f, fresh), copyManifests(f, p))
	}
	if err := take(full, true); err != nil {
		t.Fatal(err)
	}
	if c.Labels["a"] != "b" || len(c.Taints) != 1 || c.Taints[0].Effect != corev1.TaintEffectNoExecute || len(c.Nodes) != 1 || c.Nodes[0].Name != "two" {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.LoadBalancerPools, []string{"192.0.2.240-192.0.2.250"}) {
		t.Errorf("pools %v", c.LoadBalancerPools)
	}
	if err := c.takeFile(parsed(t, dir, "network: {loadBalancerPools: [192.0.2.240-192.0.2.250, 192.0.2.0/24]}\n"), false); err == nil || !strings.Contains(err.Error(), "network.loadBalancerPools[1]: it overlaps") {
		t.Errorf("pools that overlap: %v", err)
	}
	if !c.PodNetwork.NoPolicy {
		t.Error("network policies are enforced")
	}
	if c.PodNetwork.proxyMode() != ProxyIPTables {
		t.Errorf("proxy mode %s", c.PodNetwork.proxyMode())
	}
	if c.Registries.CAFile != filepath.Join(dir, "ca.pem") || c.Registries.Auth["r"].Password != "p" || c.APIServerArgs["profiling"][0] != "false" {
		t.Errorf("%+v", c)
	}
	if got := files(); got != "cluster-file/00-a.yaml cluster-file/01-m/b/c.json" {
		t.Errorf("manifests %s", got)
	}
	if c.settings(ControlPlane) == plain[ControlPlane] || c.settings(Node) == plain[Node] {
		t.Error("nothing starts again")
	}
	c.Nodes[0].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	if m := c.portMappings(nil); len(m) != 1 || m[0].Target.String() != "192.0.2.2:30080" || m[0].Listen.Port() != 80 {
		t.Errorf("%v", m)
	}
	// Another user's file beside those of the cluster file is his.
	own := filepath.Join(p.Manifests(), "own.yaml")
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := c.settings(Node)
	if err := take("name: c\n", false); err != nil || c.settings(Node) != before || len(c.Ports) != 1 || files() != "cluster-file/00-a.yaml cluster-file/01-m/b/c.json own.yaml" {
		t.Errorf("what is left out does not stay: %v, %v, %s", err, c.Ports, files())
	}
	if err := take("ports: []\nnetwork: {loadBalancerPools: []}\napiServer: {extraArgs: {}}\nmanifests: [m]\n", false); err != nil || len(c.Ports) != 0 || c.settings(ControlPlane) != plain[ControlPlane] || files() != "cluster-file/00-m/b/c.json own.yaml" {
		t.Errorf("%v, %v, %s", err, c.Ports, files())
	}
}
