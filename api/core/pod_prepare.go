package core

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
)

func preparePod(p *v1.Pod) {
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	dropDisabledPodFields(p, nil)
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulingGated,
			Message:            "Scheduling is blocked due to non-empty scheduling gates",
			LastTransitionTime: metav1.Now(),
		})
	}
	mergeLabelKeys(p)
	appArmorFromAnnotations(p)
	defaultPodLevelResources(p)
	p.Status.QOSClass = podfit.ComputeQOS(p)
}

func preparePodUpdate(p, old *v1.Pod) {
	p.Status = old.Status
	keepPodLevelResources(p, old)
	dropDisabledPodFields(p, old)
}

// keepPodLevelResources protects pod-level resources from clients that do not
// know the field.
func keepPodLevelResources(p, old *v1.Pod) {
	if p.Spec.Resources == nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

func preparePodStatus(p, old *v1.Pod) {
	p.Spec = old.Spec
	p.DeletionTimestamp = nil // set again from old by the server
	// Old kubelets would corrupt what garbage collection relies on.
	p.OwnerReferences = old.OwnerReferences
	s, before := &p.Status, &old.Status
	setIfEmpty(&s.QOSClass, before.QOSClass)
	// Clients that do not know these fields leave them out; an empty list clears.
	if s.ResourceClaimStatuses == nil {
		s.ResourceClaimStatuses = before.ResourceClaimStatuses
	}
	if s.ExtendedResourceClaimStatus == nil {
		s.ExtendedResourceClaimStatus = before.ExtendedResourceClaimStatus
	}
	if s.NodeAllocatableResourceClaimStatuses == nil {
		s.NodeAllocatableResourceClaimStatuses = before.NodeAllocatableResourceClaimStatuses
	}
	keepObservedGenerations(s, before)
	dropDisabledPodFields(p, old)
}

func keepObservedGenerations(s, before *v1.PodStatus) {
	setIfEmpty(&s.ObservedGeneration, before.ObservedGeneration)
	// Several conditions of one type may exist: they pair up in order.
	known := map[v1.PodConditionType][]int64{}
	for _, c := range before.Conditions {
		known[c.Type] = append(known[c.Type], c.ObservedGeneration)
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if list := known[c.Type]; len(list) > 0 {
			setIfEmpty(&c.ObservedGeneration, list[0])
			known[c.Type] = list[1:]
		}
	}
}

func prepareEphemeralContainers(p, old *v1.Pod) {
	containers := p.Spec.EphemeralContainers
	p.Spec, p.Status = old.Spec, old.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	p.Spec.EphemeralContainers = containers
	dropDisabledPodFields(p, old)
}

// preparePodResize keeps only what a resize may change. A pod whose containers
// do not line up is left as it is, for validation to refuse.
func preparePodResize(p, old *v1.Pod) {
	containers, ok := withResources(old.Spec.Containers, p.Spec.Containers)
	initContainers, okInit := withResources(old.Spec.InitContainers, p.Spec.InitContainers)
	if ok && okInit {
		resources := p.Spec.Resources
		p.Spec, p.Status = old.Spec, old.Status
		metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
		p.Spec.Resources, p.Spec.Containers, p.Spec.InitContainers = resources, containers, initContainers
	}
	keepPodLevelResources(p, old)
	defaultPodLevelResources(p)
	dropDisabledPodFields(p, old)
}

func withResources(old, resized []v1.Container) ([]v1.Container, bool) {
	if len(old) != len(resized) {
		return nil, false
	}
	merged := slices.Clone(old)
	for i := range resized {
		if merged[i].Name != resized[i].Name {
			return nil, false
		}
		merged[i].Resources, merged[i].ResizePolicy = resized[i].Resources, resized[i].ResizePolicy
	}
	return merged, true
}

// mergeLabelKeys writes the pod's own label values into the selectors that name
// their keys (KEP-3633, KEP-3243).
func mergeLabelKeys(p *v1.Pod) {
	add := func(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		if s == nil {
			return // selects nothing, with or without keys
		}
		for _, key := range keys {
			if value, has := p.Labels[key]; has {
				s.MatchExpressions = append(s.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	eachPodAffinityTerm(p.Spec.Affinity, func(t *v1.PodAffinityTerm) {
		add(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		add(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	})
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		add(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

func eachPodAffinityTerm(a *v1.Affinity, f func(*v1.PodAffinityTerm)) {
	if a == nil {
		return
	}
	if pa := a.PodAffinity; pa != nil {
		for i := range pa.PreferredDuringSchedulingIgnoredDuringExecution {
			f(&pa.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
		for i := range pa.RequiredDuringSchedulingIgnoredDuringExecution {
			f(&pa.RequiredDuringSchedulingIgnoredDuringExecution[i])
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		for i := range pa.PreferredDuringSchedulingIgnoredDuringExecution {
			f(&pa.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
		for i := range pa.RequiredDuringSchedulingIgnoredDuringExecution {
			f(&pa.RequiredDuringSchedulingIgnoredDuringExecution[i])
		}
	}
}

// appArmorFromAnnotations moves profiles from the annotations of before v1.30
// into the containers' security contexts (KEP-24).
func appArmorFromAnnotations(p *v1.Pod) {
	if len(p.Annotations) == 0 || p.Spec.OS != nil && p.Spec.OS.Name == v1.Windows {
		return
	}
	var podProfile *v1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		podProfile = p.Spec.SecurityContext.AppArmorProfile
	}
	eachContainer(&p.Spec, func(c *v1.Container) {
		annotation, has := p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
		if !has || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := appArmorProfile(annotation)
		if profile == nil || equality.Semantic.DeepEqual(profile, podProfile) {
			return
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &v1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = profile
	})
}

// appArmorProfile is what an annotation's value means as a field; nil: nothing valid.
func appArmorProfile(annotation string) *v1.AppArmorProfile {
	switch annotation {
	case v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	}
	name, local := strings.CutPrefix(annotation, v1.DeprecatedAppArmorBetaProfileNamePrefix)
	if !local || strings.TrimSpace(name) != name || name == "" || len(name) > 4095 {
		return nil
	}
	return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// eachContainer visits init, ordinary and ephemeral containers.
func eachContainer(s *v1.PodSpec, f func(*v1.Container)) {
	for i := range s.InitContainers {
		f(&s.InitContainers[i])
	}
	for i := range s.Containers {
		f(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		f((*v1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
}
