package baremetal

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	const head = "apiVersion: skiff.dev/v1alpha1\nkind: BareMetal\n"
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", `apiVersion: want skiff.dev/v1alpha1, not ""`},
		{"kind", "apiVersion: skiff.dev/v1alpha1\nkind: Pod\n", `kind: want BareMetal, not "Pod"`},
		{"unknown field", head + "pool: []\n", `unknown field "pool"`},
		{"unknown field within", head + "machines: [{name: a, zoone: b}]\n", `unknown field "zoone"`},
		{"a type", head + "machines: [{name: a, addresses: b}]\n", "machines"},
		{"pool's name", head + "pools: [{name: A, addresses: [192.0.2.1]}]\n", `pools[0].name: "A":`},
		{"pool twice", head + "pools: [{name: a, addresses: [192.0.2.1]}, {name: a, addresses: [192.0.2.2]}]\n", "pools[1].name: a is another pool's too"},
		{"no addresses", head + "pools: [{name: a}]\n", "pools[0].addresses: is empty"},
		{"no CIDR", head + "pools: [{name: a, addresses: [192.0.2.1, x/24]}]\n", `pools[0].addresses[1]: "x/24" is no CIDR`},
		{"host bits", head + "pools: [{name: a, addresses: [192.0.2.1/24]}]\n", "pools[0].addresses[0]: 192.0.2.1/24 has bits beyond its prefix; write 192.0.2.0/24"},
		{"backwards", head + "pools: [{name: a, addresses: [192.0.2.9-192.0.2.1]}]\n", "192.0.2.1 comes before 192.0.2.9"},
		{"families", head + "pools: [{name: a, addresses: ['192.0.2.9-fd00::1']}]\n", "are of different families"},
		{"overlap", head + "pools: [{name: a, addresses: [192.0.2.0/24]}, {name: b, addresses: [192.0.2.7]}]\n", "pools[1].addresses[0]: 192.0.2.7 overlaps 192.0.2.1-192.0.2.254 of pool a"},
		{"loopback", head + "pools: [{name: a, addresses: [127.0.0.1]}]\n", "127.0.0.1 can be no load balancer's address"},
		{"machine's name", head + "machines: [{name: A_}]\n", `machines[0].name: "A_":`},
		{"machine twice", head + "machines: [{name: a}, {name: a}]\n", "machines[1].name: a is another machine's too"},
		{"zone", head + "machines: [{name: a, zone: 'b c'}]\n", `machines[0].zone: "b c":`},
		{"address", head + "machines: [{name: a, addresses: [b]}]\n", `machines[0].addresses[0]: "b" is no IP address`},
		{"label", head + "machines: [{name: a, labels: {'x y': z}}]\n", `machines[0].labels: "x y":`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseConfig([]byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestSpans(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"192.0.2.0/24", "192.0.2.1-192.0.2.254"},
		{"192.0.2.240/28", "192.0.2.241-192.0.2.254"},
		{"192.0.2.2/31", "192.0.2.2-192.0.2.3"},
		{"192.0.2.2/32", "192.0.2.2"},
		{"192.0.2.0-192.0.2.255", "192.0.2.0-192.0.2.255"},
		{"fd00::/126", "fd00::1-fd00::3"},
		{" 192.0.2.1 - 192.0.2.2", "192.0.2.1-192.0.2.2"},
	} {
		if s, err := ParseSpan(tt.text); err != nil || s.String() != tt.want {
			t.Errorf("%s is %s, %v; want %s", tt.text, s, err, tt.want)
		}
	}
}

