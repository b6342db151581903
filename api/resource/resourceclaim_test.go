package resource

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func claim(requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu", Namespace: "default", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}
}

func exactly(name, class string, selectors ...string) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: name, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}}
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: s}})
	}
	return r
}

func TestClaimCreate(t *testing.T) {
	r := resourceClaims()
	c := claim(exactly("a", "gpu.example.com", `device.attributes["gpu.example.com"].model == "x" && device.capacity["gpu.example.com"].memory.compareTo(quantity("10Gi")) >= 0`),
		resourcev1.DeviceRequest{Name: "b", FirstAvailable: []resourcev1.DeviceSubRequest{
			{Name: "big", DeviceClassName: "big"}, {Name: "small", DeviceClassName: "small", Count: 2},
		}})
	c.Spec.Devices.Requests[0].Exactly.DerivedAttributes = []resourcev1.DeviceDerivedAttribute{{Name: "x.y/z"}}
	c.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{Requests: []string{"a", "b/big"}, MatchAttribute: ptr.To(resourcev1.FullyQualifiedName("gpu.example.com/numa"))}}
	c.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{Requests: []string{"b"}, DeviceConfiguration: opaque(`{"a":1}`)}}
	apitest.Want(t, apitest.Create(r, c))
	if e := c.Spec.Devices.Requests[0].Exactly; e.Count != 1 || e.AllocationMode != "ExactCount" || e.DerivedAttributes != nil {
		t.Errorf("not defaulted: %v", e)
	}
	apitest.Row(t, r.Row(c, time.Unix(1002, 0)), "gpu", "pending", "2s")

	both := exactly("both", "c")
	both.FirstAvailable = []resourcev1.DeviceSubRequest{{}}
	all := exactly("all", "c")
	all.Exactly.AllocationMode, all.Exactly.Count = "All", 3
	odd := exactly("odd", "Class")
	odd.Exactly.AllocationMode = "Some"
	odd.Exactly.Tolerations = []resourcev1.DeviceToleration{{Operator: "Exists", Value: "v", Effect: "Explode"}, {}, {Operator: "Maybe", Key: "-"}}
	bad := claim(exactly("A", "", `device.driver == "x"`, `device.attributes`, `1 +`), resourcev1.DeviceRequest{Name: "none"}, both, all, odd, all)
	bad.Spec.Devices.Requests[0].Exactly.Selectors = append(bad.Spec.Devices.Requests[0].Exactly.Selectors, resourcev1.DeviceSelector{})
	bad.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{
		{Requests: []string{"all", "all", "nobody", "a/b/c"}},
		{DistinctAttribute: ptr.To(resourcev1.FullyQualifiedName("plain"))},
		{MatchAttribute: ptr.To(resourcev1.FullyQualifiedName("/1"))},
	}
	bad.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{}, {DeviceConfiguration: opaque(`[]`)}, {DeviceConfiguration: opaque(`{`)}, {DeviceConfiguration: opaque(`null`)}}
	bad.Spec.Devices.Config[1].Opaque.Driver = "Bad_"
	const devices = "spec.devices."
	const unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	apitest.Want(t, apitest.Create(r, bad),
		devices+`requests[0].name: Invalid value: "A": a lowercase RFC 1123 label`,
		devices+"requests[0].exactly.deviceClassName: Required value",
		devices+`requests[0].exactly.selectors[1].cel.expression: Invalid value: "device.attributes": must evaluate to bool`,
		devices+`requests[0].exactly.selectors[2].cel.expression: Invalid value: "1 +": compilation failed: ERROR: `,
		devices+"requests[0].exactly.selectors[3].cel: Required value",
		devices+"requests[1]: Required value: exactly one of `exactly` or `firstAvailable` is required",
		devices+"requests[2]: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
		devices+"requests[3].exactly.count: Invalid value: 3: must not be specified when allocationMode is 'All'",
		devices+`requests[4].exactly.deviceClassName: Invalid value: "Class"`,
		devices+`requests[4].exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount"`,
		devices+"requests[4].exactly.tolerations[0].value: Invalid value: \"v\": must be empty for operator `Exists`",
		devices+`requests[4].exactly.tolerations[0].effect: Unsupported value: "Explode": supported values: "NoExecute", "NoSchedule", "None"`,
		devices+`requests[4].exactly.tolerations[2].operator: Unsupported value: "Maybe": supported values: "Equal", "Exists"`,
		devices+`requests[4].exactly.tolerations[2].key: Invalid value: "-"`,
		devices+"requests[5].exactly.count: Invalid value",
		devices+`requests[5]: Duplicate value: {"name":"all"`,
		devices+`constraints[0].requests[2]: Invalid value: "nobody": `+unknown,
		devices+`constraints[0].requests[3]: Invalid value: "a/b/c": `+unknown,
		devices+`constraints[0].requests[1]: Duplicate value: "all"`,
		devices+`constraints[0]: Required value: exactly one of "matchAttribute" or "distinctAttribute"`,
		devices+`constraints[1].distinctAttribute: Invalid value: "plain": a fully qualified name must be`,
		devices+`constraints[2].matchAttribute: Invalid value: "": prefix must not be empty`,
		devices+`constraints[2].matchAttribute: Invalid value: "1": a valid C identifier`,
		devices+"config[0].opaque: Required value",
		devices+`config[1].opaque.driver: Invalid value: "Bad_": an RFC 1123 subdomain must consist of alphanumeric characters`,
		devices+`config[1].opaque.parameters: Invalid value: "<value omitted>": must be a valid JSON object`,
		devices+`config[2].opaque.parameters: Invalid value: "<value omitted>": error parsing data as JSON`,
		devices+"config[3].opaque.parameters: Required value",
	)

	next := c.DeepCopy()
	next.Spec.Devices.Requests[0].Name = "z"
	apitest.Want(t, apitest.Update(r, next, c), "spec: Invalid value")
}

