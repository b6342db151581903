package routes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	object "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// BenchmarkThousandNodes runs a Router against a kernel: its start with a thousand Nodes, then from
// one Node's change to its route.
func BenchmarkThousandNodes(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root for a network namespace")
	}
	for _, vxlan := range []bool{false, true} {
		b.Run(fmt.Sprintf("vxlan=%t", vxlan), func(b *testing.B) { thousandNodes(b, vxlan) })
	}
}

func thousandNodes(b *testing.B, vxlan bool) {
	runtime.LockOSThread() // never unlocked: the namespace ends with the thread
	ns, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	if out, err := exec.Command("sh", "-ec", "ip link add eth0 type veth peer name far; ip link set far up; ip link set eth0 up; ip addr add 192.0.2.11/24 dev eth0; ip route add default via 192.0.2.1").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	list, events := &corev1.NodeList{}, watch.NewFake()
	add := func(p peer) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: corev1.NodeSpec{PodCIDR: p.podCIDRs[0].String(), PodCIDRs: []string{p.podCIDRs[0].String()}}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: p.ips[0].String()}}
		for i := range 50 { // as kubelets report them
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/team/application-%d@sha256:%064d", i, i), fmt.Sprintf("registry.example/team/application-%d:v1", i)}, SizeBytes: int64(i)})
		}
		if p.tunnel != nil {
			text, err := p.tunnel.encode()
			if err != nil {
				b.Fatal(err)
			}
			n.Annotations = map[string]string{Annotation: text}
		}
		list.Items = append(list.Items, *n)
		return n
	}
	var one *corev1.Node
	for i := range 1000 {
		if n := add(numbered(i, vxlan)); i == 500 {
			one = n
		}
	}
	self := testSelf()
	self.podCIDRs = prefixes("10.255.0.0/24")
	add(self.peer)
	before := heap()
	nodes := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
		ListFunc:  func(metav1.ListOptions) (object.Object, error) { return list.DeepCopy(), nil },
		WatchFunc: func(metav1.ListOptions) (watch.Interface, error) { return events, nil },
	}}, &corev1.Node{}, 0, nil)
	if err := nodes.SetTransform(Transform); err != nil {
		b.Fatal(err)
	}
	r, err := New(Config{
		NodeName: "self", ClusterCIDRs: prefixes("10.0.0.0/8"), Nodes: nodes, PodLink: "none", Link: "skr", Logger: slog.New(slog.DiscardHandler),
		Publish: func(context.Context, string) error { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	start := time.Now()
	go nodes.Run(ctx.Done())
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = r.Run(ctx)
		}
		done <- err
	}()
	<-r.First()
	took, held := time.Since(start), heap()-before
	h, err := netlink.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	if routes, err := h.Routes(); err != nil || len(routes) < 1000 {
		b.Fatalf("%d routes, %v, want a thousand", len(routes), err)
	}
	w, err := netlink.Watch()
	if err != nil {
		b.Fatal(err)
	}
	changes := make(chan netlink.Change, 100)
	go func() { _ = w.Run(func(c netlink.Change) { changes <- c }) }()
	dst := netip.MustParsePrefix(one.Spec.PodCIDR)
	i := 0
	for b.Loop() { // the node's CIDR comes and goes: a route is made, or removed
		i++
		one.Spec.PodCIDRs, one.Spec.PodCIDR = nil, ""
		want := netlink.RouteDeleted
		if i%2 == 0 {
			one.Spec.PodCIDRs, one.Spec.PodCIDR, want = []string{dst.String()}, dst.String(), netlink.RouteAdded
		}
		events.Modify(one.DeepCopy())
		for c := range changes {
			if c.Dst == dst && c.Kind == want {
				break
			}
		}
	}
	b.ReportMetric(float64(took.Milliseconds()), "ms-start")
	b.ReportMetric(float64(held)/1024/1001, "KiB/node")
	w.Close()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// listThenWatch sends no initial events.
type listThenWatch struct{ *cache.ListWatch }

func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }
