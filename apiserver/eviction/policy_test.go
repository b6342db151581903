package eviction_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// TestUnhealthyPodEvictionPolicy: which pods may go under which policy (KEP-3017), and whether
// that spends the budget.
func TestUnhealthyPodEvictionPolicy(t *testing.T) {
	client, err := kubernetes.NewForConfig(servertest.Full(t).Admin())
	if err != nil {
		t.Fatal(err)
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)
	always, ifHealthy := ptr.To(policyv1.AlwaysAllow), ptr.To(policyv1.IfHealthyBudget)
	for i, tt := range []struct {
		name                     string
		policy                   *policyv1.UnhealthyPodEvictionPolicyType
		phase                    corev1.PodPhase
		ready                    bool
		healthy, wanted, allowed int32
		goes, spends             bool
	}{
		{"healthy, budget left", nil, corev1.PodRunning, true, 3, 2, 1, true, true},
		{"healthy, none left", nil, corev1.PodRunning, true, 2, 2, 0, false, false},
		{"healthy, none left, always", always, corev1.PodRunning, true, 2, 2, 0, false, false},
		{"healthy, budget left, always", always, corev1.PodRunning, true, 3, 2, 1, true, true},
		{"unhealthy, enough others, no policy", nil, corev1.PodRunning, false, 2, 2, 0, true, false},
		{"unhealthy, enough others, if healthy", ifHealthy, corev1.PodRunning, false, 2, 2, 0, true, false},
		{"unhealthy, too few others, no policy", nil, corev1.PodRunning, false, 1, 2, 0, false, false},
		{"unhealthy, too few others, if healthy", ifHealthy, corev1.PodRunning, false, 1, 2, 0, false, false},
		{"unhealthy, too few others, always", always, corev1.PodRunning, false, 1, 2, 0, true, false},
		{"unhealthy, nobody healthy, always", always, corev1.PodRunning, false, 0, 2, 0, true, false},
		{"unhealthy, none wanted, if healthy", ifHealthy, corev1.PodRunning, false, 0, 0, 0, false, false},
		{"pending is no disruption", ifHealthy, corev1.PodPending, false, 0, 2, 0, true, false},
		{"nor is what has ended", nil, corev1.PodFailed, false, 0, 2, 0, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, name := t.Context(), fmt.Sprintf("p%d", i)
			pods, budgets := client.CoreV1().Pods("default"), client.PolicyV1().PodDisruptionBudgets("default")
			labels := map[string]string{"app": name}
			pod, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
				Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: ptr.To[int64](0)}}, metav1.CreateOptions{})
			must(t, err)
			pod.Status.Phase = tt.phase
			if tt.ready {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			must(t, err)
			pdb, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt32(tt.wanted)), Selector: &metav1.LabelSelector{MatchLabels: labels}, UnhealthyPodEvictionPolicy: tt.policy}}, metav1.CreateOptions{})
			must(t, err)
			pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, CurrentHealthy: tt.healthy, DesiredHealthy: tt.wanted, DisruptionsAllowed: tt.allowed, ExpectedPods: 3}
			_, err = budgets.UpdateStatus(ctx, pdb, metav1.UpdateOptions{})
			must(t, err)

			err = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
			if tt.goes && err != nil || !tt.goes && !apierrors.IsTooManyRequests(err) {
				t.Errorf("evicted: %v, should be %v", err, tt.goes)
			}
			_, err = pods.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) != tt.goes {
				t.Errorf("pod after it: %v", err)
			}
			pdb, err = budgets.Get(ctx, name, metav1.GetOptions{})
			must(t, err)
			if _, noted := pdb.Status.DisruptedPods[name]; noted != tt.spends || pdb.Status.DisruptionsAllowed != tt.allowed-map[bool]int32{true: 1}[tt.spends] {
				t.Errorf("budget after it: %d allowed, %v", pdb.Status.DisruptionsAllowed, pdb.Status.DisruptedPods)
			}
		})
	}
}
