package clusterfile

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const head = "apiVersion: skiff.dev/v1alpha1\nkind: Cluster\n"

func TestErrorsNameFileLineAndField(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "c.yaml:1: the file is empty"},
		{"comments", "# only\n", "c.yaml:1: the file is empty"},
		{"syntax", head + "nodes: [\n", "c.yaml:3: did not find expected node content"},
		{"a tab", head + "name:\n\tx\n", "c.yaml:4: found character that cannot start any token"},
		{"no map", "- a\n", "c.yaml:1: want a map, not a list"},
		{"two documents", head + "---\n" + head, "c.yaml:3: a second document; a file holds one cluster"},
		{"another version", "apiVersion: v1\nkind: Cluster\n", `c.yaml:1: apiVersion: want skiff.dev/v1alpha1, not "v1"`},
		{"another kind", "apiVersion: skiff.dev/v1alpha1\nkind: Pod\n", `c.yaml:2: kind: want Cluster, not "Pod"`},
		{"no kind", "apiVersion: skiff.dev/v1alpha1\n", `c.yaml:1: kind: want Cluster, not ""`},
		{"unknown field", head + "node: []\n", "c.yaml:3: node: there is no such field; there are apiServer, apiVersion, images,"},
		{"unknown field within", head + "nodes:\n- name: a\n  label: {}\n", "c.yaml:5: nodes[0].label: there is no such field; there are count, labels, name, taints"},
		{"a field twice", head + "name: a\nname: b\n", "c.yaml:4: name: is on line 3 already"},
		{"no value", head + "name:\n", "c.yaml:3: name: has no value; leave the field out"},
		{"a number for a string", head + "name: 1\n", "c.yaml:3: name: want a string, not the number 1; put it in quotes"},
		{"a boolean for a label", head + "nodes:\n- labels:\n    a: true\n", "c.yaml:5: nodes[0].labels.a: want a string, not true; put it in quotes"},
		{"a string for a number", head + "nodes:\n- count: two\n", `c.yaml:4: nodes[0].count: want a whole number, not the string "two"`},
		{"a fraction", head + "nodes: [{count: 1.5}]\n", "c.yaml:3: nodes[0].count: want a whole number, not the number 1.5"},
		{"a map for a list", head + "nodes: {}\n", "c.yaml:3: nodes: want a list, not a map"},
		{"a list for a map", head + "network: []\n", "c.yaml:3: network: want a map, not a list"},
		{"a number as key", head + "nodes: [{labels: {1: a}}]\n", "c.yaml:3: nodes[0].labels: want a string as key, not the number 1"},
		{"a merge", head + "network: {<<: {podCIDRs: []}}\n", "c.yaml:3: network: want a string as key"},
		{"name", head + "name: A_b\n", `c.yaml:3: name: "A_b": a lowercase RFC 1123 label`},
		{"no nodes", head + "nodes: []\n", "c.yaml:3: nodes: is empty; the first node is this host"},
		{"node name", head + "nodes:\n- name: -a\n", `c.yaml:4: nodes[0].name: "-a":`},
		{"node name twice", head + "nodes:\n- name: a\n- name: a\n", "c.yaml:5: nodes[1].name: a is the name of nodes[0] too"},
		{"no count", head + "nodes: [{count: 0}]\n", "c.yaml:3: nodes[0].count: 0: want 1 to 253"},
		{"one name for two", head + "nodes: [{count: 2, name: a}]\n", "c.yaml:3: nodes[0].count: 2 nodes cannot have one name"},
		{"label", head + "nodes: [{labels: {\"a b\": c}}]\n", "c.yaml:3: nodes[0].labels.a b: "},
		{"taint", head + "nodes:\n- taints:\n  - {key: a, effect: Nope}\n", `c.yaml:5: nodes[0].taints[0].effect: "Nope": want NoSchedule, PreferNoSchedule, NoExecute`},
		{"taint without key", head + "nodes:\n- taints:\n  - {effect: NoSchedule}\n", `c.yaml:5: nodes[0].taints[0].key: "": name part must be non-empty`},
		{"taint twice", head + "nodes:\n- taints:\n  - {key: a, effect: NoSchedule}\n  - {key: a, value: b, effect: NoSchedule}\n", "c.yaml:6: nodes[0].taints[1]: a:NoSchedule is given twice"},
		{"CIDR", head + "network: {podCIDRs: [10.0.0.0]}\n", `c.yaml:3: network.podCIDRs[0]: "10.0.0.0": `},
		{"CIDR with host bits", head + "network: {podCIDRs: [10.0.0.1/16]}\n", "c.yaml:3: network.podCIDRs[0]: 10.0.0.1/16 has bits beyond its prefix; write 10.0.0.0/16"},
		{"CIDRs overlap", head + "network:\n  podCIDRs: [10.0.0.0/8]\n  serviceCIDRs:\n  - fd00::/108\n  - 10.96.0.0/16\n", "c.yaml:7: network.serviceCIDRs[1]: 10.96.0.0/16 overlaps 10.0.0.0/8 of network.podCIDRs[0]"},
		{"two of a family", head + "network: {podCIDRs: [10.0.0.0/16, 10.1.0.0/16]}\n", "c.yaml:3: network.podCIDRs: want one, or one IPv4 and one IPv6"},
		{"loopback", head + "network: {nodeIPs: [127.0.0.1]}\n", "c.yaml:3: network.nodeIPs[0]: 127.0.0.1: want an address"},
		{"node among pods", head + "network: {nodeIPs: [10.1.0.1], podCIDRs: [10.0.0.0/8]}\n", "c.yaml:3: network.nodeIPs[0]: 10.1.0.1 is in 10.0.0.0/8 of network.podCIDRs[0]"},
		{"proxy mode", head + "network: {proxyMode: userspace}\n", `c.yaml:3: network.proxyMode: "userspace": want nftables, iptables, ipvs`},
		{"port", head + "apiServer: {port: 70000}\n", "c.yaml:3: apiServer.port: 70000 is no port"},
		{"no port", head + "ports:\n- {hostPort: 80}\n", "c.yaml:4: ports[0]: nodePort is missing"},
		{"port twice", head + "ports:\n- {hostPort: 80, nodePort: 30080, listenAddress: 127.0.0.1}\n- {hostPort: 80, nodePort: 30081}\n", "c.yaml:5: ports[1].hostPort: 80/TCP is ports[0]'s too"},
		{"protocol", head + "ports: [{hostPort: 80, nodePort: 1, protocol: tcp}]\n", `c.yaml:3: ports[0].protocol: "tcp": want TCP or UDP`},
		{"address", head + "ports: [{hostPort: 80, nodePort: 1, listenAddress: localhost}]\n", `c.yaml:3: ports[0].listenAddress: "localhost": `},
		{"flag with dashes", head + "apiServer: {extraArgs: {--profiling: false}}\n", "c.yaml:3: apiServer.extraArgs.--profiling: give the flag without its dashes"},
		{"flag's map", head + "apiServer: {extraArgs: {profiling: {}}}\n", "c.yaml:3: apiServer.extraArgs.profiling: want a value or a list of values"},
		{"registry URL", head + "registries: {plainHTTP: [\"http://a:5000\"]}\n", `c.yaml:3: registries.plainHTTP[0]: "http://a:5000": want a registry's host or host:port`},
		{"mirror", head + "registries: {mirrors: {docker.io: [a:5000]}}\n", `c.yaml:3: registries.mirrors.docker.io[0]: "a:5000": want http:// or https://`},
		{"auth", head + "registries: {auth: {a: {username: u}}}\n", "c.yaml:3: registries.auth.a: username and password are both needed"},
		{"empty path", head + "manifests: [\"\"]\n", "c.yaml:3: manifests[0]: is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte(tt.text))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestWhatIsLeftOutIsKnown(t *testing.T) {
	f, err := Parse("c.yaml", []byte(head+"ports: []\napiServer:\n  extraArgs:\n    profiling: false\n    audit-log-maxage: 3\n    service-account-issuer: [a, b]\nnodes:\n- &n {labels: {a: b}}\n- *n\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !f.Has("ports") || f.Has("manifests") || !f.Has("apiServer.extraArgs") || f.Has("name") {
		t.Error("what was given is mistaken")
	}
	want := map[string]Values{"profiling": {"false"}, "audit-log-maxage": {"3"}, "service-account-issuer": {"a", "b"}}
	if !reflect.DeepEqual(f.APIServer.ExtraArgs, want) {
		t.Errorf("%v", f.APIServer.ExtraArgs)
	}
	if len(f.Nodes) != 2 || f.Nodes[1].Labels["a"] != "b" {
		t.Errorf("%v", f.Nodes)
	}
	if got := f.Errorf("nodes[1].labels.zz", "no").Error(); got != "c.yaml:10: nodes[1].labels.zz: no" {
		t.Errorf("%s", got)
	}
}

var blocks = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestDocumentation: every example in docs/cluster-file.md is a file, and every field is documented.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/cluster-file.md")
	if err != nil {
		t.Fatal(err)
	}
	all := blocks.FindAllSubmatch(text, -1)
	if len(all) < 5 {
		t.Fatalf("%d examples", len(all))
	}
	given := map[string]bool{}
	for _, b := range all {
		f, err := Parse("docs/cluster-file.md", b[1])
		if err != nil {
			t.Errorf("%v in\n%s", err, b[1])
			continue
		}
		for path := range f.decoder.lines {
			given[regexp.MustCompile(`\[\d+\]`).ReplaceAllString(path, "[]")] = true
		}
	}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for i := range typ.NumField() {
			name := typ.Field(i).Tag.Get("yaml")
			if name == "" {
				continue
			}
			p, ft := join(path, name), typ.Field(i).Type
			if !given[p] {
				t.Errorf("no example has %s", p)
			}
			if doc := strings.NewReplacer("[]", "[]").Replace(p); !strings.Contains(string(text), "`"+doc+"`") {
				t.Errorf("no line explains `%s`", doc)
			}
			for ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			switch {
			case ft.Kind() == reflect.Struct && ft.PkgPath() == typ.PkgPath():
				walk(p, ft)
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct && ft.Elem().PkgPath() == typ.PkgPath():
				walk(p+"[]", ft.Elem())
			}
		}
	}
	walk("", reflect.TypeFor[File]())
}

func FuzzParse(f *testing.F) {
	f.Add(head + "nodes: [{count: 2, labels: {a: b}, taints: [{key: a, effect: NoSchedule}]}]\nnetwork: {podCIDRs: [10.0.0.0/16], nodeIPs: [\"::1\"]}\n")
	f.Add(head + "ports: [{hostPort: 80, nodePort: 30080}]\nregistries: {auth: {a: {username: b, password: c}}, mirrors: {\"*\": [\"http://a\"]}}\napiServer: {port: 1, extraArgs: {a: [b]}}\n")
	f.Add(head + "a: &a [*a]\nnodes: &n [*n]\n")
	f.Add("\xff: ]\n---\n...")
	line := regexp.MustCompile(`^f\.yaml:[1-9]\d*: `)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse("f.yaml", []byte(text))
		if err != nil && (!line.MatchString(err.Error()) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q is no line that begins with its place", err)
		}
		if err == nil && (got.Kind != Kind || got.APIVersion != APIVersion) {
			t.Errorf("%+v", got)
		}
	})
}
