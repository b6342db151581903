package core

import (
	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// DefaultPodTemplate fills the defaults of a pod template. Those that upstream
// gives to pods alone (requests from limits, host ports, service links) are
// left out: a template must not change when a newer server reads it.
func DefaultPodTemplate(t *v1.PodTemplateSpec) { DefaultPodSpec(&t.Spec) }

// DefaultPod fills the defaults of a pod.
func DefaultPod(pod *v1.Pod) {
	spec := &pod.Spec
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	for _, cs := range [][]v1.Container{spec.Containers, spec.InitContainers} {
		for i := range cs {
			requestsFromLimits(&cs[i].Resources)
			if spec.HostNetwork {
				hostPortsFromContainerPorts(cs[i].Ports)
			}
		}
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = ptr.To(v1.DefaultEnableServiceLinks)
	}
	DefaultPodSpec(spec)
	defaultPodStatus(&pod.Status)
}

func requestsFromLimits(r *v1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(v1.ResourceList, len(r.Limits))
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

func hostPortsFromContainerPorts(ports []v1.ContainerPort) {
	for i := range ports {
		if ports[i].HostPort == 0 {
			ports[i].HostPort = ports[i].ContainerPort
		}
	}
}

// defaultPodStatus keeps podIP and podIPs in step; podIP wins.
func defaultPodStatus(s *v1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []v1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
	for _, cs := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range cs {
			roundUp(cs[i].AllocatedResources)
			if r := cs[i].Resources; r != nil {
				roundUp(r.Limits)
				roundUp(r.Requests)
			}
		}
	}
	roundUp(s.AllocatedResources)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

// DefaultPodSpec fills the defaults that pods and pod templates share.
func DefaultPodSpec(spec *v1.PodSpec) {
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	setIfEmpty(&spec.DNSPolicy, v1.DNSClusterFirst)
	setIfEmpty(&spec.RestartPolicy, v1.RestartPolicyAlways)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	setIfNil(&spec.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	setIfEmpty(&spec.SchedulerName, v1.DefaultSchedulerName)
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		// The two structs have the same fields by contract (Go's conversion checks it).
		defaultContainer((*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

func defaultContainer(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicyFor(c.Image)
	}
	setIfEmpty(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setIfEmpty(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		setIfEmpty(&c.Ports[i].Protocol, v1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setIfNil(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

// pullPolicyFor is Always for images that name "latest" or no tag at all, since
// what they mean may change. A name that does not parse is left to validation.
func pullPolicyFor(image string) v1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return v1.PullIfNotPresent
	}
	tagged, hasTag := named.(reference.Tagged)
	_, hasDigest := named.(reference.Digested)
	if hasTag && tagged.Tag() == "latest" || !hasTag && !hasDigest {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

func defaultProbe(p *v1.Probe) {
	if p == nil {
		return
	}
	setIfEmpty(&p.TimeoutSeconds, 1)
	setIfEmpty(&p.PeriodSeconds, 10)
	setIfEmpty(&p.SuccessThreshold, 1)
	setIfEmpty(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setIfNil(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(a *v1.HTTPGetAction) {
	if a == nil {
		return
	}
	setIfEmpty(&a.Path, "/")
	setIfEmpty(&a.Scheme, v1.URISchemeHTTP)
}

func defaultFieldRef(f *v1.ObjectFieldSelector) {
	if f != nil {
		setIfEmpty(&f.APIVersion, "v1")
	}
}

// roundUp rounds quantities up to thousandths, the finest step the API keeps.
func roundUp(list v1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

func setIfEmpty[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func setIfNil[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}
