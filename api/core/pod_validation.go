package core

import (
	"math"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podChecker validates one pod spec, in a pod or in a template.
type podChecker struct {
	spec *v1.PodSpec
	// pod is the metadata of a pod; nil for templates.
	pod       *metav1.ObjectMeta
	lax       laxity
	volumes   map[string]*v1.VolumeSource // the valid ones
	claims    sets.Set[string]
	hostUsers bool
}

func newPodChecker(spec, old *v1.PodSpec, pod *metav1.ObjectMeta) *podChecker {
	c := &podChecker{spec: spec, pod: pod, claims: sets.New[string](), hostUsers: spec.HostUsers == nil || *spec.HostUsers}
	if old != nil {
		c.lax = laxityOf(old)
	}
	for _, claim := range spec.ResourceClaims {
		if claim.Name != "" {
			c.claims.Insert(claim.Name)
		}
	}
	return c
}

func validatePod(p *v1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodAndSpec(p, nil)
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return append(errs, validateProfileAnnotations(p.Annotations, &p.Spec, spec)...)
}

// validatePodAndSpec holds on create (old is nil) and update.
func validatePodAndSpec(p, old *v1.Pod) field.ErrorList {
	var oldSpec *v1.PodSpec
	laxCost := false
	if old != nil {
		oldSpec = &old.Spec
		laxCost = !validDeletionCost(old.Annotations)
	}
	errs := validatePodAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations"), laxCost)
	spec := field.NewPath("spec")
	errs = append(errs, newPodChecker(&p.Spec, oldSpec, &p.ObjectMeta).check(spec)...)
	if p.Spec.ServiceAccountName == "" {
		for i := range p.Spec.Volumes {
			if p.Spec.Volumes[i].Projected == nil {
				continue
			}
			for j, s := range p.Spec.Volumes[i].Projected.Sources {
				if s.ServiceAccountToken != nil {
					errs = append(errs, field.Forbidden(spec.Child("volumes").Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken"),
						"must not be specified when serviceAccountName is not set"))
				}
			}
		}
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		errs = append(errs, nonNegative(*g, spec.Child("terminationGracePeriodSeconds"))...)
	}
	for i := range p.Spec.Containers {
		errs = append(errs, imageUnpadded(p.Spec.Containers[i].Image, spec.Child("containers").Index(i))...)
	}
	for i := range p.Spec.InitContainers {
		errs = append(errs, imageUnpadded(p.Spec.InitContainers[i].Image, spec.Child("initContainers").Index(i))...)
	}
	return errs
}

// imageUnpadded holds for pods; templates always could have blanks there.
func imageUnpadded(image string, p *field.Path) field.ErrorList {
	if strings.TrimSpace(image) != image {
		return field.ErrorList{field.Invalid(p.Child("image"), image, "must not have leading or trailing whitespace")}
	}
	return nil
}

func (c *podChecker) check(p *field.Path) field.ErrorList {
	s := c.spec
	var errs field.ErrorList
	if s.TerminationGracePeriodSeconds == nil {
		errs = append(errs, field.Required(p.Child("terminationGracePeriodSeconds"), ""))
	}
	errs = append(errs, c.checkVolumes(p.Child("volumes"))...)
	errs = append(errs, c.checkResourceClaims(p.Child("resourceClaims"))...)
	errs = append(errs, c.checkContainers(p.Child("containers"))...)
	errs = append(errs, c.checkInitContainers(p.Child("initContainers"))...)
	errs = append(errs, c.checkEphemeralContainers(p.Child("ephemeralContainers"))...)
	errs = append(errs, c.checkPodResources(p.Child("resources"))...)
	errs = append(errs, c.checkHostNetwork(p)...)
	errs = append(errs, oneOfAsListed(s.RestartPolicy, p.Child("restartPolicy"),
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)
	errs = append(errs, oneOfAsListed(s.DNSPolicy, p.Child("dnsPolicy"),
		v1.DNSClusterFirstWithHostNet, v1.DNSClusterFirst, v1.DNSDefault, v1.DNSNone)...)
	errs = append(errs, metav1validation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))...)
	errs = append(errs, c.checkPodSecurityContext(p.Child("securityContext"))...)
	if s.ShareProcessNamespace != nil && *s.ShareProcessNamespace && s.HostPID {
		errs = append(errs, field.Invalid(p.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	errs = append(errs, c.checkAffinity(p.Child("affinity"))...)
	errs = append(errs, validateDNSConfig(s.DNSConfig, s.DNSPolicy, p.Child("dnsConfig"))...)
	for i, g := range s.ReadinessGates {
		errs = append(errs, qualifiedName(string(g.ConditionType), p.Child("readinessGates").Index(i).Child("conditionType"))...)
	}
	errs = append(errs, validateSchedulingGates(s.SchedulingGates, p.Child("schedulingGates"))...)
	errs = append(errs, c.checkTopologySpread(p.Child("topologySpreadConstraints"))...)
	errs = append(errs, c.checkHostProcess(p)...)
	errs = append(errs, c.checkHostUsers(p)...)
	errs = append(errs, c.checkNames(p)...)
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(p.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"), c.lax.numericTolerations)...)
	for i, a := range s.HostAliases {
		p := p.Child("hostAliases").Index(i)
		errs = append(errs, validation.IsValidIPForLegacyField(p.Child("ip"), a.IP, true, nil)...)
		for j, name := range a.Hostnames {
			errs = append(errs, dnsSubdomain(name, p.Child("hostnames").Index(j))...)
		}
	}
	if s.PreemptionPolicy != nil {
		errs = append(errs, oneOfAsListed(*s.PreemptionPolicy, p.Child("preemptionPolicy"), v1.PreemptLowerPriority, v1.PreemptNever)...)
	}
	if s.Overhead != nil {
		errs = append(errs, c.checkResources(&v1.ResourceRequirements{Limits: s.Overhead}, containerResourceName, p.Child("overhead"))...)
	}
	errs = append(errs, c.checkOS(p)...)
	return append(errs, c.checkFileKeyVolumes(p)...)
}

// checkNames checks what names other objects or the host.
func (c *podChecker) checkNames(p *field.Path) field.ErrorList {
	s := c.spec
	var errs field.ErrorList
	if h := s.HostnameOverride; h != nil {
		p := p.Child("hostnameOverride")
		if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
			errs = append(errs, field.Forbidden(p, "may not be specified when setHostnameAsFQDN is true"))
		}
		if s.HostNetwork {
			errs = append(errs, field.Forbidden(p, "may not be specified when hostNetwork is true"))
		}
		if len(*h) > 64 {
			errs = append(errs, field.TooLong(p, "", 64))
		}
		errs = append(errs, dnsSubdomain(*h, p)...)
	}
	if name := s.ServiceAccountName; name != "" {
		errs = append(errs, invalid(p.Child("serviceAccountName"), name, apivalidation.ValidateServiceAccountName(name, false))...)
	}
	if s.NodeName != "" {
		errs = append(errs, dnsSubdomain(s.NodeName, p.Child("nodeName"))...)
	}
	if s.Hostname != "" {
		errs = append(errs, dnsLabel(s.Hostname, p.Child("hostname"))...)
	}
	if s.Subdomain != "" {
		errs = append(errs, dnsLabel(s.Subdomain, p.Child("subdomain"))...)
	}
	if s.PriorityClassName != "" {
		errs = append(errs, dnsSubdomain(s.PriorityClassName, p.Child("priorityClassName"))...)
	}
	if s.RuntimeClassName != nil {
		errs = append(errs, dnsSubdomain(*s.RuntimeClassName, p.Child("runtimeClassName"))...)
	}
	return errs
}

// checkHostNetwork: on the host's network every port is the host's. Templates
// may leave host ports out; pods get them by default.
func (c *podChecker) checkHostNetwork(p *field.Path) field.ErrorList {
	if !c.spec.HostNetwork {
		return nil
	}
	var errs field.ErrorList
	for i := range c.spec.Containers {
		for j, port := range c.spec.Containers[i].Ports {
			if (c.pod != nil || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(p.Child("containers").Index(i).Child("ports").Index(j).Child("hostPort"),
					port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func (c *podChecker) checkHostUsers(p *field.Path) field.ErrorList {
	if c.hostUsers {
		return nil
	}
	var errs field.ErrorList
	const why = "when `hostUsers` is false"
	if c.spec.HostNetwork && !c.lax.userNamespaceHostNetwork {
		errs = append(errs, field.Forbidden(p.Child("hostNetwork"), why))
	}
	if c.spec.HostPID {
		errs = append(errs, field.Forbidden(p.Child("HostPID"), why))
	}
	if c.spec.HostIPC {
		errs = append(errs, field.Forbidden(p.Child("HostIPC"), why))
	}
	if !c.lax.userNamespaceDevices {
		eachContainerPath(c.spec, p, func(ctr *v1.Container, p *field.Path) {
			if len(ctr.VolumeDevices) > 0 {
				errs = append(errs, field.Forbidden(p.Child("volumeDevices"), why))
			}
		})
	}
	return errs
}

func (c *podChecker) checkResourceClaims(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, claim := range c.spec.ResourceClaims {
		p := p.Index(i)
		if c.pod != nil && isMirror(c.pod.Annotations) {
			errs = append(errs, field.Forbidden(field.NewPath(""), "static pods do not support resource claims"))
			continue
		}
		switch {
		case claim.Name == "":
			errs = append(errs, field.Required(p.Child("name"), ""))
		case seen.Has(claim.Name):
			errs = append(errs, field.Duplicate(p.Child("name"), claim.Name))
		default:
			errs = append(errs, dnsLabel(claim.Name, p.Child("name"))...)
			seen.Insert(claim.Name)
		}
		name, template := claim.ResourceClaimName, claim.ResourceClaimTemplateName
		if name != nil && template != nil {
			errs = append(errs, field.Invalid(p, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		if name == nil && template == nil {
			errs = append(errs, field.Invalid(p, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if name != nil {
			errs = append(errs, dnsSubdomain(*name, p.Child("resourceClaimName"))...)
		}
		if template != nil {
			errs = append(errs, dnsSubdomain(*template, p.Child("resourceClaimTemplateName"))...)
		}
	}
	return errs
}

func validateDNSConfig(c *v1.PodDNSConfig, policy v1.DNSPolicy, p *field.Path) field.ErrorList {
	if policy == v1.DNSNone {
		if c == nil {
			return field.ErrorList{field.Required(p, "must provide `dnsConfig` when `dnsPolicy` is None")}
		}
		if len(c.Nameservers) == 0 {
			return field.ErrorList{field.Required(p.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")}
		}
	}
	if c == nil {
		return nil
	}
	// What libc's resolver can hold.
	const maxServers, maxSearches, maxSearchLength = 3, 32, 2048
	var errs field.ErrorList
	if len(c.Nameservers) > maxServers {
		errs = append(errs, field.Invalid(p.Child("nameservers"), c.Nameservers, "must not have more than 3 nameservers"))
	}
	for i, ip := range c.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(p.Child("nameservers").Index(i), ip, true, nil)...)
	}
	searches := p.Child("searches")
	if len(c.Searches) > maxSearches {
		errs = append(errs, field.Invalid(searches, c.Searches, "must not have more than 32 search paths"))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchLength {
		errs = append(errs, field.Invalid(searches, c.Searches, "must not have more than 2048 characters (including spaces) in the search list"))
	}
	for i, search := range c.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			errs = append(errs, invalid(searches.Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(search))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			errs = append(errs, field.Required(p.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validatePodAnnotations(a map[string]string, spec *v1.PodSpec, p *field.Path, laxCost bool) field.ErrorList {
	var errs field.ErrorList
	if isMirror(a) && spec.NodeName == "" {
		errs = append(errs, field.Invalid(p.Key(v1.MirrorPodAnnotationKey), a[v1.MirrorPodAnnotationKey], "must set spec.nodeName if mirror pod annotation is set"))
	}
	if !laxCost && !validDeletionCost(a) {
		errs = append(errs, field.Invalid(p.Key(v1.PodDeletionCost), a[v1.PodDeletionCost], "must be a 32bit integer"))
	}
	errs = append(errs, validateSeccompAnnotations(a, p)...)
	return append(errs, validateAppArmorAnnotations(a, spec, p)...)
}

func isMirror(annotations map[string]string) bool {
	_, is := annotations[v1.MirrorPodAnnotationKey]
	return is
}

// validDeletionCost refuses what is no 32-bit integer, and forms that other
// parsers may read differently: plus signs and leading zeros.
func validDeletionCost(annotations map[string]string) bool {
	value, has := annotations[v1.PodDeletionCost]
	if !has || value == "0" {
		return true
	}
	if value == "" || value[0] != '-' && (value[0] < '1' || value[0] > '9') {
		return false
	}
	_, err := strconv.ParseInt(value, 10, 32)
	return err == nil
}

// eachContainerPath visits all containers with their paths.
func eachContainerPath(s *v1.PodSpec, p *field.Path, f func(*v1.Container, *field.Path)) {
	for i := range s.InitContainers {
		f(&s.InitContainers[i], p.Child("initContainers").Index(i))
	}
	for i := range s.Containers {
		f(&s.Containers[i], p.Child("containers").Index(i))
	}
	for i := range s.EphemeralContainers {
		f((*v1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon), p.Child("ephemeralContainers").Index(i))
	}
}
