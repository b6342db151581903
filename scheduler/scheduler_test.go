package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
)

func TestSpreadsByUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"), testNode("b"))
		count := map[string]int{}
		for i := range 8 {
			count[e.add(testPod(fmt.Sprint("p", i), "1", "1Gi")).Spec.NodeName]++
		}
		if count["a"] != 4 || count["b"] != 4 {
			t.Errorf("pods by node: %v", count)
		}
		p := e.add(testPod("q", "1", ""))
		want := "False Unschedulable: 0/2 nodes are available: 2 Insufficient cpu."
		if got := message(p); !strings.HasPrefix(got, want) {
			t.Errorf("condition %q, want %q", got, want)
		}
		if ev := <-e.events.Events; !strings.Contains(ev, "Successfully assigned ns/p0 to") {
			t.Errorf("event %q", ev)
		}
		e.remove("p0")
		if got := e.pod("q"); got.Spec.NodeName == "" {
			t.Error("not scheduled when room appeared")
		}
	})
}

func TestFilters(t *testing.T) {
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	}
	tests := []struct {
		name string
		node *corev1.Node
		pod  *corev1.Pod
		want string // "" is scheduled
		// heal makes the pod fit by updating the node.
		heal func(n *corev1.Node)
	}{
		{"fits", testNode("a"), testPod("p", "1", "1Gi"), "", nil},
		{"cpu and memory", testNode("a"), testPod("p", "5", "9Gi"), "1 Insufficient cpu, 1 Insufficient memory.",
			func(n *corev1.Node) {
				n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("5")
				n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("9Gi")
			}},
		{"extended", testNode("a"), testPod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		}), "1 Insufficient example.com/gpu.", func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("2") }},
		{"pods", testNode("a", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0") }),
			testPod("p", "", ""), "1 Too many pods.", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }},
		{"taint", testNode("a", taint), testPod("p", "", ""), "1 node(s) had untolerated taint(s).", func(n *corev1.Node) { n.Spec.Taints = nil }},
		{"tolerated", testNode("a", taint), testPod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}), "", nil},
		{"cordoned", testNode("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }), testPod("p", "", ""), "1 node(s) were unschedulable.",
			func(n *corev1.Node) { n.Spec.Unschedulable = false }},
		{"selector", testNode("a"), testPod("p", "", "", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			"1 node(s) didn't match Pod's node affinity/selector.", func(n *corev1.Node) { n.Labels["disk"] = "ssd" }},
		{"daemon's affinity", testNode("a"), testPod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}}}}}
		}), "", nil},
		{"daemon's other node", testNode("a"), testPod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}
		}), "1 node(s) didn't satisfy plugin(s) [NodeAffinity].", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, Config{}, tt.node)
				p := e.add(tt.pod)
				if tt.want == "" {
					if p.Spec.NodeName != "a" {
						t.Fatalf("not scheduled: %s", message(p))
					}
					return
				}
				want := "False Unschedulable: 0/1 nodes are available: " + tt.want
				if got := message(p); !strings.HasPrefix(got, want) {
					t.Errorf("condition %q, want %q", got, want)
				}
				if tt.heal == nil {
					return
				}
				n := tt.node.DeepCopy()
				n.Annotations = map[string]string{"irrelevant": "change"}
				patches := len(e.client.Actions())
				e.update(n)
				if got := len(e.client.Actions()); got != patches+1 {
					t.Errorf("an irrelevant change of the node caused %d requests", got-patches-1)
				}
				n = n.DeepCopy()
				tt.heal(n)
				e.update(n)
				if got := e.pod("p"); got.Spec.NodeName != "a" {
					t.Errorf("not scheduled after the node changed: %s", message(got))
				}
			})
		})
	}
}

func TestHostPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"))
		port := func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
		}
		e.add(testPod("p", "", "", port))
		q := e.add(testPod("q", "", "", port))
		if got := message(q); !strings.Contains(got, "1 node(s) didn't have free ports for the requested pod ports.") {
			t.Error(got)
		}
		e.remove("p")
		if e.pod("q").Spec.NodeName != "a" {
			t.Error("port is free, yet not scheduled")
		}
	})
}

func TestNoNodesThenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{})
		p := e.add(testPod("p", "1", ""))
		if got, want := message(p), "False Unschedulable: no nodes available to schedule pods"; got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
		e.addNode(testNode("a"))
		if e.pod("p").Spec.NodeName != "a" {
			t.Error("not scheduled when the first node came")
		}
	})
}

func TestGatesAndOtherSchedulers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{Profiles: []Profile{{}, {Name: "second"}}}, testNode("a"))
		gated := e.add(testPod("gated", "", "", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		other := e.add(testPod("other", "", "", func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" }))
		second := e.add(testPod("second", "", "", func(p *corev1.Pod) { p.Spec.SchedulerName = "second" }))
		if gated.Spec.NodeName != "" || other.Spec.NodeName != "" || second.Spec.NodeName != "a" {
			t.Errorf("nodes %q %q %q", gated.Spec.NodeName, other.Spec.NodeName, second.Spec.NodeName)
		}
		gated.Spec.SchedulingGates = nil
		if _, err := e.client.CoreV1().Pods("ns").Update(t.Context(), gated, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if e.pod("gated").Spec.NodeName != "a" {
			t.Error("still gated")
		}
	})
}

func TestBindingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"))
		var tries []time.Time
		e.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "binding" && len(tries) < 3 {
				tries = append(tries, time.Now())
				return true, nil, errors.New("etcd is away")
			}
			return false, nil, nil
		})
		p := e.add(testPod("p", "4", ""))
		if got := message(p); !strings.Contains(got, "False SchedulerError: binding to node a: etcd is away") {
			t.Error(got)
		}
		time.Sleep(time.Minute)
		e.settle()
		if e.pod("p").Spec.NodeName != "a" {
			t.Fatal("not scheduled after binding failed")
		}
		gaps := []time.Duration{tries[1].Sub(tries[0]).Round(time.Second), tries[2].Sub(tries[1]).Round(time.Second)}
		if !slices.Equal(gaps, []time.Duration{time.Second, 2 * time.Second}) {
			t.Errorf("back-off %v", gaps)
		}
	})
}

func TestPriorityGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{})
		for i, prio := range []int32{0, 100, 50} {
			e.add(testPod(fmt.Sprint("p", i), "4", "", func(p *corev1.Pod) { p.Spec.Priority = &prio }))
		}
		time.Sleep(time.Minute) // all have backed off
		e.addNode(testNode("a"))
		if e.pod("p1").Spec.NodeName != "a" || e.pod("p0").Spec.NodeName != "" {
			t.Errorf("nodes %q %q %q", e.pod("p0").Spec.NodeName, e.pod("p1").Spec.NodeName, e.pod("p2").Spec.NodeName)
		}
	})
}

func TestPreempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"), testNode("b"))
		prio := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
		e.add(testPod("low-a", "3", "", prio(1)))
		e.add(testPod("low-b1", "2", "", prio(1)))
		e.add(testPod("low-b2", "2", "", prio(2)))
		never := e.add(testPod("never", "2", "", prio(100), func(p *corev1.Pod) {
			policy := corev1.PreemptNever
			p.Spec.PreemptionPolicy = &policy
		}))
		want := "False Unschedulable: 0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
		if got := message(never); got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
		zero := e.add(testPod("zero", "2", "", prio(0)))
		want = "False Unschedulable: 0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
		if got := message(zero); got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
		huge := e.add(testPod("huge", "5", "", prio(100)))
		want = "False Unschedulable: 0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
		if got := message(huge); got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
		for _, name := range []string{"never", "zero", "huge"} {
			e.remove(name)
		}

		// One victim of priority 1 does less harm than one of 1 and one of 2.
		high := e.add(testPod("high", "3", "", prio(100)))
		if high.Spec.NodeName != "a" {
			t.Errorf("on node %q, nominated %q: %s", high.Spec.NodeName, high.Status.NominatedNodeName, message(high))
		}
		if _, err := e.client.CoreV1().Pods("ns").Get(t.Context(), "low-a", metav1.GetOptions{}); err == nil {
			t.Error("the victim is still there")
		}
		for _, name := range []string{"low-b1", "low-b2"} {
			if e.pod(name).Spec.NodeName != "b" {
				t.Errorf("%s was disturbed", name)
			}
		}
	})
}