func opaque(parameters string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
		Driver: "gpu.example.com", Parameters: runtime.RawExtension{Raw: []byte(parameters)},
	}}
}

func TestClaimStatus(t *testing.T) {
	r := resourceClaims()
	old := claim(exactly("a", "c"))
	apitest.Want(t, apitest.Create(r, old))

	next := old.DeepCopy()
	next.Labels = map[string]string{"not": "kept"}
	next.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: "a", Driver: "gpu.example.com", Pool: "node-1/pool", Device: "gpu-0",
				ShareID:            ptr.To(types.UID("c1c2f6a6-6b8c-4c39-a3c6-0a4d9b1e0a11")),
				SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"},
			}},
			Config: []resourcev1.DeviceAllocationConfiguration{{Source: "FromClass", DeviceConfiguration: opaque(`{}`)}},
		},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: "In", Values: []string{"node-1"},
		}}}}},
	}
	next.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	next.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
		Driver: "gpu.example.com", Pool: "node-1/pool", Device: "gpu-0", ShareID: ptr.To("c1c2f6a6-6b8c-4c39-a3c6-0a4d9b1e0a11"),
		Data: &runtime.RawExtension{Raw: []byte(`{"a":1}`)}, NetworkData: &resourcev1.NetworkDeviceData{IPs: []string{"10.9.8.7/24"}},
	}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, old))
	if next.Labels != nil || next.Status.Allocation.Devices.Results[0].SkipNodeOperations != nil {
		t.Errorf("the status update kept too much: %v", next)
	}
	apitest.Row(t, r.Row(next, time.Unix(1002, 0)), "gpu", "allocated,reserved", "2s")

	// Freed devices lose their status; the allocation cannot change.
	freed := next.DeepCopy()
	freed.Status.Allocation, freed.Status.ReservedFor = nil, nil
	apitest.Want(t, apitest.UpdateSub(t, r, "status", freed, next))
	if freed.Status.Devices != nil {
		t.Errorf("status of freed devices stays: %v", freed.Status.Devices)
	}
	changed := next.DeepCopy()
	changed.Status.Allocation.Devices.Results[0].Device = "gpu-1"
	changed.Status.Devices = nil
	apitest.Want(t, apitest.UpdateSub(t, r, "status", changed, next), "status.allocation: Invalid value")

	dying := next.DeepCopy()
	dying.DeletionTimestamp = ptr.To(metav1.Unix(1001, 0))
	deleted := dying.DeepCopy()
	deleted.Status.ReservedFor = append(deleted.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{})
	apitest.Want(t, apitest.UpdateSub(t, r, "status", deleted, dying),
		"status.reservedFor[1].resource: Required value", "status.reservedFor[1].name: Required value", "status.reservedFor[1].uid: Required value",
		"status.reservedFor: Forbidden: new entries may not be added while")

	bad := old.DeepCopy()
	bad.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}, {Resource: "pods", Name: "q", UID: "1"}}
	bad.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
		Driver: "d", Pool: "p", Device: "x", Data: &runtime.RawExtension{Raw: []byte(`1`)},
		NetworkData: &resourcev1.NetworkDeviceData{IPs: []string{"10.0.0.1"}}, ShareID: ptr.To("C1C2F6A6-6B8C-4C39-A3C6-0A4D9B1E0A11"),
	}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", bad, old),
		`status.reservedFor[1]: Duplicate value: {`,
		"status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
		`status.devices[0]: Invalid value: "d/p/x/C1C2F6A6`,
		"status.devices[0].shareID: Invalid value: \"C1C2F6A6-6B8C-4C39-A3C6-0A4D9B1E0A11\": must be a lowercase UUID in 8-4-4-4-12 format",
		"status.devices[0].data: Invalid value", "status.devices[0].networkData.ips[0]: Invalid value: \"10.0.0.1\": must be a valid address in CIDR form")

	bad = old.DeepCopy()
	bad.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: "b", Pool: "a//b", Device: "d",
			BindingConditions: []string{"x", "x"}, BindingFailureConditions: []string{"x"},
		}, {Request: "a", Driver: "d", Pool: "p", Device: "d", BindingConditions: []string{"x"}}},
		Config: []resourcev1.DeviceAllocationConfiguration{{}},
	}, NodeSelector: &corev1.NodeSelector{}}
	const results = "status.allocation.devices.results"
	apitest.Want(t, apitest.UpdateSub(t, r, "status", bad, old),
		results+`[0].request: Invalid value: "b"`, results+"[0].driver: Required value", results+`[0].pool: Invalid value: "a//b": segment 1: must not be empty`,
		results+`[0].bindingConditions[1]: Duplicate value: "x"`,
		results+`[0].bindingFailureConditions[0]: Invalid value: "x": bindingFailureConditions must not overlap`,
		results+`[1].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions`,
		"status.allocation.devices.config[0].source: Required value", "status.allocation.devices.config[0].opaque: Required value",
		"status.allocation.nodeSelector.nodeSelectorTerms: Required value")
}

