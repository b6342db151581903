package scheduling

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func class(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)}, Value: value}
}

func TestPriorityClass(t *testing.T) {
	r := priorityClasses()
	c := class("high", 1000)
	apitest.Want(t, apitest.Create(r, c))
	apitest.Row(t, r.Row(c, time.Unix(1002, 0)), "high", int64(1000), false, "2s", "PreemptLowerPriority")
	for _, s := range SystemPriorityClasses() {
		apitest.Want(t, apitest.Create(r, s))
	}
	apitest.Want(t, apitest.Create(r, class("too-high", 1_000_000_001)), "value: Forbidden: maximum allowed value of a user defined priority is 1000000000")
	apitest.Want(t, apitest.Create(r, class("system-mine", 1)),
		"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class")
	apitest.Want(t, apitest.Create(r, class("system-node-critical", 1)),
		"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: value of system-node-critical PriorityClass must be 2000001000")
	odd := class("odd", 1)
	odd.PreemptionPolicy = ptr.To(corev1.PreemptionPolicy("Sometimes"))
	apitest.Want(t, apitest.Create(r, odd), `preemptionPolicy: Unsupported value: "Sometimes": supported values: "PreemptLowerPriority", "Never"`)

	next := c.DeepCopy()
	next.Value, next.PreemptionPolicy = 2, ptr.To(corev1.PreemptionPolicy("Never"))
	apitest.Want(t, apitest.Update(r, next, c), "value: Forbidden: may not be changed in an update.", `preemptionPolicy: Invalid value: "Never": field is immutable`)
}
