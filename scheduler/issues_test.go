package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// Each test here is one that upstream's scheduler once failed, told by its issue.

func withPriority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

func labelled(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			p.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func on1(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func onHost(selectors ...map[string]string) []corev1.PodAffinityTerm {
	var terms []corev1.PodAffinityTerm
	for _, s := range selectors {
		terms = append(terms, corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: s}})
	}
	return terms
}

func shuns(selectors ...map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: onHost(selectors...)}}
	}
}

// TestVictimsDoLeastHarm is the kind of kubernetes/kubernetes #129136 and its forerunner
// #128307: which node's pods are preempted when budgets and priorities speak for different
// ones. Budgets broken by those who must really go count first, then the most important of
// them, wherever in the order of eviction it stands.
func TestVictimsDoLeastHarm(t *testing.T) {
	type there struct {
		name, cpu string
		priority  int32
		node      string
		protected bool
	}
	tests := []struct {
		name string
		pods []there
		want []string // victims
	}{
		{"#129136: low is spared, so that no budget breaks", []there{
			{"high", "3", 1000, "a", false}, {"low", "1", 0, "a", true}, {"mid", "3", 100, "b", true}},
			[]string{"high"}},
		{"#128307: low must go too, so that the budgets weigh the same", []there{
			{"high", "2", 1000, "a", false}, {"low", "2", 0, "a", true}, {"mid", "3", 100, "b", true}},
			[]string{"mid"}},
		{"two broken budgets are worse than one important pod", []there{
			{"low1", "2", 0, "a", true}, {"low2", "2", 1, "a", true}, {"high", "3", 1000, "b", true}},
			[]string{"high"}},
		{"no budgets: the least important", []there{
			{"high", "3", 1000, "a", false}, {"mid", "3", 100, "b", false}},
			[]string{"mid"}},
		{"no budgets, same priority: fewer", []there{
			{"a1", "2", 10, "a", false}, {"a2", "2", 10, "a", false}, {"b1", "3", 10, "b", false}},
			[]string{"b1"}},
		{"the protected one is spared where either would do", []there{
			{"small", "1", 10, "a", true}, {"big", "3", 100, "a", false}, {"full", "4", 20000, "b", false}},
			[]string{"big"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{testNode("a"), testNode("b"), &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "budget"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"protected": "yes"}}},
				}}
				for _, p := range tt.pods {
					change := []func(*corev1.Pod){withPriority(p.priority), on1(p.node)}
					if p.protected {
						change = append(change, labelled("protected", "yes"))
					}
					objs = append(objs, testPod(p.name, p.cpu, "", change...))
				}
				e := start(t, Config{}, objs...)
				e.add(testPod("very-high", "3", "", withPriority(10000)))
				var gone []string
				for _, p := range tt.pods {
					if _, err := e.client.CoreV1().Pods("ns").Get(t.Context(), p.name, metav1.GetOptions{}); err != nil {
						gone = append(gone, p.name)
					}
				}
				if !slices.Equal(gone, tt.want) {
					t.Errorf("victims %v, want %v; condition %s", gone, tt.want, message(e.pod("very-high")))
				}
			})
		})
	}
}

// TestRepellingPodGoes is kubernetes/kubernetes #134393: a pod waits because one that is there
// has an anti-affinity against it, and has none itself.
func TestRepellingPodGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"))
		e.add(testPod("hermit", "", "", shuns(map[string]string{"app": "web"})))
		if p := e.add(testPod("web", "", "", labelled("app", "web"))); p.Spec.NodeName != "" {
			t.Fatalf("on %s beside one that shuns it", p.Spec.NodeName)
		}
		e.remove("hermit")
		time.Sleep(20 * time.Second) // its back-off
		e.settle()
		if p := e.pod("web"); p.Spec.NodeName != "a" {
			t.Errorf("waits on: %s", message(p))
		}
	})
}

// TestOneOfSeveralTerms is kubernetes/kubernetes #139135: a pod that goes need match but one
// of the waiting pod's anti-affinity terms for having been in its way.
func TestOneOfSeveralTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"))
		e.add(testPod("web", "", "", labelled("app", "web")))
		if p := e.add(testPod("hermit", "", "", shuns(map[string]string{"app": "db"}, map[string]string{"app": "web"}))); p.Spec.NodeName != "" {
			t.Fatalf("on %s beside one that it shuns", p.Spec.NodeName)
		}
		e.remove("web")
		time.Sleep(20 * time.Second)
		e.settle()
		if p := e.pod("hermit"); p.Spec.NodeName != "a" {
			t.Errorf("waits on: %s", message(p))
		}
	})
}

