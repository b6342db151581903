package core

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/skiff-k8s/skiff/api/podfit"
)

type nameCheck func(v1.ResourceName, *field.Path) field.ErrorList

func (c *podChecker) checkResources(r *v1.ResourceRequirements, name nameCheck, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := p.Child("limits"), p.Child("requests")
	compute, hugePages := false, false
	amount := func(n v1.ResourceName, q resource.Quantity, p *field.Path) {
		compute = compute || n == v1.ResourceCPU || n == v1.ResourceMemory
		hugePages = hugePages || podfit.IsHugePages(n)
		errs = append(errs, name(n, p)...)
		errs = append(errs, quantity(n, q, p)...)
	}
	pages := func(n v1.ResourceName, q resource.Quantity, p *field.Path) {
		if podfit.IsHugePages(n) && !c.lax.indivisibleHugePages && !wholeHugePages(n, q) {
			errs = append(errs, field.Invalid(p, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), n)))
		}
	}
	for _, n := range sortedKeys(r.Limits) {
		amount(n, r.Limits[n], limits.Key(string(n)))
		pages(n, r.Limits[n], limits.Key(string(n)))
	}
	for _, n := range sortedKeys(r.Requests) {
		request := r.Requests[n]
		amount(n, request, requests.Key(string(n)))
		limit, limited := r.Limits[n]
		switch {
		case !limited && !podfit.MayOvercommit(n):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !podfit.MayOvercommit(n) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", n, limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", n, limit.String())))
		}
		pages(n, request, requests.Key(string(n)))
	}
	if hugePages && !compute {
		errs = append(errs, field.Forbidden(p, "HugePages require cpu or memory"))
	}
	return append(errs, c.checkClaimNames(r.Claims, p.Child("claims"))...)
}

func wholeHugePages(name v1.ResourceName, q resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 || size.MilliValue()%1000 != 0 {
		return false
	}
	return q.Value()%size.Value() == 0
}

func hasIndivisibleHugePages(r *v1.ResourceRequirements) bool {
	for _, list := range []v1.ResourceList{r.Limits, r.Requests} {
		for name, q := range list {
			if podfit.IsHugePages(name) && !wholeHugePages(name, q) {
				return true
			}
		}
	}
	return false
}

// checkClaimNames: each claim, or request within it, is named once and is the pod's.
func (c *podChecker) checkClaimNames(claims []v1.ResourceClaim, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, claim := range claims {
		p := p.Index(i)
		if claim.Name == "" {
			errs = append(errs, field.Required(p, ""))
			continue
		}
		key := claim.Name
		if claim.Request != "" && !seen.Has(claim.Name) {
			errs = append(errs, dnsLabel(claim.Request, p.Child("request"))...)
			key += "/" + claim.Request
		}
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(p, key))
		} else if claim.Request == "" {
			for other := range seen {
				if strings.HasPrefix(other, claim.Name+"/") {
					errs = append(errs, field.Duplicate(p, claim.Name))
				}
			}
		}
		seen.Insert(key)
		if !c.claims.Has(claim.Name) {
			missing := field.NotFound(p, claim.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims"
			if c.claims.Len() == 0 {
				missing.Detail += " which is empty"
			} else {
				missing.Detail += ": " + strings.Join(sets.List(c.claims), ", ")
			}
			errs = append(errs, missing)
		}
	}
	return errs
}

// checkPodResources checks pod-level resources and that the containers' fit into
// them (KEP-2837).
func (c *podChecker) checkPodResources(p *field.Path) field.ErrorList {
	r := c.spec.Resources
	if r == nil {
		return nil
	}
	if c.spec.OS != nil && c.spec.OS.Name == v1.Windows {
		return field.ErrorList{field.Forbidden(p, "may not be set for a windows pod")}
	}
	var errs field.ErrorList
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(p.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, c.checkResources(r, podResourceName, p)...)
	pod := &v1.Pod{Spec: *c.spec}
	requests := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(requests) {
		sum := requests[name]
		if own, set := r.Requests[name]; set && sum.Cmp(own) > 0 {
			errs = append(errs, field.Invalid(p.Child("requests").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	for _, name := range sortedKeys(limits) {
		sum := limits[name]
		if own, set := r.Limits[name]; podfit.IsHugePages(name) && set && sum.Cmp(own) > 0 {
			errs = append(errs, field.Invalid(p.Child("limits").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String())))
		}
	}
	for i := range c.spec.Containers {
		of := c.spec.Containers[i].Resources.Limits
		for _, name := range sortedKeys(of) {
			limit := of[name]
			if own, set := r.Limits[name]; set && limit.Cmp(own) > 0 {
				errs = append(errs, field.Invalid(p.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", own.String())))
			}
		}
	}
	return errs
}

func podResourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	errs := resourceName(name, p)
	if len(errs) == 0 && !resourcehelper.IsSupportedPodLevelResource(name) {
		errs = append(errs, field.NotSupported(p, name, slices.Sorted(slices.Values(resourcehelper.SupportedPodLevelResources().UnsortedList()))))
	}
	return errs
}
