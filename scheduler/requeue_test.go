package scheduler

import (
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// TestNoEventIsMissed: whenever something in the cluster makes a waiting pod fit, it is tried
// again, and not only by the flush minutes later. It looks for missed events of any kind in
// random clusters, among them those of
//
//   - kubernetes/kubernetes #122444: an assumed pod that is not bound after all frees its room;
//   - #134393: a pod goes whose anti-affinity was against the waiting one;
//   - #139135: a pod goes that matched one of several anti-affinity terms;
//   - #141354: the last pod goes that a pod with affinity to itself had to be near;
//   - #141953: terms with a namespaceSelector.
func TestNoEventIsMissed(t *testing.T) {
	rounds := uint64(1500)
	if testing.Short() {
		rounds = 200
	}
	retried := map[string]int{}
	for seed := range rounds {
		w := newWorld(t, seed)
		for range 25 {
			w.step()
		}
		for what, n := range w.retried {
			retried[what] += n
		}
		if t.Failed() {
			return
		}
	}
	// Each kind of event must have helped somebody, else the test shows nothing about it.
	for _, what := range eventKinds() {
		if what == "pod bound" {
			continue // the same event as of a pod placed, seldom alone
		}
		if retried[what] == 0 && !testing.Short() {
			t.Errorf("%s never made a waiting pod fit", what)
		}
	}
}

// world is a random cluster, its events applied one by one.
type world struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand
	s       *Scheduler
	now     time.Time
	serial  int
	nodes   map[string]*corev1.Node
	pods    map[string]*corev1.Pod // with a node, and waiting ones
	spaces  map[string]*corev1.Namespace
	store   func(*corev1.Namespace)
	log     []string
	retried map[string]int // by kind of event, how often it made a waiting pod fit
}

func newWorld(t *testing.T, seed uint64) *world {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := New(Config{Client: client, Informers: factory, Events: events.NewFakeRecorder(1), Logger: slog.New(slog.DiscardHandler), Seed: seed + 1})
	if err != nil {
		t.Fatal(err)
	}
	s.ctx = t.Context()
	w := &world{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), s: s, now: time.Unix(1e9, 0), nodes: map[string]*corev1.Node{},
		pods: map[string]*corev1.Pod{}, spaces: map[string]*corev1.Namespace{}, retried: map[string]int{}}
	w.store = func(ns *corev1.Namespace) {
		if err := factory.Core().V1().Namespaces().Informer().GetStore().Add(ns); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ns", "other"} {
		w.setNamespace(name, map[string]string{"team": name})
	}
	for range 1 + w.rnd.IntN(3) {
		w.addNode()
	}
	for range w.rnd.IntN(5) {
		w.addPlaced()
	}
	for range 3 {
		w.addWaiting()
	}
	w.attempts()
	return w
}