func TestPodAffinity(t *testing.T) {
	zone := func(z string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
	}
	term := func(key, app string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	}
	app := func(a string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"app": a} }
	}
	near := func(key, a string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(key, a)}}
		}
	}
	far := func(key, a string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(key, a)}}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a1", zone("a")), testNode("a2", zone("a")), testNode("b1", zone("b")))
		first := e.add(testPod("first", "", "", app("web"), near(corev1.LabelTopologyZone, "web")))
		if first.Spec.NodeName == "" {
			t.Fatalf("the first of a group: %s", message(first))
		}
		home := first.Spec.NodeName[:1]
		for i := range 4 {
			if p := e.add(testPod(fmt.Sprint("web", i), "", "", app("web"), near(corev1.LabelTopologyZone, "web"))); p.Spec.NodeName[:1] != home {
				t.Errorf("on %s, the others in zone %s", p.Spec.NodeName, home)
			}
		}
		lonely := e.add(testPod("lonely", "", "", near(corev1.LabelHostname, "nobody")))
		if got := message(lonely); !strings.HasPrefix(got, "False Unschedulable: 0/3 nodes are available: 3 node(s) didn't match pod affinity rules.") {
			t.Error(got)
		}
		friend := e.add(testPod("friend", "", "", app("nobody")))
		if got := e.pod("lonely").Spec.NodeName; got != friend.Spec.NodeName {
			t.Errorf("on %q, its friend on %q", got, friend.Spec.NodeName)
		}

		// One per node, three nodes.
		for i := range 3 {
			if p := e.add(testPod(fmt.Sprint("one", i), "", "", app("one"), far(corev1.LabelHostname, "one"))); p.Spec.NodeName == "" {
				t.Errorf("%d: %s", i, message(p))
			}
		}
		fourth := e.add(testPod("one3", "", "", app("one"), far(corev1.LabelHostname, "one")))
		if got := message(fourth); !strings.HasPrefix(got, "False Unschedulable: 0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.") {
			t.Error(got)
		}
		// It has no rule itself, but those there have.
		victim := e.add(testPod("plain", "", "", app("one")))
		if got := message(victim); !strings.HasPrefix(got, "False Unschedulable: 0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules.") {
			t.Error(got)
		}
	})
}

func TestTopologySpread(t *testing.T) {
	zone := func(z string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
	}
	spread := func(when corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "x"}
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: when,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
		}
	}
	for _, when := range []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway} {
		t.Run(string(when), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, Config{}, testNode("a1", zone("a")), testNode("a2", zone("a")), testNode("b1", zone("b")), testNode("none"))
				count := map[string]int{}
				for i := range 6 {
					count[e.add(testPod(fmt.Sprint("p", i), "100m", "", spread(when))).Spec.NodeName[:1]]++
				}
				if count["a"] != 3 || count["b"] != 3 {
					t.Errorf("by zone %v", count)
				}
				if when == corev1.ScheduleAnyway {
					return
				}
				n, err := e.client.CoreV1().Nodes().Get(t.Context(), "b1", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				n.Spec.Unschedulable = true
				e.update(n)
				e.add(testPod("p6", "100m", "", spread(when)))
				p := e.add(testPod("p7", "100m", "", spread(when)))
				want := "False Unschedulable: 0/4 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label), 1 node(s) were unschedulable, 2 node(s) didn't match pod topology spread constraints."
				if got := message(p); !strings.HasPrefix(got, want) {
					t.Errorf("condition %q, want %q", got, want)
				}
			})
		})
	}
}
