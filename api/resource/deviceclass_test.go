package resource

import (
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestDeviceClass(t *testing.T) {
	r := deviceClasses()
	c := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: resourcev1.DeviceClassSpec{
			Selectors:            []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}},
			Config:               []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: opaque(`{}`)}},
			ExtendedResourceName: ptr.To("example.com/gpu"),
		},
	}
	apitest.Want(t, apitest.Create(r, c))
	apitest.Row(t, r.Row(c, time.Unix(1002, 0)), "gpu", "2s")

	bad := c.DeepCopy()
	bad.Spec.Selectors[0].CEL.Expression = "nonsense"
	bad.Spec.Config[0].DeviceConfiguration = opaque(`{"a":"` + strings.Repeat("x", 11<<10) + `"}`)
	bad.Spec.ExtendedResourceName = ptr.To("cpu")
	want := []string{
		"spec.selectors[0].cel.expression: Invalid value: \"nonsense\": compilation failed",
		"spec.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
		`spec.extendedResourceName: Invalid value: "cpu": a name must be a domain-prefixed path`,
	}
	apitest.Want(t, apitest.Create(r, bad), want...)
	apitest.Want(t, apitest.Update(r, bad, c), want...)
	// What is stored stays valid.
	apitest.Want(t, apitest.Update(r, bad.DeepCopy(), bad), want[2])
}

func TestDeviceTaintRule(t *testing.T) {
	r := deviceTaintRules()
	rule := &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "broken", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: ptr.To("gpu.example.com"), Pool: ptr.To("node-1"), Device: ptr.To("gpu-0")},
			Taint:          resourcev1.DeviceTaint{Key: "broken", Value: "yes", Effect: "NoExecute", TimeAdded: ptr.To(metav1.Unix(1001, 0))},
		},
	}
	apitest.Want(t, apitest.Create(r, rule))
	apitest.Row(t, r.Row(rule, time.Unix(1002, 0)), "broken", "broken", "yes", "NoExecute", "1s", "2s")

	next := rule.DeepCopy()
	next.Spec.Taint.Effect = "None"
	apitest.Want(t, apitest.Update(r, next, rule))
	if next.Spec.Taint.TimeAdded.Equal(rule.Spec.Taint.TimeAdded) {
		t.Error("the new effect has the old time")
	}

	bad := rule.DeepCopy()
	bad.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Driver: ptr.To(""), Pool: ptr.To(""), Device: ptr.To("")}
	bad.Spec.Taint.Effect = "Odd"
	apitest.Want(t, apitest.Create(r, bad),
		"spec.deviceSelector.driver: Required value", "spec.deviceSelector.pool: Required value", `spec.deviceSelector.device: Invalid value: ""`,
		`spec.taint.effect: Unsupported value: "Odd": supported values: "NoExecute", "NoSchedule", "None"`)

	status := rule.DeepCopy()
	status.Spec.Taint.Value = "no"
	for range 9 {
		status.Status.Conditions = append(status.Status.Conditions, metav1.Condition{Type: "A", Status: "True", Reason: "R", LastTransitionTime: metav1.Unix(1, 0)})
	}
	got := apitest.UpdateSub(t, r, "status", status, rule)
	if len(got) != 9 || status.Spec.Taint.Value != "yes" { // eight duplicates and the size
		t.Error(got)
	}
}
