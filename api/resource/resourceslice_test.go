package resource

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func slice(devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: "node-1", ResourceSliceCount: 1},
			NodeName: ptr.To("node-1"), Devices: devices,
		},
	}
}

func amount(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

func TestSlice(t *testing.T) {
	r := resourceSlices()
	s := slice(resourcev1.Device{
		Name: "gpu-0",
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"model": {StringValue: ptr.To("x")}, "gpu.example.com/version": {VersionValue: ptr.To("1.2.3-rc.1+b")}, "n": {IntValue: ptr.To[int64](1)},
		},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi"), RequestPolicy: &resourcev1.CapacityRequestPolicy{
			Default: amount("2Gi"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: amount("1Gi"), Max: amount("8Gi"), Step: amount("1Gi")},
		}}},
		AllowMultipleAllocations: ptr.To(true),
		Taints:                   []resourcev1.DeviceTaint{{Key: "a", Effect: "NoSchedule"}},
		ConsumesCounters:         []resourcev1.DeviceCounterConsumption{{CounterSet: "set", Counters: map[string]resourcev1.Counter{"c": {Value: resource.MustParse("1")}}, CompatibilityGroups: []string{"g"}}},
	})
	s.Spec.SkipNodeOperations = []resourcev1.SkipNodeOperation{"*"}
	apitest.Want(t, apitest.Create(r, s))
	d := s.Spec.Devices[0]
	if d.Taints[0].TimeAdded == nil || d.ConsumesCounters[0].CompatibilityGroups != nil || s.Spec.SkipNodeOperations != nil {
		t.Errorf("defaults or dropped fields are wrong: %v", s.Spec)
	}
	apitest.Row(t, r.Row(s, time.Unix(1002, 0)), "s", "node-1", "gpu.example.com", "node-1", "2s")
	if f := r.Fields(s); f["spec.nodeName"] != "node-1" || f["spec.driver"] != "gpu.example.com" || f["spec.pool.name"] != "node-1" {
		t.Errorf("fields: %v", f)
	}

	counters := slice()
	counters.Spec.Devices = nil
	counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "set", Counters: map[string]resourcev1.Counter{"c": {}}}}
	apitest.Want(t, apitest.Create(r, counters))

	next := s.DeepCopy()
	next.Spec.Driver, next.Spec.Pool.Name, next.Spec.NodeName = "other", "other", nil
	next.Spec.AllNodes = ptr.To(true)
	apitest.Want(t, apitest.Update(r, next, s),
		`spec.pool.name: Invalid value: "other": field is immutable`, `spec.driver: Invalid value: "other": field is immutable`, "spec.nodeName: Invalid value: null: field is immutable")
	if w := r.Warnings(t.Context(), slice(), nil); w != nil {
		t.Error(w)
	}
	loud := slice()
	loud.Spec.Driver = "GPU.example.com"
	if w := r.Warnings(t.Context(), loud, s); len(w) != 1 {
		t.Error(w)
	}
}

func TestSliceErrors(t *testing.T) {
	r := resourceSlices()
	bad := slice()
	bad.Spec.Pool.ResourceSliceCount, bad.Spec.Pool.Generation = 0, -1
	bad.Spec.AllNodes = ptr.To(false)
	bad.Spec.NodeSelector = &corev1.NodeSelector{}
	bad.Spec.Devices = []resourcev1.Device{}
	bad.Spec.SharedCounters = []resourcev1.CounterSet{{}, {Name: "a", Counters: map[string]resourcev1.Counter{"B": {}}}, {Name: "a", Counters: map[string]resourcev1.Counter{"b": {}}}}
	apitest.Want(t, apitest.Create(r, bad),
		"spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
		"spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
		"spec.nodeSelector.nodeSelectorTerms: Required value", "spec.nodeSelector.nodeSelectorTerms: Invalid value: null: must have exactly one node selector term",
		"spec.allNodes: Invalid value: false: must be either unset or set to true",
		"spec: Invalid value: \"{`nodeName`, `nodeSelector`}\": exactly one of `nodeName`",
		"spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed",
		"spec.sharedCounters[0].name: Required value", "spec.sharedCounters[0].counters: Required value",
		`spec.sharedCounters[1].counters: Invalid value: "B"`, `spec.sharedCounters[2]: Duplicate value: {"name":"a"`)
	none := slice()
	none.Spec.NodeName = ptr.To("")
	apitest.Want(t, apitest.Create(r, none),
		`spec.nodeName: Invalid value: "": must be either unset or set to a non-empty string`, "spec: Required value: exactly one of `nodeName`")

	long := resourcev1.QualifiedName(strings.Repeat("a", 100))
	apitest.Want(t, apitest.Create(r, slice(resourcev1.Device{
		Name: "d", NodeName: ptr.To("n"),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"none": {}, "two": {BoolValue: ptr.To(true), IntValue: ptr.To[int64](1)}, "v": {VersionValue: ptr.To("1.2")},
			"s": {StringValue: ptr.To(strings.Repeat("x", 65))}, long: {BoolValue: ptr.To(true)},
		},
		Taints: []resourcev1.DeviceTaint{{Value: "-", Effect: "Odd"}, {Key: "k"}},
	}, resourcev1.Device{Name: "d"})),
		"spec.devices[0].attributes[none]: Invalid value: \"\": must specify one of: `int`, `bool`",
		`spec.devices[0].attributes[two]: Invalid value: "{int, bool}": must specify exactly one of: `,
		`spec.devices[0].attributes[v].version: Invalid value: "1.2": must be a string compatible with semver.org spec 2.0.0`,
		"spec.devices[0].attributes[s].string: Too long: may not be more than 64 bytes",
		"spec.devices[0].attributes: Too long: may not be more than 32 bytes",
		"spec.devices[0].taints[0].key: Invalid value: \"\"", "spec.devices[0].taints[0].value: Invalid value", "spec.devices[0].taints[0].key: Invalid value",
		"spec.devices[0].taints[0].effect: Unsupported value", "spec.devices[0].taints[1].effect: Required value",
		"spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set",
		`spec.devices[1]: Duplicate value: "d"`)
	if got := shorten(string(long)); len(got) != 96 || !strings.Contains(got, "...") {
		t.Error(got)
	}
}

