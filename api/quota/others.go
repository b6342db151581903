package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	serviceCount = corev1.ResourceName("count/services")
	claimCount   = corev1.ResourceName("count/persistentvolumeclaims")
	classInfix   = ".storageclass.storage.k8s.io/"
)

func countsServices(name corev1.ResourceName) bool {
	switch name {
	case serviceCount, corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return false
}

func serviceUsage(obj runtime.Object, _ time.Time) corev1.ResourceList {
	s := obj.(*corev1.Service)
	ports, balancers := 0, int64(0)
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		ports = len(s.Spec.Ports)
		if a := s.Spec.AllocateLoadBalancerNodePorts; a != nil && !*a {
			ports = 0
			for _, p := range s.Spec.Ports {
				if p.NodePort != 0 {
					ports++
				}
			}
		}
	}
	return corev1.ResourceList{
		serviceCount: number(1), corev1.ResourceServices: number(1),
		corev1.ResourceServicesNodePorts: number(int64(ports)), corev1.ResourceServicesLoadBalancers: number(balancers),
	}
}

func countsClaims(name corev1.ResourceName) bool {
	switch name {
	case claimCount, corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage:
		return true
	}
	return strings.HasSuffix(string(name), classInfix+string(corev1.ResourcePersistentVolumeClaims)) ||
		strings.HasSuffix(string(name), classInfix+string(corev1.ResourceRequestsStorage))
}

func claimUsage(obj runtime.Object, _ time.Time) corev1.ResourceList {
	c := obj.(*corev1.PersistentVolumeClaim)
	out := corev1.ResourceList{claimCount: number(1), corev1.ResourcePersistentVolumeClaims: number(1)}
	class := c.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" && c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if class != "" {
		out[corev1.ResourceName(class+classInfix)+corev1.ResourcePersistentVolumeClaims] = number(1)
	}
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return out
	}
	if a, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && a.Cmp(size) > 0 {
		size = a // an expansion under way, or one that failed half-way
	}
	size = size.DeepCopy()
	size.RoundUp(0)
	out[corev1.ResourceRequestsStorage] = size
	if class != "" {
		out[corev1.ResourceName(class+classInfix)+corev1.ResourceRequestsStorage] = size
	}
	return out
}

func claimInScope(s *corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool {
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false
	}
	c := obj.(*corev1.PersistentVolumeClaim)
	var names []string
	add := func(n string) {
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if c.Spec.VolumeAttributesClassName != nil {
		add(*c.Spec.VolumeAttributesClassName)
	}
	if c.Status.CurrentVolumeAttributesClassName != nil {
		add(*c.Status.CurrentVolumeAttributesClassName)
	}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		add(m.TargetVolumeAttributesClassName)
	}
	if len(names) == 0 {
		return matches(s, "", false)
	}
	return slices.ContainsFunc(names, func(n string) bool { return matches(s, n, true) })
}
