package policy

import (
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestPodDisruptionBudget(t *testing.T) {
	r := podDisruptionBudgets()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromString("50%")),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b", legacyLabel: "x"}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 3},
	}
	apitest.Want(t, apitest.Create(r, b))
	if b.Status.DisruptionsAllowed != 0 || len(b.Spec.Selector.MatchLabels) != 1 {
		t.Errorf("%+v", b)
	}
	b.Status.DisruptionsAllowed = 1
	apitest.Row(t, r.Row(b, time.Unix(1002, 0)), "b", "50%", "N/A", int64(1), "2s")

	next := b.DeepCopy()
	next.Spec.MaxUnavailable = ptr.To(intstr.FromString("150%"))
	next.Spec.MinAvailable = ptr.To(intstr.FromInt32(-1))
	next.Spec.UnhealthyPodEvictionPolicy = ptr.To[policyv1.UnhealthyPodEvictionPolicyType]("Never")
	apitest.Want(t, apitest.Update(r, next, b),
		"spec: Invalid value: {", "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0",
		`spec.maxUnavailable: Invalid value: "150%": must not be greater than 100%`,
		`spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget"`)

	next = b.DeepCopy()
	next.Spec.MinAvailable = nil
	next.Status.CurrentHealthy = -1
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, b), "status.currentHealthy: Invalid value: -1")
	if next.Spec.MinAvailable == nil {
		t.Error("a status update changes the spec")
	}

	all := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: legacyLabel, Operator: "DoesNotExist"}}}
	stripLegacyLabel(all)
	if len(all.MatchExpressions) != 1 {
		t.Error("the label on its own stands for a v1beta1 selector")
	}
}