func TestPerDeviceNodes(t *testing.T) {
	r := resourceSlices()
	s := slice(
		resourcev1.Device{Name: "a", AllNodes: ptr.To(true)},
		resourcev1.Device{Name: "b"},
		resourcev1.Device{Name: "c", NodeName: ptr.To(""), AllNodes: ptr.To(false)},
		resourcev1.Device{Name: "d", NodeName: ptr.To("n"), AllNodes: ptr.To(true), NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}},
	)
	s.Spec.NodeName, s.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required"
	apitest.Want(t, apitest.Create(r, s),
		"spec.devices[1]: Required value: "+one,
		`spec.devices[2].nodeName: Invalid value: "": must not be empty`, "spec.devices[2].allNodes: Invalid value: false", "spec.devices[2]: Required value: "+one,
		"spec.devices[3]: Invalid value: \"{`nodeName`, `nodeSelector`, `allNodes`}\": "+one)
}

func TestCapacity(t *testing.T) {
	r := resourceSlices()
	const p = "spec.devices[0].capacity[c].requestPolicy"
	for _, c := range []struct {
		policy resourcev1.CapacityRequestPolicy
		want   []string
	}{
		{resourcev1.CapacityRequestPolicy{}, nil},
		{resourcev1.CapacityRequestPolicy{Default: amount("2"), ValidValues: []resource.Quantity{*amount("1"), *amount("2")}}, nil},
		{resourcev1.CapacityRequestPolicy{ValidValues: []resource.Quantity{*amount("1")}}, []string{p + ".default: Required value: required when validValues is defined"}},
		{resourcev1.CapacityRequestPolicy{ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, []string{p + ".default: Required value: required when validRange is defined"}},
		{resourcev1.CapacityRequestPolicy{ValidValues: []resource.Quantity{*amount("1")}, ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, []string{p + `: Forbidden: exactly one policy can be specified`}},
		{resourcev1.CapacityRequestPolicy{Default: amount("5"), ValidValues: []resource.Quantity{*amount("20"), *amount("1"), *amount("1")}}, []string{
			p + `.validValues[1]: Invalid value: "1": values must be sorted in ascending order`,
			p + `.validValues[0]: Invalid value: "20": option is larger than capacity value: 10`,
			p + `.validValues[2]: Duplicate value: "1"`,
			p + `.validValues: Invalid value: "5": default value is not valid according to the requestPolicy`}},
		{resourcev1.CapacityRequestPolicy{Default: amount("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, []string{p + ".validRange.min: Required value"}},
		{resourcev1.CapacityRequestPolicy{Default: amount("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: amount("12"), Max: amount("11"), Step: amount("0")}}, []string{
			p + `.validRange.min: Invalid value: "12": min is larger than capacity value: 10`,
			p + `.validRange.default: Invalid value: "1": default is less than min: 12`,
			p + `.validRange.max: Invalid value: "12": min is larger than max: 11`,
			p + `.validRange.max: Invalid value: "11": max is larger than capacity value: 10`,
			p + `.validRange.step: Invalid value: "0": must be greater than zero`}},
		{resourcev1.CapacityRequestPolicy{Default: amount("4"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: amount("1"), Max: amount("3"), Step: amount("2")}}, []string{
			p + `.validRange.default: Invalid value: "4": default is more than max: 3`,
			p + `.validRange.step: Invalid value: "4": value is not a multiple of a given step (2) from (1)`}},
		{resourcev1.CapacityRequestPolicy{Default: amount("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: amount("1"), Step: amount("36893488147419103232")}}, []string{
			p + `.validRange.step: Invalid value: "36893488147419103232": one step`,
			p + `.validRange.step: Invalid value: "36893488147419103232": must not be larger than 9223372036854775807`}},
		{resourcev1.CapacityRequestPolicy{Default: amount("-1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: amount("-1"), Step: amount("1")}}, []string{
			p + `.validRange.default: Invalid value: "-1": must be greater than or equal to 0`,
			p + `.validRange.min: Invalid value: "-1": must be greater than or equal to 0`}},
	} {
		s := slice(resourcev1.Device{
			Name: "d", AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"c": {Value: resource.MustParse("10"), RequestPolicy: &c.policy}},
		})
		apitest.Want(t, apitest.Create(r, s), c.want...)
	}
	s := slice(resourcev1.Device{Name: "d", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"c": {RequestPolicy: &resourcev1.CapacityRequestPolicy{}}}})
	apitest.Want(t, apitest.Create(r, s), p+": Forbidden: allowMultipleAllocations must be true")
	apitest.Want(t, apitest.Update(r, s.DeepCopy(), s))
}