func TestWantsAdmin(t *testing.T) {
	c := claim(exactly("a", "c"), exactly("b", "c"))
	c.Spec.Devices.Requests[1].Exactly.AdminAccess = ptr.To(true)
	if got := WantsAdmin(c, nil).String(); got != "spec.devices.requests[1].adminAccess" {
		t.Error(got)
	}
	if got := WantsAdmin(&resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: c.Spec}}, nil); got == nil {
		t.Error("the template does not want it")
	}
	if got := WantsAdmin(claim(exactly("a", "c")), nil); got != nil {
		t.Error(got)
	}
	next := c.DeepCopy()
	next.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{AdminAccess: ptr.To(true)}},
	}}
	if got := WantsAdmin(next, c).String(); got != "status.allocation.devices.results[0].adminAccess" {
		t.Error(got)
	}
	if got := WantsAdmin(next, next); got != nil {
		t.Error("what was granted is asked for again:", got)
	}
}

func TestTemplate(t *testing.T) {
	r := resourceClaimTemplates()
	tmpl := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "t", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: resourcev1.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec:       claim(exactly("a", "c")).Spec,
		},
	}
	apitest.Want(t, apitest.Create(r, tmpl))
	apitest.Row(t, r.Row(tmpl, time.Unix(1002, 0)), "t", "2s")
	bad := tmpl.DeepCopy()
	bad.Spec.Name = "x"
	bad.Spec.Spec.Devices.Requests[0].Exactly.Count = -1
	apitest.Want(t, apitest.Create(r, bad), "spec.metadata.name: Forbidden: cannot be set", "spec.spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero")
	next := tmpl.DeepCopy()
	next.Spec.Labels["a"] = "c"
	apitest.Want(t, apitest.Update(r, next, tmpl), "spec: Invalid value")
}