// TestUnboundPodFreesItsRoom is kubernetes/kubernetes #122444: pods that were refused because
// of one whose binding failed are tried again, whatever plugin refused them.
func TestUnboundPodFreesItsRoom(t *testing.T) {
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
	}
	web := map[string]string{"app": "web"}
	for _, tt := range []struct {
		name, cpu string
		change    []func(*corev1.Pod)
	}{
		{"resources", "4", nil},
		{"host ports", "", []func(*corev1.Pod){port}},
		{"anti-affinity", "", []func(*corev1.Pod){labelled("app", "web"), shuns(web)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, Config{Profiles: []Profile{{Extra: []framework.Plugin{holdsFirst{}}}}}, testNode("a"))
				e.add(testPod("first", tt.cpu, "", tt.change...))
				if p := e.add(testPod("second", tt.cpu, "", tt.change...)); p.Spec.NodeName != "" {
					t.Fatalf("on %s beside one that is assumed there", p.Spec.NodeName)
				}
				time.Sleep(time.Minute) // less than the flush
				e.settle()
				if p := e.pod("second"); p.Spec.NodeName != "a" {
					t.Errorf("waits on: %s", message(p))
				}
			})
		})
	}
}

// holdsFirst keeps the binding of the pod named first for ten seconds, then it has failed.
type holdsFirst struct{}

func (holdsFirst) Name() string { return "HoldsFirst" }

func (holdsFirst) Permit(c *framework.Cycle, _ string) (time.Duration, *framework.Status) {
	if c.Pod.Name != "first" {
		return 0, nil
	}
	return 10 * time.Second, framework.NewStatus(framework.Wait, "HoldsFirst")
}

func (holdsFirst) Hints() []framework.Hint { return nil }

// TestRollingUpdateStaysSpread is kubernetes/kubernetes #98215: while a Deployment rolls, pods
// of the revision that goes must not decide where those go that stay, if matchLabelKeys say so.
func TestRollingUpdateStaysSpread(t *testing.T) {
	const hash = "pod-template-hash"
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, MatchLabelKeys: []string{hash}}}
	}
	for seed := range 5 { // which of the old goes first
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, Config{}, testNode("a"), testNode("b"), testNode("c"))
				for i := range 5 {
					e.add(testPod(fmt.Sprint("old", i), "", "", labelled("app", "x", hash, "1"), spread))
				}
				for i := range 5 { // surge by one: the new one comes before the old one goes
					p := e.add(testPod(fmt.Sprint("new", i), "", "", labelled("app", "x", hash, "2"), spread))
					if p.Spec.NodeName == "" {
						t.Fatalf("waits: %s", message(p))
					}
					e.remove(fmt.Sprint("old", (i+seed)%5))
				}
				count := map[string]int{}
				for i := range 5 {
					count[e.pod(fmt.Sprint("new", i)).Spec.NodeName]++
				}
				if count["a"] == 0 || count["b"] == 0 || count["c"] == 0 {
					t.Errorf("after the update %v", count)
				}
			})
		})
	}
}

// TestNominationWithdrawn: the room that was kept for a pod is free for others once that pod
// goes elsewhere or is deleted.
func TestNominationWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"), testPod("low", "4", "", withPriority(1), on1("a"), func(p *corev1.Pod) {
			p.Finalizers = []string{"test/keep"}
		}))
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		e.client.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.(k8stesting.DeleteAction).GetName() != "low" {
				return false, nil, nil
			}
			o, err := e.client.Tracker().Get(pods, "ns", "low")
			if err != nil {
				return true, nil, err
			}
			p := o.(*corev1.Pod).DeepCopy()
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, e.client.Tracker().Update(pods, p, "ns")
		})
		if p := e.add(testPod("high", "4", "", withPriority(100))); p.Status.NominatedNodeName != "a" {
			t.Fatalf("nominated %q: %s", p.Status.NominatedNodeName, message(p))
		}
		e.add(testPod("small", "2", "", withPriority(1)))
		if err := e.client.Tracker().Delete(pods, "ns", "low"); err != nil {
			t.Fatal(err)
		}
		e.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "binding" && a.(k8stesting.CreateAction).GetObject().(*corev1.Binding).Name == "high" {
				return true, nil, errors.New("never")
			}
			return false, nil, nil
		})
		e.settle()
		e.remove("high")
		time.Sleep(20 * time.Second)
		e.settle()
		if p := e.pod("small"); p.Spec.NodeName != "a" {
			t.Errorf("waits on: %s", message(p))
		}
	})
}
