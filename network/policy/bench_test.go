package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

const (
	manyPods, manyPolicies = 5000, 100
	// podsHere are as many as a node takes.
	podsHere = 110
)

// large is a cluster of 10 namespaces with 50 applications each; every policy lets applications of its own and
// of another namespace in, and its pods out to them and to cluster DNS.
func large(b *testing.B, e *Enforcer) []*corev1.Pod {
	b.Helper()
	var pods []*corev1.Pod
	var podObjects, policies, namespaces []any
	for i := range 10 {
		n := fmt.Sprint("ns", i)
		namespaces = append(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"kubernetes.io/metadata.name": n, "team": fmt.Sprint(i % 3)}}})
	}
	for i := range manyPods {
		node := thisNode
		if i >= podsHere {
			node = fmt.Sprint("node", i/podsHere)
		}
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%10), Name: fmt.Sprintf("app%d-6d4cf56db6-x%d", i/10%50, i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
				Labels: map[string]string{"app": fmt.Sprint("app", i/10%50), "tier": fmt.Sprint(i % 4), "pod-template-hash": "6d4cf56db6"}},
			Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}).String()}}},
		}
		pods, podObjects = append(pods, p), append(podObjects, p)
	}
	for i := range manyPolicies {
		p := policyOf(b, fmt.Sprintf(`{podSelector: {matchLabels: {app: app%d}}, policyTypes: [Ingress, Egress],
ingress: [{from: [{podSelector: {matchLabels: {tier: '%d'}}}, {namespaceSelector: {matchLabels: {team: '%d'}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.244.0.0/16]}}], ports: [{port: web}, {port: 9090}]}],
egress: [{to: [{namespaceSelector: {matchLabels: {team: '%d'}}, podSelector: {matchLabels: {app: app%d}}}], ports: [{port: web}]}, {ports: [{port: 53, protocol: UDP}, {port: 53}]}]}`,
			i/10*5, i%4, i%3, i%3, i%50))
		p.Namespace, p.Name = fmt.Sprint("ns", i%10), fmt.Sprint("p", i)
		policies = append(policies, p)
	}
	must(b, e.namespaces.Replace(namespaces, ""))
	must(b, e.policies.Replace(policies, ""))
	must(b, e.pods.Replace(podObjects, ""))
	return pods
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// kernelled is an Enforcer in a namespace of its own.
func kernelled(b *testing.B) *Enforcer {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("needs root for network namespaces and nftables")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	must(b, err)
	b.Cleanup(func() { ns.Close() })
	e, err := New(Config{NodeName: thisNode, Client: fake.NewClientset(), Table: "skiff-policy-bench", PodCIDRs: families[:1], Logger: slog.New(slog.DiscardHandler)})
	must(b, err)
	return e
}

// BenchmarkStart is from all policies, namespaces and pods read to the table in the kernel.
func BenchmarkStart(b *testing.B) {
	for range b.N {
		b.StopTimer()
		e := kernelled(b)
		before := heap()
		pods := large(b, e)
		b.StartTimer()
		must(b, e.sync())
		b.StopTimer()
		runtime.KeepAlive(pods)
		clear(pods)
		pods = nil
		elements := 0
		for _, g := range e.dir.groups {
			elements += len(g.count)
		}
		b.ReportMetric(float64(heap()-before)/1e6, "MB")
		b.ReportMetric(float64(len(e.dir.groups)), "groups")
		b.ReportMetric(float64(elements), "elements")
		b.ReportMetric(float64(len(e.tables[0].held.chains)), "chains")
		b.StartTimer()
	}
}

// BenchmarkPod is a pod elsewhere that gets or loses its address.
func BenchmarkPod(b *testing.B) {
	e := kernelled(b)
	pods := large(b, e)
	must(b, e.sync())
	with := pods[manyPods-1]
	without := with.DeepCopy()
	without.Status.PodIPs = nil
	b.ResetTimer()
	for i := range b.N {
		must(b, e.pods.Update([]*corev1.Pod{without, with}[i%2]))
		must(b, e.sync())
	}
}

// BenchmarkAdmit is a pod that starts while no policy concerns it.
func BenchmarkAdmit(b *testing.B) {
	for what, policies := range map[string][]any{"no policies": nil, "policies of other namespaces": {&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}}}} {
		b.Run(what, func(b *testing.B) {
			e, err := New(Config{NodeName: thisNode, Client: fake.NewClientset(), Table: "skiff-policy-bench", PodCIDRs: families[:1], Logger: slog.New(slog.DiscardHandler)})
			must(b, err)
			must(b, e.policies.Replace(policies, ""))
			addrs := []netip.Addr{netip.MustParseAddr("10.244.0.9")}
			for range b.N {
				must(b, e.Admit(b.Context(), "s", "y", "p", "u", addrs))
				e.Forget("s")
			}
		})
	}
}
