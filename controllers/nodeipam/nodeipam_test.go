package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

// reads counts the nodes that the controller looks at; there is no way to look at all.
type reads struct {
	getter
	count int
}

func (r *reads) Get(name string) (*corev1.Node, error) {
	r.count++
	return r.getter.Get(name)
}

type flow struct {
	*controllertest.Env
	t     *testing.T
	c     *Controller
	reads *reads
}

func object(name string, cidrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	if len(cidrs) > 0 {
		n.Spec.PodCIDR = cidrs[0]
	}
	return n
}

// start runs the controller over nodes that are there already.
func start(t *testing.T, ranges []netip.Prefix, nodes ...*corev1.Node) *flow {
	t.Helper()
	e := controllertest.New(t)
	for _, n := range nodes {
		if err := e.Client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(Config{Config: e.Config, ClusterCIDRs: ranges})
	if err != nil {
		t.Fatal(err)
	}
	f := &flow{Env: e, t: t, c: c, reads: &reads{getter: c.nodes}}
	c.nodes = f.reads
	e.Start(c)
	return f
}

func (f *flow) create(name string, cidrs ...string) {
	f.t.Helper()
	if _, err := f.Client.CoreV1().Nodes().Create(f.t.Context(), object(name, cidrs...), metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f *flow) delete(name string) {
	f.t.Helper()
	if err := f.Client.CoreV1().Nodes().Delete(f.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f *flow) all() []corev1.Node {
	f.t.Helper()
	list, err := f.Client.CoreV1().Nodes().List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return list.Items
}

// want checks who has what, as "name=cidr,cidr …".
func (f *flow) want(want string) {
	f.t.Helper()
	var got []string
	for _, n := range f.all() {
		got = append(got, n.Name+"="+strings.Join(n.Spec.PodCIDRs, ","))
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != want {
		f.t.Errorf("nodes have %s\nwant %s", s, want)
	}
}

// steps are all that the index has done so far.
func (f *flow) steps() int {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	n := 0
	for _, r := range f.c.index.ranges {
		n += r.steps
	}
	return n
}

func TestEachNodeItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := object("old", "10.244.1.0/24")
		former := object("former")
		former.Spec.PodCIDR = "10.244.2.0/24" // the older field alone
		f := start(t, prefixes("10.244.0.0/16"), old, former, object("early"))
		for i := range 20 {
			f.create(fmt.Sprint("n", i))
		}
		seen := map[string]string{}
		for _, n := range f.all() {
			if other, dup := seen[n.Spec.PodCIDR]; dup || n.Spec.PodCIDR == "" {
				t.Errorf("node %s has %q as %s", n.Name, n.Spec.PodCIDR, other)
			}
			seen[n.Spec.PodCIDR] = n.Name
		}
		if seen["10.244.0.0/24"] != "early" {
			t.Errorf("a node from before the start has %v", seen)
		}
	})
}

func TestDualStackAndOwnCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, prefixes("10.0.0.0/22", "fd00::/48"), object("a", "10.0.0.0/24", "fd00::/64"))
		f.create("b")
		f.create("c", "010.0.2.0/24") // as the API allows; IPv4 alone
		f.create("d", "172.16.0.0/24")
		f.create("e")
		f.want("a=10.0.0.0/24,fd00::/64 b=10.0.1.0/24,fd00:0:0:1::/64 c=010.0.2.0/24 d=172.16.0.0/24 e=10.0.3.0/24,fd00:0:0:2::/64")
		f.delete("b")
		f.create("f", "10.0.0.0/24") // as a has
		f.delete("a")
		f.create("g") // 10.0.0.0/24 is f's still
		f.want("c=010.0.2.0/24 d=172.16.0.0/24 e=10.0.3.0/24,fd00:0:0:2::/64 f=10.0.0.0/24 g=10.0.1.0/24,fd00::/64")
		if ev := f.DrainEvents(); len(ev) > 0 {
			t.Errorf("events %v", ev)
		}
	})
}

func TestExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, prefixes("10.0.0.0/23"), object("a", "10.0.0.0/24"), object("b", "10.0.1.0/24"))
		for _, name := range []string{"c", "d", "e"} {
			f.create(name)
		}
		want := func(names ...string) {
			t.Helper()
			var all []string
			for _, n := range names {
				all = append(all, "Normal CIDRNotAvailable Node "+n+" status is now: CIDRNotAvailable")
			}
			if got := f.DrainEvents(); !slices.Equal(got, all) {
				t.Errorf("events %q, want %q", got, all)
			}
		}
		want("c", "d", "e")
		f.want("a=10.0.0.0/24 b=10.0.1.0/24 c= d= e=")
		f.After(remind)
		want("c", "d", "e") // while the first are still kept

		// One that is on its way out takes nothing, and keeps nobody waiting.
		c, err := f.Client.CoreV1().Nodes().Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Finalizers, c.DeletionTimestamp = []string{"example.com/hold"}, &metav1.Time{Time: time.Now()}
		if _, err := f.Client.CoreV1().Nodes().Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.delete("b")
		f.want("a=10.0.0.0/24 c= d=10.0.1.0/24 e=")
		f.delete("a")
		f.want("c= d=10.0.1.0/24 e=10.0.0.0/24")
		want()
	})
}

// TestRoomForManyAtOnce frees many parts with one node; all that wait come in.
func TestRoomForManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, prefixes("10.0.0.0/22"), object("wide", "10.0.0.0/22"))
		for i := range 5 {
			f.create(fmt.Sprint("n", i))
		}
		f.delete("wide")
		f.want("n0=10.0.0.0/24 n1=10.0.1.0/24 n2=10.0.2.0/24 n3=10.0.3.0/24 n4=")
	})
}

// TestNodeReplaced is a node that is deleted and made anew while the informer looks away.
func TestNodeReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, prefixes("10.0.0.0/23"), object("a", "10.0.0.0/24"), object("b", "10.0.1.0/24"), object("c"))
		f.want("a=10.0.0.0/24 b=10.0.1.0/24 c=")
		again := object("a")
		again.UID = "another"
		if err := f.Client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), again, ""); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		f.want("a= b=10.0.1.0/24 c=10.0.0.0/24") // c has waited for longer
		f.delete("b")
		f.want("a=10.0.1.0/24 c=10.0.0.0/24")
	})
}

// TestHeartbeatsCostNothing: neither with a CIDR nor without one does a node's status lead
// to any work of the controller, however many nodes there are.
func TestHeartbeatsCostNothing(t *testing.T) {
	for _, count := range []int{20, 400} { // 256 of them get a CIDR
		synctest.Test(t, func(t *testing.T) {
			var nodes []*corev1.Node
			for i := range count {
				nodes = append(nodes, object(fmt.Sprintf("n%03d", i)))
			}
			f := start(t, prefixes("10.244.0.0/16"), nodes...)
			if got := f.reads.count; got < count || got > 3*count {
				t.Errorf("%d nodes are read %d times to give them CIDRs", count, got)
			}
			all := f.all()
			if has := slices.DeleteFunc(slices.Clone(all), func(n corev1.Node) bool { return n.Spec.PodCIDR == "" }); len(has) != min(count, 256) {
				t.Fatalf("%d of %d nodes have a CIDR", len(has), count)
			}
			f.DrainEvents()
			steps, read := f.steps(), f.reads.count
			f.Client.ClearActions()
			for i := range all {
				all[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
				if _, err := f.Client.CoreV1().Nodes().UpdateStatus(t.Context(), &all[i], metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			f.Settle()
			if f.steps() != steps || f.reads.count != read || len(f.Client.Actions()) != count || len(f.DrainEvents()) > 0 {
				t.Errorf("%d heartbeats: %d steps, %d reads, %d requests besides", count, f.steps()-steps, f.reads.count-read, len(f.Client.Actions())-count)
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	e := controllertest.New(t)
	for want, cfg := range map[string]Config{
		"ClusterCIDRs is empty":                               {Config: e.Config},
		"node mask /8 does not fit cluster CIDR 10.0.0.0/16":  {Config: e.Config, ClusterCIDRs: prefixes("10.0.0.0/16"), NodeMasks: []int{8}},
		"node mask /24 does not fit cluster CIDR 10.0.0.0/28": {Config: e.Config, ClusterCIDRs: prefixes("10.0.0.0/28")},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// BenchmarkHeartbeat is the status update of one node among many that have no CIDR.
func BenchmarkHeartbeat(b *testing.B) {
	for _, count := range []int{100, 5000} {
		b.Run(fmt.Sprint("nodes=", count), func(b *testing.B) {
			c := &Controller{index: NewIndex(prefixes("10.244.0.0/16"), []int{24})}
			var nodes, next []*corev1.Node
			for i := range count {
				n := object(fmt.Sprint("n", i))
				nodes, next = append(nodes, n), append(next, n.DeepCopy())
				c.index.Observe(idOf(n), nil)
				if _, err := c.index.Grant(idOf(n)); (err != nil) != (i >= 256) {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.updated(nodes[i%count], next[i%count])
			}
		})
	}
}
