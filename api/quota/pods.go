package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api/podfit"
)

const podCount = corev1.ResourceName("count/pods")

// podResources are what a pod uses besides huge pages and extended resources.
var podResources = []corev1.ResourceName{
	podCount, corev1.ResourcePods,
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
}

const (
	requestsPrefix          = corev1.DefaultResourceRequestsPrefix
	requestsHugePagesPrefix = corev1.ResourceRequestsHugePagesPrefix
)

func countsPods(name corev1.ResourceName) bool {
	s := string(name)
	if slices.Contains(podResources, name) || strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, requestsHugePagesPrefix) {
		return true
	}
	extended, ok := strings.CutPrefix(s, requestsPrefix)
	return ok && strings.Contains(extended, "/") && !podfit.IsNative(corev1.ResourceName(extended))
}

// podUsage of a pod that has ended, or should have by now, is its object alone.
func podUsage(obj runtime.Object, now time.Time) corev1.ResourceList {
	pod := obj.(*corev1.Pod)
	out := corev1.ResourceList{podCount: number(1)}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return out
	}
	if d, g := pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds; d != nil && g != nil && now.After(d.Add(time.Duration(*g)*time.Second)) {
		return out
	}
	maps.Copy(out, computeUsage(podfit.Requests(pod), podfit.Limits(pod)))
	return out
}

func computeUsage(requests, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: number(1)}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if v, ok := requests[name]; ok {
			out[name] = v
			out[requestsPrefix+name] = v
		}
		if v, ok := limits[name]; ok {
			out["limits."+name] = v
		}
	}
	for name, v := range requests {
		switch {
		case podfit.IsHugePages(name):
			out[name] = v
			out[requestsPrefix+name] = v
		case podfit.IsExtended(name):
			out[requestsPrefix+name] = v
		}
	}
	return out
}

// podMissing: under a quota on CPU or memory each container must say how much it takes.
func podMissing(names []corev1.ResourceName, obj runtime.Object) error {
	pod := obj.(*corev1.Pod)
	if pod.Spec.Resources != nil && (len(pod.Spec.Resources.Requests) > 0 || len(pod.Spec.Resources.Limits) > 0) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			has := computeUsage(list[i].Resources.Requests, list[i].Resources.Limits)
			for _, name := range names {
				switch name {
				case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
					corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
				default:
					continue
				}
				if _, ok := has[name]; !ok {
					missing[name] = append(missing[name], list[i].Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		containers := missing[name]
		slices.Sort(containers)
		parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Compact(containers), ",")))
	}
	return errors.New("must specify " + strings.Join(parts, "; "))
}

func podInScope(s *corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool {
	pod := obj.(*corev1.Pod)
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminates(pod)
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminates(pod)
	case corev1.ResourceQuotaScopeBestEffort:
		return podfit.ComputeQOS(pod) == corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopeNotBestEffort:
		return podfit.ComputeQOS(pod) != corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopePriorityClass:
		return matches(s, pod.Spec.PriorityClassName, pod.Spec.PriorityClassName != "")
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod)
	}
	return false
}

func terminates(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
}

func crossesNamespaces(p *corev1.Pod) bool {
	if p.Spec.Affinity == nil {
		return false
	}
	crosses := func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	weighted := func(t corev1.WeightedPodAffinityTerm) bool { return crosses(t.PodAffinityTerm) }
	if a := p.Spec.Affinity.PodAffinity; a != nil && (slices.ContainsFunc(a.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
		slices.ContainsFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, weighted)) {
		return true
	}
	a := p.Spec.Affinity.PodAntiAffinity
	return a != nil && (slices.ContainsFunc(a.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
		slices.ContainsFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, weighted))
}

// ChangesScope says whether an update moves a pod from one quota to another.
func ChangesScope(pod, old *corev1.Pod) bool { return terminates(pod) != terminates(old) }
