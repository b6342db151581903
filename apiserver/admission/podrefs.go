package admission

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// podEnv yields where the environments of all containers come from: whole objects or single keys,
// the other being nil.
func podEnv(p *corev1.Pod) iter.Seq2[*corev1.EnvFromSource, *corev1.EnvVarSource] {
	return func(yield func(*corev1.EnvFromSource, *corev1.EnvVarSource) bool) {
		of := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) bool {
			for i := range from {
				if !yield(&from[i], nil) {
					return false
				}
			}
			for i := range vars {
				if vars[i].ValueFrom != nil && !yield(nil, vars[i].ValueFrom) {
					return false
				}
			}
			return true
		}
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !of(list[i].Env, list[i].EnvFrom) {
					return
				}
			}
		}
		for i := range p.Spec.EphemeralContainers {
			if c := &p.Spec.EphemeralContainers[i]; !of(c.Env, c.EnvFrom) {
				return
			}
		}
	}
}

// podSecrets yields the names of all Secrets that a pod refers to.
func podSecrets(p *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, s := range p.Spec.ImagePullSecrets {
			if !yield(s.Name) {
				return
			}
		}
		for from, value := range podEnv(p) {
			if from != nil && from.SecretRef != nil && !yield(from.SecretRef.Name) ||
				value != nil && value.SecretKeyRef != nil && !yield(value.SecretKeyRef.Name) {
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
		for from, value := range podEnv(p) {
			if from != nil && from.ConfigMapRef != nil && !yield(from.ConfigMapRef.Name) ||
				value != nil && value.ConfigMapKeyRef != nil && !yield(value.ConfigMapKeyRef.Name) {
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