var stepKinds = []struct {
	name string
	do   func(*world) bool
}{
	{"pod deleted", func(w *world) bool { return w.onPlaced(func(p *corev1.Pod) *corev1.Pod { return nil }) }},
	{"pod ended", func(w *world) bool {
		return w.onPlaced(func(p *corev1.Pod) *corev1.Pod { p.Status.Phase = corev1.PodSucceeded; return p })
	}},
	{"pod terminates", func(w *world) bool {
		return w.onPlaced(func(p *corev1.Pod) *corev1.Pod { p.DeletionTimestamp = &metav1.Time{Time: w.now}; return p })
	}},
	{"pod relabelled", func(w *world) bool {
		return w.onPlaced(func(p *corev1.Pod) *corev1.Pod { p.Labels = w.podLabels(); return p })
	}},
	{"pod shrunk", func(w *world) bool {
		return w.onPlaced(func(p *corev1.Pod) *corev1.Pod {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
			return p
		})
	}},
	{"pod placed", func(w *world) bool { return w.addPlaced() }},
	{"node added", func(w *world) bool { w.addNode(); return true }},
	{"node deleted", func(w *world) bool {
		return len(w.nodes) > 1 && w.onNode(func(n *corev1.Node) *corev1.Node { return nil })
	}},
	{"node relabelled", func(w *world) bool {
		return w.onNode(func(n *corev1.Node) *corev1.Node { n.Labels = w.nodeLabels(n.Name); return n })
	}},
	{"node's taints changed", func(w *world) bool {
		return w.onNode(func(n *corev1.Node) *corev1.Node { n.Spec.Taints = w.taints(); return n })
	}},
	{"node cordoned or not", func(w *world) bool {
		return w.onNode(func(n *corev1.Node) *corev1.Node { n.Spec.Unschedulable = !n.Spec.Unschedulable; return n })
	}},
	{"node resized", func(w *world) bool {
		return w.onNode(func(n *corev1.Node) *corev1.Node { n.Status.Allocatable = w.allocatable(); return n })
	}},
	{"namespace relabelled", func(w *world) bool {
		w.setNamespace(pick(w, "ns", "other"), map[string]string{"team": pick(w, "ns", "other", "none")})
		return true
	}},
	{"pod bound", func(w *world) bool { return w.confirm() }},
	{"pod not bound after all", func(w *world) bool { return w.unbind() }},
	{"nomination withdrawn", func(w *world) bool { return w.withdraw() }},
	{"waiting pod changed", func(w *world) bool { return w.changeWaiting() }},
}

func eventKinds() []string {
	var names []string
	for _, k := range stepKinds {
		names = append(names, k.name)
	}
	return names
}

// step applies one event and looks who fits then but was not told.
func (w *world) step() {
	w.now = w.now.Add(time.Minute)
	k := stepKinds[w.rnd.IntN(len(stepKinds))]
	before := w.parked()
	// What fits already waits for the news of a binding that is under way.
	if k.name != "pod bound" || len(w.s.bindings) > 1 {
		before = slices.DeleteFunc(before, func(name string) bool { return w.fits(name) != nil })
	}
	if !k.do(w) {
		return
	}
	w.log = append(w.log, k.name)
	for _, name := range before {
		p := w.pods[name]
		if p == nil || p.Spec.NodeName != "" {
			continue
		}
		it := w.s.queue.Get(p.UID)
		if it == nil {
			continue
		}
		node := w.fits(name)
		if node == nil {
			continue
		}
		w.retried[k.name]++
		if w.s.queue.Parked(p.UID) {
			w.t.Errorf("seed %d: after %q pod %s fits on %s, but waits on; rejected by %v\nevents %v\npod %s\n%s",
				w.seed, k.name, name, node.Name(), it.RejectedBy, w.log, describe(p), w.describe())
		}
	}
	if w.rnd.IntN(3) == 0 {
		w.addWaiting()
	}
	w.attempts()
}

func (w *world) fits(name string) *snapshot.Node {
	w.s.snap.Order()
	node, _ := w.s.find(w.cycle(name), w.s.profiles[corev1.DefaultSchedulerName])
	return node
}

func (w *world) cycle(name string) *framework.Cycle {
	it := w.s.queue.Get(w.pods[name].UID)
	c := &framework.Cycle{Pod: it.Pod, Snap: w.s.snap, Now: w.now}
	if len(w.s.nominated) > 0 {
		c.Nominated = w.s.rivals(it.Pod)
	}
	return c
}

// attempts schedules what is active, as the loop does but for the API.
func (w *world) attempts() {
	for {
		it := w.s.queue.Pop(w.now)
		if it == nil {
			return
		}
		pr := w.s.profiles[corev1.DefaultSchedulerName]
		w.s.snap.Order()
		node, f := w.s.find(w.cycle(it.Name), pr)
		if node == nil {
			rejected := f.rejectedBy()
			w.s.queue.Failed(it, rejected, pr.hintsOf(rejected), false, w.now)
			if w.rnd.IntN(4) == 0 { // as if preemption had made room
				w.nominate(it.Name)
			}
			continue
		}
		if w.rnd.IntN(2) == 0 { // bound
			w.s.settle(it, node.Name(), w.now)
			w.bound(it.Name, node.Name())
			continue
		}
		w.s.settle(it, node.Name(), w.now) // assumed: the binding is under way
		w.s.bindings[it.UID] = &binding{item: it, profile: pr, cycle: w.cycle(it.Name), node: node.Name()}
	}
}

