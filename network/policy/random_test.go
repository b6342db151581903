package policy

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
)

const thisNode = "here"

var families = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}

// newEnforcer whose feeds the test fills itself.
func newEnforcer(t testing.TB) *Enforcer {
	t.Helper()
	e, err := New(Config{NodeName: thisNode, Client: fake.NewClientset(), Table: "skiff-policy-test", PodCIDRs: families, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// world is a cluster that changes at random, told to an Enforcer as a watch tells it.
type world struct {
	rand *rand.Rand
	reference
	*Enforcer
	serial int
	nodes  []string
	// addresses that pods may have, in pairs; those that are no pod's are the world outside.
	addrs [][2]netip.Addr
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), Enforcer: newEnforcer(t), nodes: []string{thisNode, thisNode, "there"}}
	w.reference.namespaces = map[string]map[string]string{}
	for i := range 24 {
		w.addrs = append(w.addrs, [2]netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(10 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:244:0:%d::%x", i%3, 0x10+i))})
	}
	must(t, w.Enforcer.pods.Replace(nil, ""))
	must(t, w.Enforcer.namespaces.Replace(nil, ""))
	must(t, w.Enforcer.policies.Replace(nil, ""))
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (w *world) labels() map[string]string {
	out := map[string]string{}
	for _, k := range []string{"app", "tier"} {
		if w.rand.IntN(4) > 0 {
			out[k] = pick(w.rand, "a", "b", "c")
		}
	}
	return out
}

func (w *world) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	switch w.rand.IntN(6) {
	case 0, 1:
	case 2, 3:
		s.MatchLabels = map[string]string{pick(w.rand, "app", "tier"): pick(w.rand, "a", "b", "c")}
	case 4:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: pick(w.rand, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{"a", pick(w.rand, "b", "c")}}}
	case 5:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: pick(w.rand, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}
	}
	return s
}

func (w *world) peers() (out []networkingv1.NetworkPolicyPeer) {
	for range w.rand.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch w.rand.IntN(5) {
		case 0:
			p.PodSelector = w.selector()
		case 1:
			p.NamespaceSelector = w.selector()
		case 2:
			p.PodSelector, p.NamespaceSelector = w.selector(), w.selector()
		default:
			a := pick(w.rand, w.addrs...)[w.rand.IntN(2)]
			block := func(bits int) string {
				p, err := a.Prefix(bits)
				if err != nil {
					panic(err)
				}
				return p.String()
			}
			size := a.BitLen()
			p.IPBlock = &networkingv1.IPBlock{CIDR: block(pick(w.rand, 0, size/2, size-8, size-3, size))}
			for range w.rand.IntN(3) {
				a = pick(w.rand, w.addrs...)[w.rand.IntN(2)]
				p.IPBlock.Except = append(p.IPBlock.Except, block(a.BitLen()-w.rand.IntN(5)))
			}
		}
		out = append(out, p)
	}
	return out
}

var testPorts = []uint16{0, 79, 80, 81, 82, 90, 8080, 65535}

func (w *world) ports() (out []networkingv1.NetworkPolicyPort) {
	for range w.rand.IntN(4) {
		var p networkingv1.NetworkPolicyPort
		if w.rand.IntN(3) > 0 {
			protocol := pick(w.rand, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
			p.Protocol = &protocol
		}
		switch w.rand.IntN(4) {
		case 0:
			port := intstr.FromInt32(int32(pick(w.rand, testPorts[1:]...)))
			p.Port = &port
		case 1:
			port, end := intstr.FromInt32(80), int32(80+w.rand.IntN(20))
			p.Port, p.EndPort = &port, &end
		case 2:
			port := intstr.FromString(pick(w.rand, "web", "dns"))
			p.Port = &port
		}
		out = append(out, p)
	}
	return out
}

// step changes one thing.
func (w *world) step(t testing.TB) {
	switch w.rand.IntN(10) {
	case 0:
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pick(w.rand, "x", "y", "z"), Labels: w.labels()}}
		w.reference.namespaces[ns.Name] = ns.Labels
		must(t, w.Enforcer.namespaces.Update(ns))
	case 1:
		if n := len(w.reference.pods); n > 0 {
			i := w.rand.IntN(n)
			must(t, w.Enforcer.pods.Delete(w.reference.pods[i]))
			w.reference.pods = slices.Delete(w.reference.pods, i, i+1)
		}
	case 2:
		if n := len(w.reference.policies); n > 0 {
			i := w.rand.IntN(n)
			must(t, w.Enforcer.policies.Delete(w.reference.policies[i]))
			w.reference.policies = slices.Delete(w.reference.policies, i, i+1)
		}
	case 3, 4, 5:
		w.policy(t)
	case 6:
		if n := len(w.reference.pods); n > 0 {
			i := w.rand.IntN(n)
			p := w.reference.pods[i].DeepCopy()
			if p.Labels = w.labels(); w.rand.IntN(8) == 0 {
				p.Status.Phase = corev1.PodSucceeded
			}
			w.reference.pods[i] = p
			must(t, w.Enforcer.pods.Update(p))
		}
	default:
		w.pod(t)
	}
}

