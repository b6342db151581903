package resourcequota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Pods of these resources are summed up from pods.
var podResources = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage, "count/pods",
}

const (
	requestsPrefix = "requests."
	limitsPrefix   = "limits."
	countPrefix    = "count/"
)

func ofPods(name corev1.ResourceName) bool {
	if slices.Contains(podResources, name) {
		return true
	}
	rest, ok := strings.CutPrefix(string(name), requestsPrefix)
	return ok && (podfit.IsExtended(corev1.ResourceName(rest)) || podfit.IsHugePages(corev1.ResourceName(rest))) || podfit.IsHugePages(name)
}

// podUsage is what one pod uses of a quota's resource.
func podUsage(p *corev1.Pod, name corev1.ResourceName, requests, limits corev1.ResourceList) resource.Quantity {
	s := string(name)
	switch {
	case name == corev1.ResourcePods || name == "count/pods":
		return *resource.NewQuantity(1, resource.DecimalSI)
	case strings.HasPrefix(s, requestsPrefix):
		return requests[corev1.ResourceName(s[len(requestsPrefix):])]
	case strings.HasPrefix(s, limitsPrefix):
		return limits[corev1.ResourceName(s[len(limitsPrefix):])]
	}
	return requests[name]
}

// matches reports whether a pod is within a quota's scopes.
func matches(q *corev1.ResourceQuota, p *corev1.Pod) bool {
	for _, s := range q.Spec.Scopes {
		if !inScope(p, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists}) {
			return false
		}
	}
	if q.Spec.ScopeSelector != nil {
		for _, r := range q.Spec.ScopeSelector.MatchExpressions {
			if !inScope(p, r) {
				return false
			}
		}
	}
	return true
}

func inScope(p *corev1.Pod, r corev1.ScopedResourceSelectorRequirement) bool {
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return p.Spec.ActiveDeadlineSeconds != nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return p.Spec.ActiveDeadlineSeconds == nil
	case corev1.ResourceQuotaScopeBestEffort:
		return podfit.ComputeQOS(p) == corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopeNotBestEffort:
		return podfit.ComputeQOS(p) != corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopePriorityClass:
		return selects(r, p.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossNamespace(p)
	}
	return false
}

func selects(r corev1.ScopedResourceSelectorRequirement, value string) bool {
	switch r.Operator {
	case corev1.ScopeSelectorOpIn:
		return slices.Contains(r.Values, value)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(r.Values, value)
	case corev1.ScopeSelectorOpExists:
		return value != ""
	}
	return value == "" // DoesNotExist
}

func crossNamespace(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, w := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, w.PodAffinityTerm)
		}
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, w := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, w.PodAffinityTerm)
		}
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}

// sumPods adds up the pods in scope that have not ended.
func sumPods(q *corev1.ResourceQuota, names []corev1.ResourceName, pods []*corev1.Pod, used corev1.ResourceList) {
	for _, n := range names {
		used[n] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	for _, p := range pods {
		// count/pods counts objects; the others what runs.
		in := matches(q, p)
		if !in {
			continue
		}
		requests, limits := podfit.Requests(p), podfit.Limits(p)
		for _, n := range names {
			if n != "count/pods" && ownership.Ended(p) {
				continue
			}
			sum := used[n]
			sum.Add(podUsage(p, n, requests, limits))
			used[n] = sum
		}
	}
}

// sumServices adds up Services and what they take of scarce things.
func sumServices(names []corev1.ResourceName, services []*corev1.Service, used corev1.ResourceList) {
	var total, nodePorts, balancers int64
	for _, s := range services {
		total++
		switch s.Spec.Type {
		case corev1.ServiceTypeNodePort:
			nodePorts += int64(len(s.Spec.Ports))
		case corev1.ServiceTypeLoadBalancer:
			balancers++
			if s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts {
				nodePorts += int64(len(s.Spec.Ports))
			} else {
				for _, p := range s.Spec.Ports {
					if p.NodePort != 0 {
						nodePorts++
					}
				}
			}
		}
	}
	for _, n := range names {
		v := total
		switch n {
		case corev1.ResourceServicesNodePorts:
			v = nodePorts
		case corev1.ResourceServicesLoadBalancers:
			v = balancers
		}
		used[n] = *resource.NewQuantity(v, resource.DecimalSI)
	}
}

const classSuffix = ".storageclass.storage.k8s.io/"

// sumClaims adds up claims: in all, and by storage class.
func sumClaims(names []corev1.ResourceName, claims []*corev1.PersistentVolumeClaim, used corev1.ResourceList) {
	for _, n := range names {
		class, what, byClass := strings.Cut(string(n), classSuffix)
		if !byClass {
			what = string(n)
		}
		sum := resource.NewQuantity(0, resource.BinarySI)
		for _, c := range claims {
			if byClass && (c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != class) {
				continue
			}
			if what == string(corev1.ResourceRequestsStorage) {
				q := c.Spec.Resources.Requests[corev1.ResourceStorage]
				sum.Add(q)
			} else {
				sum.Add(*resource.NewQuantity(1, resource.DecimalSI))
			}
		}
		used[n] = *sum
	}
}

func ofServices(n corev1.ResourceName) bool {
	return n == corev1.ResourceServices || n == corev1.ResourceServicesNodePorts || n == corev1.ResourceServicesLoadBalancers || n == "count/services"
}

func ofClaims(n corev1.ResourceName) bool {
	return n == corev1.ResourcePersistentVolumeClaims || n == corev1.ResourceRequestsStorage || n == "count/persistentvolumeclaims" || strings.Contains(string(n), classSuffix)
}
