package core

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/skiff-k8s/skiff/api/podfit"
)

func validatePodStatus(p, old *v1.Pod) field.ErrorList {
	errs := validatePodAnnotationUpdate(p, old)
	errs = append(errs, validatePodAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations"), !validDeletionCost(old.Annotations))...)
	at := field.NewPath("status")
	s, before := &p.Status, &old.Status
	for i, c := range s.Conditions {
		at := at.Child("conditions").Index(i)
		if c.ObservedGeneration < 0 {
			errs = append(errs, field.Invalid(at.Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer"))
		}
		errs = append(errs, qualifiedName(string(c.Type), at.Child("Type"))...)
	}
	if s.NominatedNodeName != before.NominatedNodeName && s.NominatedNodeName != "" {
		at := at.Child("nominatedNodeName")
		errs = append(errs, dnsSubdomain(s.NominatedNodeName, at)...)
		if old.Spec.NodeName != "" {
			errs = append(errs, field.Forbidden(at, "may not be set on pods that are already bound to a node"))
		}
	}
	if s.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(at.Child("observedGeneration"), s.ObservedGeneration, "must be a non-negative integer"))
	}
	errs = append(errs, immutable(s.QOSClass, before.QOSClass, at.Child("qosClass"))...)
	errs = append(errs, noneResurrected(s.ContainerStatuses, before.ContainerStatuses, old.Spec.Containers, &old.Spec, at.Child("containerStatuses"))...)
	errs = append(errs, noneResurrected(s.InitContainerStatuses, before.InitContainerStatuses, old.Spec.InitContainers, &old.Spec, at.Child("initContainerStatuses"))...)
	errs = append(errs, noneResurrected(s.EphemeralContainerStatuses, before.EphemeralContainerStatuses, nil, nil, at.Child("ephemeralContainerStatuses"))...)
	errs = append(errs, validateClaimStatuses(s.ResourceClaimStatuses, p.Spec.ResourceClaims, at.Child("resourceClaimStatuses"))...)
	errs = append(errs, validateExtendedResourceClaim(s.ExtendedResourceClaimStatus, &p.Spec, at.Child("extendedResourceClaimStatus"))...)
	errs = append(errs, validatePodIPs(s, before, at.Child("podIPs"))...)
	errs = append(errs, validateHostIPs(s, before, at.Child("hostIPs"))...)
	for _, c := range []struct {
		name     string
		statuses []v1.ContainerStatus
		specs    []v1.Container
	}{
		{"containerStatuses", s.ContainerStatuses, p.Spec.Containers},
		{"initContainerStatuses", s.InitContainerStatuses, p.Spec.InitContainers},
		{"ephemeralContainerStatuses", s.EphemeralContainerStatuses, nil},
	} {
		for i := range c.statuses {
			at, cs := at.Child(c.name).Index(i), &c.statuses[i]
			errs = append(errs, validateContainerUser(cs.User, p.Spec.OS, at.Child("user"))...)
			if c.name == "ephemeralContainerStatuses" {
				if len(cs.AllocatedResourcesStatus) > 0 {
					errs = append(errs, field.Forbidden(at.Child("allocatedResourcesStatus"), "must not be specified in container status"))
				}
				continue
			}
			errs = append(errs, validateResourceHealth(cs, c.specs, s, at.Child("allocatedResourcesStatus"))...)
		}
	}
	return errs
}

// noneResurrected refuses to see a container run again that ended for good. spec
// is nil for ephemeral containers, which always end for good.
func noneResurrected(now, before []v1.ContainerStatus, containers []v1.Container, spec *v1.PodSpec, p *field.Path) field.ErrorList {
	if spec != nil && podfit.MayRestartAll(spec) {
		return nil
	}
	var errs field.ErrorList
	for i := range before {
		ended := before[i].State.Terminated
		if ended == nil {
			continue
		}
		byName := func(s v1.ContainerStatus) bool { return s.Name == before[i].Name }
		at := slices.IndexFunc(now, byName)
		if at < 0 || now[at].State.Terminated != nil {
			continue
		}
		c := slices.IndexFunc(containers, func(c v1.Container) bool { return c.Name == before[i].Name })
		if c < 0 || !podfit.ShouldRestart(&containers[c], spec, ended.ExitCode) {
			errs = append(errs, field.Forbidden(p.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
		}
	}
	return errs
}

func validatePodIPs(s, before *v1.PodStatus, p *field.Path) field.ErrorList {
	ips, known := make([]string, len(s.PodIPs)), make([]string, len(before.PodIPs))
	for i, ip := range s.PodIPs {
		ips[i] = ip.IP
	}
	for i, ip := range before.PodIPs {
		known[i] = ip.IP
	}
	errs := validateStatusIPs(ips, known, s.PodIPs, p)
	switch {
	case (s.PodIP == "") != (len(ips) == 0):
		errs = append(errs, field.Invalid(p, s.PodIPs, "podIP and podIPs must either both be set or both be unset"))
	case len(ips) > 0 && ips[0] != s.PodIP:
		errs = append(errs, field.Invalid(p.Index(0).Child("ip"), ips[0], "must be equal to `podIP`"))
	}
	return errs
}

func validateHostIPs(s, before *v1.PodStatus, p *field.Path) field.ErrorList {
	if len(s.HostIPs) == 0 {
		return nil
	}
	ips, known := make([]string, len(s.HostIPs)), make([]string, len(before.HostIPs))
	for i, ip := range s.HostIPs {
		ips[i] = ip.IP
	}
	for i, ip := range before.HostIPs {
		known[i] = ip.IP
	}
	var errs field.ErrorList
	if ips[0] != s.HostIP {
		errs = append(errs, field.Invalid(p.Index(0).Child("ip"), ips[0], "must be equal to `hostIP`"))
	}
	return append(errs, validateStatusIPs(ips, known, s.HostIPs, p)...)
}

// validateStatusIPs allows one address of each family.
func validateStatusIPs(ips, known []string, shown any, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range ips {
		errs = append(errs, validation.IsValidIPForLegacyField(p.Index(i), ip, true, known)...)
	}
	if len(ips) > 1 {
		dual, err := netutils.IsDualStackIPStrings(ips)
		if err != nil {
			errs = append(errs, field.InternalError(p, fmt.Errorf("failed to check for dual stack with error:%w", err)))
		}
		if !dual || len(ips) > 2 {
			errs = append(errs, field.Invalid(p, shown, "may specify no more than one IP for each IP family"))
		}
	}
	return errs
}

func validateContainerUser(u *v1.ContainerUser, os *v1.PodOS, p *field.Path) field.ErrorList {
	if u == nil || u.Linux == nil {
		return nil
	}
	p = p.Child("linux")
	if os != nil && os.Name == v1.Windows {
		return field.ErrorList{field.Forbidden(p, "cannot be set for a windows pod")}
	}
	var errs field.ErrorList
	// Runtimes report any uid_t; specs may ask for positive int32 values only.
	if u.Linux.UID < 0 || u.Linux.UID > math.MaxUint32 {
		errs = append(errs, field.Invalid(p.Child("uid"), u.Linux.UID, fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32))))
	}
	errs = append(errs, groupID(&u.Linux.GID, p.Child("gid"))...)
	for i := range u.Linux.SupplementalGroups {
		errs = append(errs, groupID(&u.Linux.SupplementalGroups[i], p.Child("supplementalGroups").Index(i))...)
	}
	return errs
}

func validateClaimStatuses(statuses []v1.PodResourceClaimStatus, claims []v1.PodResourceClaim, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, s := range statuses {
		p := p.Index(i)
		if !slices.ContainsFunc(claims, func(c v1.PodResourceClaim) bool { return c.Name == s.Name }) {
			errs = append(errs, field.Invalid(p.Child("name"), s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if seen.Has(s.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), s.Name))
		}
		seen.Insert(s.Name)
		if s.ResourceClaimName != nil {
			errs = append(errs, dnsSubdomain(*s.ResourceClaimName, p.Child("resourceClaimName"))...)
		}
	}
	return errs
}

func validateExtendedResourceClaim(s *v1.PodExtendedResourceClaimStatus, spec *v1.PodSpec, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	mappings := p.Child("requestMappings")
	if len(s.RequestMappings) == 0 {
		errs = append(errs, field.Required(mappings, "at least one request mapping is required"))
	}
	seen := sets.New[v1.ContainerExtendedResourceRequest]()
	for i, m := range s.RequestMappings {
		at := mappings.Index(i)
		c := containerNamed(spec, m.ContainerName)
		if c == nil {
			errs = append(errs, field.Invalid(at.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, has := c.Resources.Requests[v1.ResourceName(m.ResourceName)]; !has {
			errs = append(errs, field.Invalid(at.Child("resourceName"), m.ResourceName, "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"))
		}
		errs = append(errs, dnsLabel(m.RequestName, p.Child("requestName"))...)
		if seen.Has(m) {
			errs = append(errs, field.Duplicate(at.Child("containerName"), m.ContainerName),
				field.Duplicate(at.Child("resourceName"), m.ResourceName), field.Duplicate(at.Child("requestName"), m.RequestName))
		}
		seen.Insert(m)
	}
	if name := p.Child("resourceClaimName"); s.ResourceClaimName == "" {
		errs = append(errs, field.Required(name, ""))
	} else {
		errs = append(errs, dnsSubdomain(s.ResourceClaimName, name)...)
	}
	return errs
}

func containerNamed(spec *v1.PodSpec, name string) *v1.Container {
	for _, cs := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range cs {
			if cs[i].Name == name {
				return &cs[i]
			}
		}
	}
	return nil
}

// validateResourceHealth checks what the kubelet tells about devices (KEP-4680).
func validateResourceHealth(cs *v1.ContainerStatus, specs []v1.Container, s *v1.PodStatus, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := slices.IndexFunc(specs, func(c v1.Container) bool { return c.Name == cs.Name })
	for i, r := range cs.AllocatedResourcesStatus {
		p := p.Index(i)
		// Statuses of containers that the spec lacks are let through.
		if at >= 0 {
			if why := unknownResource(r.Name, &specs[at], s.ExtendedResourceClaimStatus); why != "" {
				errs = append(errs, field.Invalid(p.Child("name"), r.Name, why))
			}
		}
		seen := sets.New[v1.ResourceID]()
		for j, h := range r.Resources {
			p := p.Child("resources").Index(j)
			errs = append(errs, supported(h.Health, p.Child("health"),
				v1.ResourceHealthStatusHealthy, v1.ResourceHealthStatusUnhealthy, v1.ResourceHealthStatusUnknown)...)
			if h.Message != nil {
				if *h.Message == "" {
					errs = append(errs, field.Required(p.Child("message"), "must be non-empty if specified"))
				} else if len(*h.Message) > v1.ResourceHealthMessageMaxLength {
					errs = append(errs, field.TooLong(p.Child("message"), *h.Message, v1.ResourceHealthMessageMaxLength))
				}
			}
			if seen.Has(h.ResourceID) {
				errs = append(errs, field.Duplicate(p.Child("resourceID"), h.ResourceID))
			}
			seen.Insert(h.ResourceID)
		}
	}
	return errs
}

func unknownResource(name v1.ResourceName, c *v1.Container, extended *v1.PodExtendedResourceClaimStatus) string {
	claim, is := strings.CutPrefix(string(name), "claim:")
	if !is {
		if _, has := c.Resources.Requests[name]; has {
			return ""
		}
		return "must match one of the container's resource requests"
	}
	for _, r := range c.Resources.Claims {
		if claim == r.Name && r.Request == "" || r.Request != "" && claim == r.Name+"/"+r.Request {
			return ""
		}
	}
	if extended != nil {
		claimName, request, _ := strings.Cut(claim, "/")
		for _, m := range extended.RequestMappings {
			q := c.Resources.Requests[v1.ResourceName(m.ResourceName)]
			if request != "" && claimName == extended.ResourceClaimName && m.ContainerName == c.Name && m.RequestName == request && !q.IsZero() {
				return ""
			}
		}
	}
	return "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
}
