package admission

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// podSecrets yields the names of all Secrets that a pod refers to.
func podSecrets(p *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) bool {
			for _, f := range from {
				if f.SecretRef != nil && !yield(f.SecretRef.Name) {
					return false
				}
			}
			for _, v := range vars {
				if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && !yield(v.ValueFrom.SecretKeyRef.Name) {
					return false
				}
			}
			return true
		}
		for _, s := range p.Spec.ImagePullSecrets {
			if !yield(s.Name) {
				return
			}
		}
		for _, c := range p.Spec.InitContainers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for _, c := range p.Spec.Containers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for _, c := range p.Spec.EphemeralContainers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for i := range p.Spec.Volumes {
			for _, s := range volumeSecrets(&p.Spec.Volumes[i].VolumeSource) {
				if s != "" && !yield(s) {
					return
				}
			}
		}
	}
}

func volumeSecrets(v *corev1.VolumeSource) []string {
	local := func(r *corev1.LocalObjectReference) []string {
		if r == nil {
			return nil
		}
		return []string{r.Name}
	}
	switch {
	case v.Secret != nil:
		return []string{v.Secret.SecretName}
	case v.Projected != nil:
		var names []string
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				names = append(names, s.Secret.Name)
			}
		}
		return names
	case v.AzureFile != nil:
		return []string{v.AzureFile.SecretName}
	case v.CephFS != nil:
		return local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return local(v.Cinder.SecretRef)
	case v.CSI != nil:
		return local(v.CSI.NodePublishSecretRef)
	case v.FlexVolume != nil:
		return local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		return local(v.ISCSI.SecretRef)
	case v.RBD != nil:
		return local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		return local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		return local(v.StorageOS.SecretRef)
	}
	return nil
}

// podConfigMaps yields the names of all ConfigMaps that a pod refers to.
func podConfigMaps(p *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) bool {
			for _, f := range from {
				if f.ConfigMapRef != nil && !yield(f.ConfigMapRef.Name) {
					return false
				}
			}
			for _, v := range vars {
				if v.ValueFrom != nil && v.ValueFrom.ConfigMapKeyRef != nil && !yield(v.ValueFrom.ConfigMapKeyRef.Name) {
					return false
				}
			}
			return true
		}
		for _, c := range p.Spec.InitContainers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for _, c := range p.Spec.Containers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for _, c := range p.Spec.EphemeralContainers {
			if !env(c.Env, c.EnvFrom) {
				return
			}
		}
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap != nil && !yield(v.ConfigMap.Name) {
				return
			}
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil && !yield(s.ConfigMap.Name) {
					return
				}
			}
		}
	}
}
