package podfit

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Requests are what a pod asks of a node in all: containers side by side, init
// containers in turn, pod-level requests and overhead, with what a running pod
// was granted taken into account (KEP-1287).
func Requests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// SpecRequests are the requests by the spec alone, whatever was granted.
func SpecRequests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// Limits are what a pod may use in all, by its spec.
func Limits(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
}

// Defaults that scoring assumes for containers without requests.
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 << 20
)

// NonzeroRequests are the CPU (in thousandths) and memory (in bytes) that
// scoring counts: containers that name no request count with the defaults.
func NonzeroRequests(pod *v1.Pod) (milliCPU, memory int64) {
	reqs := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
		NonMissingContainerRequests: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
		},
	})
	return reqs.Cpu().MilliValue(), reqs.Memory().Value()
}

// IsNative tells whether a resource is in the kubernetes.io domain, as all names
// without a domain are.
func IsNative(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") ||
		strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// IsHugePages tells whether a resource is huge pages of some size.
func IsHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// IsExtended tells whether a resource is one that a device plugin or an
// administrator counts in whole units.
func IsExtended(name v1.ResourceName) bool {
	if IsNative(name) || strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix) {
		return false
	}
	// Quotas name it with a prefix that must fit as well.
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// IsAttachable tells whether a resource counts volumes that a node can attach.
func IsAttachable(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceAttachableVolumesPrefix)
}

// IsScalar tells whether the scheduler counts a resource by name, other than
// CPU, memory, ephemeral storage and pods.
func IsScalar(name v1.ResourceName) bool {
	return IsExtended(name) || IsHugePages(name) || IsAttachable(name) ||
		strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// MayOvercommit tells whether limits may exceed requests.
func MayOvercommit(name v1.ResourceName) bool { return IsNative(name) && !IsHugePages(name) }
