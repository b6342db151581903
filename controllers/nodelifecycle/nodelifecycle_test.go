package nodelifecycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/nodelifecycle"
	"github.com/skiff-k8s/skiff/controllers/tainteviction"
)

type flow struct {
	*controllertest.Env
	t *testing.T
}

func start(t *testing.T) flow {
	e := controllertest.New(t)
	c, err := nodelifecycle.New(nodelifecycle.Config{Config: e.Config})
	if err != nil {
		t.Fatal(err)
	}
	te, err := tainteviction.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.Start(c, te)
	return flow{e, t}
}

func (f flow) addNode(name string) {
	f.t.Helper()
	now := metav1.NewTime(time.Now())
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		s := corev1.ConditionFalse
		if c == corev1.NodeReady {
			s = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: s, LastHeartbeatTime: now})
	}
	if _, err := f.Client.CoreV1().Nodes().Create(f.t.Context(), n, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease}, Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now()))}}
	if _, err := f.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(f.t.Context(), l, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// beat renews leases of all but the silent nodes for a while.
func (f flow) beat(d time.Duration, silent ...string) {
	f.t.Helper()
	client := f.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for range d / (10 * time.Second) {
		f.After(10 * time.Second)
		list, err := client.List(f.t.Context(), metav1.ListOptions{})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, l := range list.Items {
			if slices.Contains(silent, l.Name) {
				continue
			}
			l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now()))
			if _, err := client.Update(f.t.Context(), &l, metav1.UpdateOptions{}); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

func (f flow) node(name string) *corev1.Node {
	f.t.Helper()
	n, err := f.Client.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func taints(n *corev1.Node) string {
	var all []string
	for _, t := range n.Spec.Taints {
		all = append(all, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func ready(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		for i := range 4 {
			f.addNode(fmt.Sprint("n", i))
		}
		pod := func(name string, tolerations ...corev1.Toleration) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
				Spec: corev1.PodSpec{NodeName: "n0", Tolerations: tolerations}}
			controllertest.MakeReady(p)
			if _, err := f.Client.CoreV1().Pods("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		exists := func(seconds *int64) corev1.Toleration {
			return corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
		}
		pod("none")
		pod("default", exists(ptr.To[int64](300)))
		pod("forever", exists(nil))

		f.beat(5 * time.Minute)
		if got := ready(f.node("n0")); got != "True " {
			t.Fatalf("a node that renews its lease is %s", got)
		}
		f.beat(40*time.Second, "n0")
		if got := ready(f.node("n0")); got != "True " {
			t.Fatalf("%s within the grace period", got)
		}
		f.beat(20*time.Second, "n0")
		if got := ready(f.node("n0")); got != "Unknown NodeStatusUnknown" {
			t.Fatalf("%s after the grace period", got)
		}
		if got := taints(f.node("n0")); got != "unreachable:NoExecute unreachable:NoSchedule" {
			t.Errorf("taints %s", got)
		}
		left := func() string {
			var names []string
			for _, p := range f.Pods("ns", "") {
				names = append(names, p.Name)
				if p.Status.Conditions[0].Status == corev1.ConditionTrue {
					t.Errorf("pod %s still ready", p.Name)
				}
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		if got := left(); got != "default forever" {
			t.Errorf("pods %s", got)
		}
		f.beat(310*time.Second, "n0")
		if got := left(); got != "forever" {
			t.Errorf("pods %s after tolerationSeconds", got)
		}

		// It comes back.
		n := f.node("n0")
		n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason, n.Status.Conditions[0].LastHeartbeatTime = corev1.ConditionTrue, "KubeletReady", metav1.Now()
		if _, err := f.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.beat(20 * time.Second)
		if got := taints(f.node("n0")); got != "" {
			t.Errorf("taints %s", got)
		}
		// Cordoned by kubectl.
		n = f.node("n0")
		n.Spec.Unschedulable = true
		if _, err := f.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		if got := taints(f.node("n0")); got != "unschedulable:NoSchedule" {
			t.Errorf("taints %s", got)
		}
	})
}

func TestAllSilentEmptiesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.addNode("n0")
		f.addNode("n1")
		f.After(5 * time.Minute)
		for _, n := range []string{"n0", "n1"} {
			if got := taints(f.node(n)); strings.Contains(got, "NoExecute") && n == "n1" {
				t.Errorf("%s: taints %s though every node is silent", n, got)
			}
		}
		if got := ready(f.node("n1")); got != "Unknown NodeStatusUnknown" {
			t.Error(got)
		}
	})
}