func (w *world) pod(t testing.TB) {
	var free [][2]netip.Addr
	for _, a := range w.addrs {
		if w.podAt(a[0]) == nil && w.podAt(a[1]) == nil {
			free = append(free, a)
		}
	}
	if len(free) < len(w.addrs)/3 {
		return
	}
	w.serial++
	ips := pick(w.rand, free...)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(w.rand, "x", "y", "z"), Name: fmt.Sprint("p", w.serial), UID: types.UID(fmt.Sprint("u", w.serial)), Labels: w.labels()},
		Spec:       corev1.PodSpec{NodeName: pick(w.rand, w.nodes...), HostNetwork: w.rand.IntN(10) == 0},
	}
	var ports []corev1.ContainerPort
	for _, n := range []string{"web", "dns"} {
		if w.rand.IntN(3) > 0 {
			ports = append(ports, corev1.ContainerPort{Name: n, ContainerPort: int32(pick(w.rand, testPorts[1:]...)), Protocol: pick(w.rand, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)})
		}
	}
	p.Spec.Containers = []corev1.Container{{Ports: ports}}
	for _, ip := range ips[:1+w.rand.IntN(2)] {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	w.reference.pods = append(w.reference.pods, p)
	must(t, w.Enforcer.pods.Add(p))
}

func (w *world) policy(t testing.TB) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(w.rand, "x", "y", "z"), Name: fmt.Sprint("n", w.rand.IntN(4))}}
	p.Spec.PodSelector = *w.selector()
	p.Spec.PolicyTypes = pick(w.rand, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress})
	for range w.rand.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: w.peers(), Ports: w.ports()})
	}
	for range w.rand.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: w.peers(), Ports: w.ports()})
	}
	w.reference.policies = slices.DeleteFunc(w.reference.policies, func(o *networkingv1.NetworkPolicy) bool {
		return o.Namespace == p.Namespace && o.Name == p.Name
	})
	w.reference.policies = append(w.reference.policies, p)
	must(t, w.Enforcer.policies.Update(p))
}

// decided is what sync decides, without a kernel.
func (e *Enforcer) decided() decision {
	e.policies.take(e.dir.setPolicy)
	e.takeUp()
	want := e.decide()
	e.dir.follow(want.profiles())
	return want
}

// allows is what a chain does.
func (p *profile) allows(groups map[string]*members, far netip.Addr, protocol uint8, port uint16) bool {
	return p == nil || slices.ContainsFunc(p.lines, func(l line) bool {
		if l.blocks != nil && !l.blocks.contains(far) || l.ports != nil && !l.ports.contains(protocol, port) {
			return false
		}
		if l.peers == nil {
			return true
		}
		m := member{addr: far}
		if l.peers.port.name != "" {
			m.protocol, m.port = protocol, port
		}
		return groups[l.peers.key].count[m] > 0
	})
}

func (w *world) check(t testing.TB) {
	t.Helper()
	want := w.decided()
	all := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
	for _, a := range w.addrs {
		all = append(all, a[:]...)
	}
	for range 1500 {
		from, to := pick(w.rand, all...), pick(w.rand, all...)
		if from == to || from.Is6() != to.Is6() {
			continue
		}
		k := packet{from, to, pick(w.rand, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP), pick(w.rand, testPorts...)}
		for d, ends := range [directions][2]netip.Addr{ingress: {to, from}, egress: {from, to}} {
			if p := w.podAt(ends[0]); p != nil && p.Spec.NodeName != thisNode {
				continue
			}
			got, should := want[d][ends[0]].allows(w.dir.groups, ends[1], k.number(), k.port), w.reference.allows(k, direction(d))
			if got != should {
				t.Fatalf("%s: %+v: decided %t, the reference says %t", mapOf[d], k, got, should)
			}
		}
	}
	// What the groups say of their changes is what has changed: a full count comes to the same.
	for key, g := range w.dir.groups {
		if full := w.dir.fill(g.group); !maps.Equal(full.count, g.count) {
			t.Fatalf("group %s: has %v, should have %v", key, g.count, full.count)
		}
	}
}

// TestRandom has random clusters decided on as the reference does, after each of many changes.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		for range 60 {
			for range 1 + w.rand.IntN(4) {
				w.step(t)
			}
			w.check(t)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint8(10))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		w := newWorld(t, seed)
		for range steps % 64 {
			w.step(t)
		}
		w.check(t)
	})
}
