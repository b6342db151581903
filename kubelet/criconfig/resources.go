package criconfig

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/host/cgroup"
)

const (
	minShares, maxShares = 2, 262144
	quotaPeriod          = 100000 // µs
	minQuota             = 1000

	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// Shares converts thousandths of a CPU to cpu.shares.
func Shares(milli int64) int64 { return min(max(milli*1024/1000, minShares), maxShares) }

// Quota converts thousandths of a CPU to µs per 100 ms; 0: no limit.
func Quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*quotaPeriod/1000, minQuota)
}

func quantity(l corev1.ResourceList, name corev1.ResourceName) *resource.Quantity {
	if q, ok := l[name]; ok {
		return &q
	}
	return nil
}

// linuxResources: a missing request means the limit.
func linuxResources(n *Node, request *resource.Quantity, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	cpu := limits.Cpu().MilliValue()
	ask := cpu
	if request != nil {
		ask = request.MilliValue()
	}
	r := &runtimeapi.LinuxContainerResources{CpuShares: Shares(ask), MemoryLimitInBytes: limits.Memory().Value()}
	if n.CPUQuota {
		r.CpuPeriod, r.CpuQuota = quotaPeriod, Quota(cpu)
	}
	return r
}

// ContainerResources are the limits of a container. Pod-level limits (KEP-2837)
// stand in for those that it lacks.
func ContainerResources(n *Node, pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	limits := corev1.ResourceList{}
	for k, v := range c.Resources.Limits {
		limits[k] = v
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) && pod.Spec.Resources != nil {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q := limits[name]; q.IsZero() {
				if p, ok := pod.Spec.Resources.Limits[name]; ok {
					limits[name] = p
				}
			}
		}
	}
	r := linuxResources(n, quantity(c.Resources.Requests, corev1.ResourceCPU), limits)
	r.OomScoreAdj = OOMScore(pod, c, n.MemoryCapacity)
	asked := map[string]uint64{}
	for name, q := range limits {
		if podfit.IsHugePages(name) {
			if size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)); err == nil {
				asked[pageSizeName(size.Value())] = uint64(q.Value())
			}
		}
	}
	for _, size := range n.HugePageSizes {
		r.HugepageLimits = append(r.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: size, Limit: asked[size]})
	}
	return r
}

func pageSizeName(bytes int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GB"}, {1 << 20, "MB"}, {1 << 10, "KB"}} {
		if bytes >= u.size && bytes%u.size == 0 {
			return resource.NewQuantity(bytes/u.size, resource.DecimalSI).String() + u.name
		}
	}
	return ""
}

// OOMScore is how eagerly the kernel kills a container: guaranteed ones last, best
// effort first, the others the sooner the less memory they asked for.
func OOMScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= nodeCritical || pod.Spec.PriorityClassName == "system-node-critical" {
		return guaranteedOOMScore
	}
	switch podfit.QOS(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case corev1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	if capacity <= 0 {
		capacity = 1
	}
	extra := podMemoryShare(pod)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+extra)/capacity
	if isSidecar(pod, c) {
		// A sidecar is not killed before the containers that it serves.
		least := int64(-1)
		for i := range pod.Spec.Containers {
			if m := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); least < 0 || m < least {
				least = m
			}
		}
		score = min(score, 1000-1000*(least+extra)/capacity)
	}
	if score < 1000+guaranteedOOMScore {
		return 1000 + guaranteedOOMScore
	}
	return min(score, bestEffortOOMScore-1)
}

const nodeCritical = 2000001000 // priority of system-node-critical

// podMemoryShare divides a pod-level memory request that no container claims.
func podMemoryShare(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil {
		return 0
	}
	whole, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	if !ok {
		return 0
	}
	rest, count := whole.Value(), int64(0)
	claim := func(c *corev1.Container) {
		rest -= c.Resources.Requests.Memory().Value()
		count++
	}
	for i := range pod.Spec.Containers {
		claim(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podfit.Restartable(c) {
			claim(c)
		}
	}
	if rest <= 0 || count == 0 {
		return 0
	}
	return rest / count
}

func isSidecar(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return podfit.Restartable(&pod.Spec.InitContainers[i])
		}
	}
	return false
}

// PodLimits are the limits of the pod's own group: those of all containers
// together, where every one of them has some.
func PodLimits(pod *corev1.Pod, quota bool, pids int64) cgroup.Limits {
	requests, limits := podfit.SpecRequests(pod), podfit.Limits(pod)
	l := cgroup.Limits{CPUShares: uint64(Shares(requests.Cpu().MilliValue())), Pids: pids}
	cpuAll, memAll := true, true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			cpuAll = cpuAll && !list[i].Resources.Limits.Cpu().IsZero()
			memAll = memAll && !list[i].Resources.Limits.Memory().IsZero()
		}
	}
	if r := pod.Spec.Resources; r != nil {
		cpuAll = cpuAll || !r.Limits.Cpu().IsZero()
		memAll = memAll || !r.Limits.Memory().IsZero()
	}
	if cpuAll && quota {
		l.CPUQuota, l.CPUPeriod = Quota(limits.Cpu().MilliValue()), quotaPeriod
	}
	if memAll {
		l.MemoryBytes = limits.Memory().Value()
	}
	return l
}
