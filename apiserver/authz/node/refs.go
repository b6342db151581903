package node

import (
	corev1 "k8s.io/api/core/v1"
)

// podRefs are the objects that the kubelet needs to run a pod. A mirror pod gives its
// node nothing: a kubelet could otherwise make one to read any Secret.
func podRefs(p *corev1.Pod) []ref {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	seen := map[ref]bool{}
	var refs []ref
	add := func(k kind, name string) {
		r := ref{k, p.Namespace, name}
		if name != "" && !seen[r] {
			seen[r] = true
			refs = append(refs, r)
		}
	}
	add(account, p.Spec.ServiceAccountName)
	for i := range p.Spec.ImagePullSecrets {
		add(secret, p.Spec.ImagePullSecrets[i].Name)
	}
	env := func(from []corev1.EnvFromSource, vars []corev1.EnvVar) {
		for i := range from {
			if s := from[i].SecretRef; s != nil {
				add(secret, s.Name)
			}
			if c := from[i].ConfigMapRef; c != nil {
				add(configMap, c.Name)
			}
		}
		for i := range vars {
			v := vars[i].ValueFrom
			if v == nil {
				continue
			}
			if v.SecretKeyRef != nil {
				add(secret, v.SecretKeyRef.Name)
			}
			if v.ConfigMapKeyRef != nil {
				add(configMap, v.ConfigMapKeyRef.Name)
			}
		}
	}
	for i := range p.Spec.InitContainers {
		env(p.Spec.InitContainers[i].EnvFrom, p.Spec.InitContainers[i].Env)
	}
	for i := range p.Spec.Containers {
		env(p.Spec.Containers[i].EnvFrom, p.Spec.Containers[i].Env)
	}
	for i := range p.Spec.EphemeralContainers {
		env(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env)
	}
	for i := range p.Spec.Volumes {
		podVolumeRefs(p, &p.Spec.Volumes[i], add)
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			add(resourceClaim, *s.ResourceClaimName)
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			add(resourceClaim, *c.ResourceClaimName)
		}
	}
	if x := p.Status.ExtendedResourceClaimStatus; x != nil {
		add(resourceClaim, x.ResourceClaimName)
	}
	return refs
}

func podVolumeRefs(p *corev1.Pod, v *corev1.Volume, add func(kind, string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			add(secret, r.Name)
		}
	}
	switch s := v.VolumeSource; {
	case s.Secret != nil:
		add(secret, s.Secret.SecretName)
	case s.ConfigMap != nil:
		add(configMap, s.ConfigMap.Name)
	case s.Projected != nil:
		for i := range s.Projected.Sources {
			if x := s.Projected.Sources[i].Secret; x != nil {
				add(secret, x.Name)
			}
			if x := s.Projected.Sources[i].ConfigMap; x != nil {
				add(configMap, x.Name)
			}
		}
	case s.PersistentVolumeClaim != nil:
		add(claim, s.PersistentVolumeClaim.ClaimName)
	case s.Ephemeral != nil:
		add(claim, p.Name+"-"+v.Name)
	case s.AzureFile != nil:
		add(secret, s.AzureFile.SecretName)
	case s.CephFS != nil:
		local(s.CephFS.SecretRef)
	case s.Cinder != nil:
		local(s.Cinder.SecretRef)
	case s.CSI != nil:
		local(s.CSI.NodePublishSecretRef)
	case s.FlexVolume != nil:
		local(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		local(s.ISCSI.SecretRef)
	case s.RBD != nil:
		local(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		local(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		local(s.StorageOS.SecretRef)
	}
}

// volumeSecrets are those that the kubelet reads to mount a volume. A reference without
// namespace means that of the claim.
func volumeSecrets(pv *corev1.PersistentVolume) []ref {
	var refs []ref
	home := pv.Spec.ClaimRef.Namespace
	add := func(namespace, name string) {
		if namespace == "" {
			namespace = home
		}
		if name != "" {
			refs = append(refs, ref{secret, namespace, name})
		}
	}
	at := func(r *corev1.SecretReference) {
		if r != nil {
			add(r.Namespace, r.Name)
		}
	}
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.AzureFile != nil:
		namespace := ""
		if s.AzureFile.SecretNamespace != nil {
			namespace = *s.AzureFile.SecretNamespace
		}
		add(namespace, s.AzureFile.SecretName)
	case s.CephFS != nil:
		at(s.CephFS.SecretRef)
	case s.Cinder != nil:
		at(s.Cinder.SecretRef)
	case s.CSI != nil:
		// Those of the controller are not the kubelet's business.
		at(s.CSI.NodePublishSecretRef)
		at(s.CSI.NodeStageSecretRef)
		at(s.CSI.NodeExpandSecretRef)
	case s.FlexVolume != nil:
		at(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		at(s.ISCSI.SecretRef)
	case s.RBD != nil:
		at(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		at(s.ScaleIO.SecretRef)
	case s.StorageOS != nil && s.StorageOS.SecretRef != nil:
		add(s.StorageOS.SecretRef.Namespace, s.StorageOS.SecretRef.Name)
	}
	return refs
}
