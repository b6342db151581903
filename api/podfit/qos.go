package podfit

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QOS is the pod's QoS class: as the API server recorded it, or computed.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return ComputeQOS(pod)
}

// ComputeQOS derives the QoS class from CPU and memory: Guaranteed when every
// container's requests equal its limits and are not zero, BestEffort when no
// container names any, else Burstable. Pod-level resources decide alone when set.
func ComputeQOS(pod *v1.Pod) v1.PodQOSClass {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return requirementsQOS(pod.Spec.Resources)
	}
	var class v1.PodQOSClass
	for _, cs := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			c := requirementsQOS(&cs[i].Resources)
			if class == "" {
				class = c
			}
			if c != class || c == v1.PodQOSBurstable {
				return v1.PodQOSBurstable
			}
		}
	}
	if class == "" {
		return v1.PodQOSBestEffort
	}
	return class
}

func requirementsQOS(r *v1.ResourceRequirements) v1.PodQOSClass {
	cpu, memory := resourceQOS(r, v1.ResourceCPU), resourceQOS(r, v1.ResourceMemory)
	if cpu != memory {
		return v1.PodQOSBurstable
	}
	return cpu
}

func resourceQOS(r *v1.ResourceRequirements, name v1.ResourceName) v1.PodQOSClass {
	request, limit := r.Requests[name], r.Limits[name]
	switch {
	case !request.Equal(limit):
		return v1.PodQOSBurstable
	case request.IsZero():
		return v1.PodQOSBestEffort
	}
	return v1.PodQOSGuaranteed
}
