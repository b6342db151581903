package core

import v1 "k8s.io/api/core/v1"

// Fields of feature gates that upstream keeps off by default are dropped, unless
// the stored object uses the feature already.

// gatedField visits a feature's fields in a spec: set tells whether one is used,
// clear empties it.
type gatedField func(s *v1.PodSpec, visit func(set bool, clear func()))

func gatedSpecFields() []gatedField {
	return []gatedField{
		// GenericWorkload
		func(s *v1.PodSpec, visit func(bool, func())) {
			visit(s.SchedulingGroup != nil, func() { s.SchedulingGroup = nil })
		},
		// EvictionRequestAPI
		func(s *v1.PodSpec, visit func(bool, func())) {
			visit(len(s.EvictionResponders) > 0, func() { s.EvictionResponders = nil })
		},
		// EmptyDirVolumeMode
		func(s *v1.PodSpec, visit func(bool, func())) {
			for i := range s.Volumes {
				if d := s.Volumes[i].EmptyDir; d != nil {
					visit(d.Mode != nil, func() { d.Mode = nil })
				}
			}
		},
		// VolumeBindMountOptions
		func(s *v1.PodSpec, visit func(bool, func())) {
			eachContainer(s, func(c *v1.Container) {
				for i := range c.VolumeMounts {
					m := &c.VolumeMounts[i]
					visit(len(m.BindMountOptions) > 0, func() { m.BindMountOptions = nil })
				}
			})
		},
		// ContainerStopSignals
		func(s *v1.PodSpec, visit func(bool, func())) {
			eachContainer(s, func(c *v1.Container) {
				if c.Lifecycle == nil {
					return
				}
				visit(c.Lifecycle.StopSignal != nil, func() {
					if c.Lifecycle.StopSignal = nil; *c.Lifecycle == (v1.Lifecycle{}) {
						c.Lifecycle = nil
					}
				})
			})
		},
		// H2CContainerProbe
		func(s *v1.PodSpec, visit func(bool, func())) {
			eachContainer(s, func(c *v1.Container) {
				for _, a := range httpActions(c) {
					visit(a.Protocol != nil, func() { a.Protocol = nil })
				}
			})
		},
		// GRPCContainerProbeTLS
		func(s *v1.PodSpec, visit func(bool, func())) {
			eachContainer(s, func(c *v1.Container) {
				for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
					if p != nil && p.GRPC != nil {
						visit(p.GRPC.Mode != nil, func() { p.GRPC.Mode = nil })
					}
				}
			})
		},
		atomicWriteVolumeUsers,
	}
}

func httpActions(c *v1.Container) []*v1.HTTPGetAction {
	var actions []*v1.HTTPGetAction
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil && p.HTTPGet != nil {
			actions = append(actions, p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				actions = append(actions, h.HTTPGet)
			}
		}
	}
	return actions
}

// atomicWriteVolumeUsers is the gate AtomicWriteVolumeUserFields: owners of files
// in volumes that the kubelet writes.
func atomicWriteVolumeUsers(s *v1.PodSpec, visit func(bool, func())) {
	user := func(p **int64) { visit(*p != nil, func() { *p = nil }) }
	keys := func(items []v1.KeyToPath) {
		for i := range items {
			user(&items[i].User)
		}
	}
	files := func(items []v1.DownwardAPIVolumeFile) {
		for i := range items {
			user(&items[i].User)
		}
	}
	for i := range s.Volumes {
		v := &s.Volumes[i].VolumeSource
		if v.Secret != nil {
			user(&v.Secret.DefaultUser)
			keys(v.Secret.Items)
		}
		if v.ConfigMap != nil {
			user(&v.ConfigMap.DefaultUser)
			keys(v.ConfigMap.Items)
		}
		if v.DownwardAPI != nil {
			user(&v.DownwardAPI.DefaultUser)
			files(v.DownwardAPI.Items)
		}
		if v.Projected == nil {
			continue
		}
		user(&v.Projected.DefaultUser)
		for j := range v.Projected.Sources {
			p := &v.Projected.Sources[j]
			if p.Secret != nil {
				keys(p.Secret.Items)
			}
			if p.ConfigMap != nil {
				keys(p.ConfigMap.Items)
			}
			if p.DownwardAPI != nil {
				files(p.DownwardAPI.Items)
			}
			if p.ServiceAccountToken != nil {
				user(&p.ServiceAccountToken.User)
			}
			if p.ClusterTrustBundle != nil {
				user(&p.ClusterTrustBundle.User)
			}
			if p.PodCertificate != nil {
				user(&p.PodCertificate.User)
			}
		}
	}
}

func dropDisabledSpecFields(s, old *v1.PodSpec) {
	for _, field := range gatedSpecFields() {
		used := false
		if old != nil {
			field(old, func(set bool, _ func()) { used = used || set })
		}
		if used {
			continue
		}
		field(s, func(set bool, clear func()) {
			if set {
				clear()
			}
		})
	}
}

func dropDisabledPodFields(p, old *v1.Pod) {
	var oldSpec *v1.PodSpec
	var before v1.PodStatus
	if old != nil {
		oldSpec, before = &old.Spec, old.Status
	}
	dropDisabledSpecFields(&p.Spec, oldSpec)
	dropInitContainerAnnotations(p.Annotations)
	s := &p.Status
	if len(before.NodeAllocatableResourceClaimStatuses) == 0 { // DRANodeAllocatableResources
		s.NodeAllocatableResourceClaimStatuses = nil
	}
	if len(before.VolumeHealth) == 0 { // CSIVolumeHealth
		s.VolumeHealth = nil
	}
	if !volumeStatusUsed(&before) { // ImageVolumeWithDigest
		eachVolumeMountStatus(s, func(m *v1.VolumeMountStatus) { m.VolumeStatus = nil })
	}
}

func volumeStatusUsed(s *v1.PodStatus) bool {
	used := false
	eachVolumeMountStatus(s, func(m *v1.VolumeMountStatus) { used = used || m.VolumeStatus != nil })
	return used
}

func eachVolumeMountStatus(s *v1.PodStatus, f func(*v1.VolumeMountStatus)) {
	for _, cs := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range cs {
			for j := range cs[i].VolumeMounts {
				f(&cs[i].VolumeMounts[j])
			}
		}
	}
}

// dropInitContainerAnnotations removes what held init containers before v1.8.
// It writes only where there is something to remove: the map may be shared with
// the stored object, which was cleaned before.
func dropInitContainerAnnotations(annotations map[string]string) {
	for _, key := range []string{
		"pod.alpha.kubernetes.io/init-containers", "pod.alpha.kubernetes.io/init-container-statuses",
		"pod.beta.kubernetes.io/init-containers", "pod.beta.kubernetes.io/init-container-statuses",
	} {
		delete(annotations, key)
	}
}
