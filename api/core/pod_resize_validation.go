package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// validatePodResize lets CPU and memory change, and nothing else (KEP-1287).
func validatePodResize(p, old *v1.Pod) field.ErrorList {
	nowhere, spec := field.NewPath(""), field.NewPath("spec")
	if isMirror(old.Annotations) {
		return field.ErrorList{field.Forbidden(nowhere, "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == v1.Windows {
		return field.ErrorList{field.Forbidden(nowhere, "windows pods cannot be resized")}
	}
	errs := validatePodAndSpec(p, old)
	if podfit.QOS(old) != podfit.ComputeQOS(p) {
		errs = append(errs, field.Invalid(spec, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !nodeResizes(old) {
		errs = append(errs, field.Forbidden(spec, "Pod running on node without support for resize"))
	}
	rest := p.Spec.DeepCopy() // loses all that may change; what is left must be equal
	errs = append(errs, takeBackPodLevelResize(rest, &old.Spec, spec)...)
	if bad := sameContainers(&p.Spec, &old.Spec, spec); len(bad) > 0 {
		return append(errs, bad...)
	}
	for i := range rest.InitContainers {
		c, before, at := &rest.InitContainers[i], &old.Spec.InitContainers[i], spec.Child("initContainers").Index(i)
		errs = append(errs, nothingRemoved(&c.Resources, &before.Resources, "resource", at.Child("resources"))...)
		changed := !equality.Semantic.DeepEqual(c, before)
		takeBackComputeResources(&c.Resources, &before.Resources)
		if !equality.Semantic.DeepEqual(c, before) {
			errs = append(errs, field.Forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable"))
		}
		for _, r := range c.ResizePolicy {
			if changed && !podfit.Restartable(c) && r.RestartPolicy == v1.RestartContainer {
				errs = append(errs, field.Forbidden(at, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
			}
		}
	}
	for i := range rest.Containers {
		c, before := &rest.Containers[i], &old.Spec.Containers[i]
		errs = append(errs, nothingRemoved(&c.Resources, &before.Resources, "resource", spec.Child("containers").Index(i).Child("resources"))...)
		takeBackComputeResources(&c.Resources, &before.Resources)
		if !equality.Semantic.DeepEqual(c, before) {
			errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
		}
	}
	if len(errs) == 0 && !equality.Semantic.DeepEqual(*rest, old.Spec) {
		errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
	}
	return errs
}

// nodeResizes tells whether the node's kubelet resizes pods: those that do report
// the resources of running containers. Before one runs, it is assumed.
func nodeResizes(p *v1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.State.Running != nil {
			return c.Resources != nil
		}
	}
	return true
}

func sameContainers(now, before *v1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, c := range []struct {
		name        string
		now, before []v1.Container
	}{{"containers", now.Containers, before.Containers}, {"initContainers", now.InitContainers, before.InitContainers}} {
		p := p.Child(c.name)
		if len(c.now) != len(c.before) {
			errs = append(errs, field.Forbidden(p, c.name+" may not be added or removed on resize"))
			continue
		}
		for i := range c.now {
			if c.now[i].Name != c.before[i].Name {
				errs = append(errs, field.Forbidden(p.Index(i).Child("name"), c.name+" may not be renamed or reordered on resize"))
			}
		}
	}
	return errs
}

func nothingRemoved(now, before *v1.ResourceRequirements, what string, p *field.Path) field.ErrorList {
	removed := func(now, before v1.ResourceList) bool {
		for name := range before {
			if _, has := now[name]; !has {
				return true
			}
		}
		return false
	}
	var errs field.ErrorList
	if removed(now.Requests, before.Requests) {
		errs = append(errs, field.Forbidden(p.Child("requests"), what+" requests cannot be removed"))
	}
	if removed(now.Limits, before.Limits) {
		errs = append(errs, field.Forbidden(p.Child("limits"), what+" limits cannot be removed"))
	}
	return errs
}

func takeBackPodLevelResize(rest, old *v1.PodSpec, p *field.Path) field.ErrorList {
	set := func(r *v1.ResourceRequirements) bool { return r != nil && len(r.Requests)+len(r.Limits) > 0 }
	if !set(rest.Resources) && !set(old.Resources) {
		return nil
	}
	if rest.Resources == nil {
		return field.ErrorList{field.Forbidden(p.Child("resources"), "pod-level resources cannot be removed")}
	}
	before := old.Resources
	if before == nil {
		before = &v1.ResourceRequirements{}
	}
	errs := nothingRemoved(rest.Resources, before, "pod-level resource", p.Child("resources"))
	takeBackComputeResources(rest.Resources, before)
	if old.Resources == nil && !set(rest.Resources) && len(rest.Resources.Claims) == 0 {
		rest.Resources = nil
	}
	if !equality.Semantic.DeepEqual(rest.Resources, old.Resources) {
		errs = append(errs, field.Forbidden(p, "only cpu and memory resources are mutable at pod-level"))
	}
	return errs
}

func takeBackComputeResources(r, old *v1.ResourceRequirements) {
	r.Requests = withComputeOf(r.Requests, old.Requests)
	r.Limits = withComputeOf(r.Limits, old.Limits)
}

func withComputeOf(list, old v1.ResourceList) v1.ResourceList {
	if list == nil && old == nil {
		return nil
	}
	if list == nil {
		list = v1.ResourceList{}
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if q, has := old[name]; has {
			list[name] = q
		} else {
			delete(list, name)
		}
	}
	return list
}