func (w *world) unbind() bool {
	for _, uid := range slices.Sorted(maps.Keys(w.s.bindings)) {
		w.s.unbound(w.t.Context(), w.s.bindings[uid], errors.New("refused"), nil)
		return true
	}
	return false
}

func (w *world) confirm() bool {
	for _, uid := range slices.Sorted(maps.Keys(w.s.bindings)) {
		b := w.s.bindings[uid]
		delete(w.s.bindings, uid)
		w.bound(b.item.Name, b.node)
		return true
	}
	return false
}

func (w *world) bound(name, node string) {
	old := w.pods[name]
	p := old.DeepCopy()
	p.Spec.NodeName = node
	w.pods[name] = p
	w.s.podChanged(old, p, w.now)
}

func (w *world) nominate(name string) {
	nodes := slices.Sorted(maps.Keys(w.nodes))
	node := nodes[w.rnd.IntN(len(nodes))]
	if it := w.s.queue.Get(w.pods[name].UID); it != nil {
		w.s.nominate(it.Pod, node)
		w.log = append(w.log, name+" nominated to "+node)
	}
}

// withdraw ends a nomination by its pod's deletion.
func (w *world) withdraw() bool {
	for _, node := range slices.Sorted(maps.Keys(w.s.nominated)) {
		for _, uid := range slices.Sorted(maps.Keys(w.s.nominated[node])) {
			p := w.s.nominated[node][uid]
			old := w.pods[p.Name]
			delete(w.pods, p.Name)
			w.s.podChanged(old, nil, w.now)
			return true
		}
	}
	return false
}

func (w *world) parked() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		if w.s.queue.Parked(w.pods[name].UID) {
			names = append(names, name)
		}
	}
	return names
}

func (w *world) changeWaiting() bool {
	names := w.parked()
	if len(names) == 0 {
		return false
	}
	old := w.pods[names[w.rnd.IntN(len(names))]]
	p := old.DeepCopy()
	p.ResourceVersion += "x"
	if w.rnd.IntN(2) == 0 {
		p.Labels = w.podLabels()
	} else {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: pick(w, "k", corev1.TaintNodeUnschedulable), Operator: corev1.TolerationOpExists})
	}
	w.pods[p.Name] = p
	w.s.podChanged(old, p, w.now)
	return true
}

func (w *world) onPlaced(change func(*corev1.Pod) *corev1.Pod) bool {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		if w.pods[name].Spec.NodeName != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return false
	}
	old := w.pods[names[w.rnd.IntN(len(names))]]
	p := change(old.DeepCopy())
	if p == nil || p.Status.Phase == corev1.PodSucceeded {
		delete(w.pods, old.Name)
	} else {
		w.pods[p.Name] = p
	}
	w.s.podChanged(old, p, w.now)
	return true
}

func (w *world) onNode(change func(*corev1.Node) *corev1.Node) bool {
	names := slices.Sorted(maps.Keys(w.nodes))
	old := w.nodes[names[w.rnd.IntN(len(names))]]
	n := change(old.DeepCopy())
	if n == nil {
		delete(w.nodes, old.Name)
	} else {
		w.nodes[n.Name] = n
	}
	w.s.nodeChanged(old, n, w.now)
	return true
}

func (w *world) setNamespace(name string, set map[string]string) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
	old := w.spaces[name]
	w.spaces[name] = ns
	w.store(ns)
	w.s.namespaceChanged(old, ns, w.now)
}