func TestAllocate(t *testing.T) {
	cfg := Config{Pools: []PoolConfig{
		{Name: "a", Addresses: []string{"192.0.2.1-192.0.2.3", "fd00::1-fd00::2"}},
		{Name: "spare", Addresses: []string{"192.0.2.9"}, OnRequest: true},
	}}
	pools, err := cfg.pools()
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text string) (out []netip.Addr) {
		for _, s := range strings.Fields(text) {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	other := func(name, addrs, share string, number int32) claim {
		return claim{key: types.NamespacedName{Namespace: "x", Name: name}, since: 10, addrs: parse(addrs), share: share, ports: []port{{corev1.ProtocolTCP, number}}}
	}
	v4, both := []corev1.IPFamily{corev1.IPv4Protocol}, []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	for _, tt := range []struct {
		name   string
		r      request
		has    string
		others []claim
		want   string
		err    string
	}{
		{name: "the first", r: request{families: v4}, want: "192.0.2.1"},
		{name: "the first that is free", r: request{families: v4}, others: []claim{other("o", "192.0.2.1", "", 80)}, want: "192.0.2.2"},
		{name: "both families, in the Service's order", r: request{families: both, all: true}, want: "fd00::1 192.0.2.1"},
		{name: "what it has stays", r: request{families: v4}, has: "192.0.2.3", want: "192.0.2.3"},
		{name: "what it has in no pool any more goes", r: request{families: v4}, has: "198.51.100.1", want: "192.0.2.1"},
		{name: "a family comes", r: request{families: both, all: true}, has: "192.0.2.2", want: "fd00::1 192.0.2.2"},
		{name: "the older one keeps what two have", r: request{claim: claim{since: 5}, families: v4}, has: "192.0.2.2", others: []claim{other("o", "192.0.2.2", "", 80)}, want: "192.0.2.2"},
		{name: "the younger one does not", r: request{claim: claim{since: 15}, families: v4}, has: "192.0.2.2", others: []claim{other("o", "192.0.2.2", "", 80)}, want: "192.0.2.1"},
		{name: "none left", r: request{families: v4, all: true}, others: []claim{other("o", "192.0.2.1 192.0.2.2 192.0.2.3", "", 80)}, err: "all IPv4 addresses of the pools that the Service may have are taken: no address is free"},
		{name: "one family is better than none", r: request{families: both}, others: []claim{other("o", "192.0.2.1 192.0.2.2 192.0.2.3", "", 80)}, want: "fd00::1"},
		{name: "but not if both are required", r: request{families: both, all: true}, others: []claim{other("o", "192.0.2.1 192.0.2.2 192.0.2.3", "", 80)}, err: "all IPv4 addresses"},
		{name: "asked for", r: request{families: v4, wanted: parse("192.0.2.2")}, want: "192.0.2.2"},
		{name: "asked for, away from what it has", r: request{families: v4, wanted: parse("192.0.2.2")}, has: "192.0.2.1", want: "192.0.2.2"},
		{name: "asked for, in a spare pool", r: request{families: v4, wanted: parse("192.0.2.9")}, want: "192.0.2.9"},
		{name: "asked for, in no pool", r: request{families: v4, wanted: parse("192.0.2.8")}, err: "192.0.2.8 is in none of the pools"},
		{name: "asked for, another's", r: request{families: v4, wanted: parse("192.0.2.2")}, others: []claim{other("o", "192.0.2.2", "", 80)}, err: "192.0.2.2 is x/o's: no address is free"},
		{name: "pool asked for", r: request{families: v4, pool: "spare"}, want: "192.0.2.9"},
		{name: "pool asked for lacks a family", r: request{families: both, all: true, pool: "spare"}, err: "no pool that the Service may have has IPv6 addresses"},
		{name: "no such pool", r: request{families: v4, pool: "b"}, err: `there is no pool "b"`},
		{name: "shared", r: request{claim: claim{share: "s", ports: []port{{corev1.ProtocolTCP, 443}}}, families: v4}, others: []claim{other("o", "192.0.2.2", "s", 80)}, want: "192.0.2.2"},
		{name: "not with the same port", r: request{claim: claim{share: "s", ports: []port{{corev1.ProtocolTCP, 80}}}, families: v4}, others: []claim{other("o", "192.0.2.1", "s", 80)}, want: "192.0.2.2"},
		{name: "the same number of another protocol is another port", r: request{claim: claim{share: "s", ports: []port{{corev1.ProtocolUDP, 80}}}, families: v4}, others: []claim{other("o", "192.0.2.3", "s", 80)}, want: "192.0.2.3"},
		{name: "not if one did not ask", r: request{claim: claim{share: "s", ports: []port{{corev1.ProtocolTCP, 443}}}, families: v4}, others: []claim{other("o", "192.0.2.1", "", 80)}, want: "192.0.2.2"},
		{name: "not with policy Local", r: request{claim: claim{share: "s", local: true, ports: []port{{corev1.ProtocolTCP, 443}}}, families: v4}, others: []claim{other("o", "192.0.2.1", "s", 80)}, want: "192.0.2.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.r.key = types.NamespacedName{Namespace: "x", Name: "me"}
			tt.r.addrs = parse(tt.has)
			got, err := allocate(pools, tt.others, tt.r)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, %v; want %s", got, err, tt.err)
				}
				return
			}
			if err != nil || joined(got) != strings.Join(strings.Fields(tt.want), ", ") {
				t.Errorf("%s, %v; want %s", joined(got), err, tt.want)
			}
		})
	}
}

func TestRequestOf(t *testing.T) {
	prefer := corev1.IPFamilyPolicyPreferDualStack
	svc := func(ip string, notes map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: notes}, Spec: corev1.ServiceSpec{LoadBalancerIP: ip, IPFamilyPolicy: &prefer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
	}
	for _, tt := range []struct {
		s    *corev1.Service
		want string
		err  string
	}{
		{svc("", nil), "", ""},
		{svc("192.0.2.1", nil), "192.0.2.1", ""},
		{svc("192.0.2.1", map[string]string{AddressesAnnotation: "192.0.2.2"}), "192.0.2.2", ""},
		{svc("x", nil), "", `spec.loadBalancerIP: "x" is no IP address`},
		{svc("fd00::1", nil), "", "spec.loadBalancerIP: fd00::1 is of a family that the Service does not have"},
		{svc("", map[string]string{AddressesAnnotation: "192.0.2.1,192.0.2.2"}), "", "want at most one address of each family"},
	} {
		r, err := requestOf(tt.s)
		if tt.err == "" && (err != nil || joined(r.wanted) != tt.want || r.all) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %v, %v; want %s%s", tt.s.Spec.LoadBalancerIP, r.wanted, err, tt.want, tt.err)
		}
	}
}
