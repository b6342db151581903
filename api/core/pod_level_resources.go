package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// defaultPodLevelResources completes pod-level resources from the containers'
// (KEP-2837), once admission has added all containers. Each step builds on the
// one before: huge page limits, then requests, then other limits.
func defaultPodLevelResources(p *v1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Requests) == 0 && len(r.Limits) == 0 {
		return
	}
	// Ephemeral containers have no resources, and status does not count here.
	spec := &v1.Pod{Spec: v1.PodSpec{Containers: p.Spec.Containers, InitContainers: p.Spec.InitContainers}}
	limits := resourcehelper.AggregateContainerLimits(spec, resourcehelper.PodResourcesOptions{})
	requests := resourcehelper.AggregateContainerRequests(spec, resourcehelper.PodResourcesOptions{})

	for name, q := range limits {
		if _, requested := r.Requests[name]; podfit.IsHugePages(name) && !requested {
			addMissing(&r.Limits, name, q)
		}
	}
	for name, q := range requests {
		if resourcehelper.IsSupportedPodLevelResource(name) && podfit.MayOvercommit(name) {
			addMissing(&r.Requests, name, q)
		}
	}
	for name, q := range r.Limits {
		if resourcehelper.IsSupportedPodLevelResource(name) {
			addMissing(&r.Requests, name, q)
		}
	}
	for name, request := range r.Requests {
		if !resourcehelper.IsSupportedPodLevelResource(name) || !allLimit(&p.Spec, name) {
			continue
		}
		limit, has := limits[name]
		if !has {
			continue
		}
		if request.Cmp(limit) > 0 {
			limit = request // a request above the limit would be invalid
		}
		addMissing(&r.Limits, name, limit)
	}
}

func addMissing(list *v1.ResourceList, name v1.ResourceName, q resource.Quantity) {
	if _, has := (*list)[name]; has {
		return
	}
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

// allLimit tells whether every container limits the resource.
func allLimit(s *v1.PodSpec, name v1.ResourceName) bool {
	all := true
	eachContainer(s, func(c *v1.Container) {
		if _, has := c.Resources.Limits[name]; !has {
			all = false
		}
	})
	return all
}
