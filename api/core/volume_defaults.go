package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func defaultVolume(s *v1.VolumeSource) {
	if ptr.AllPtrFieldsNil(s) {
		s.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if s.Image != nil && s.Image.PullPolicy == "" {
		s.Image.PullPolicy = pullPolicyFor(s.Image.Reference)
	}
	defaultHostPath(s.HostPath)
	if s.Secret != nil {
		setIfNil(&s.Secret.DefaultMode, v1.SecretVolumeSourceDefaultMode)
	}
	if s.ConfigMap != nil {
		setIfNil(&s.ConfigMap.DefaultMode, v1.ConfigMapVolumeSourceDefaultMode)
	}
	if s.DownwardAPI != nil {
		setIfNil(&s.DownwardAPI.DefaultMode, v1.DownwardAPIVolumeSourceDefaultMode)
		for i := range s.DownwardAPI.Items {
			defaultFieldRef(s.DownwardAPI.Items[i].FieldRef)
		}
	}
	if s.Projected != nil {
		defaultProjected(s.Projected)
	}
	if s.ISCSI != nil {
		setIfEmpty(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.RBD != nil {
		setIfEmpty(&s.RBD.RBDPool, "rbd")
		setIfEmpty(&s.RBD.RadosUser, "admin")
		setIfEmpty(&s.RBD.Keyring, "/etc/ceph/keyring")
	}
	defaultAzureDisk(s.AzureDisk)
	if s.ScaleIO != nil {
		setIfEmpty(&s.ScaleIO.StorageMode, "ThinProvisioned")
		setIfEmpty(&s.ScaleIO.FSType, "xfs")
	}
	if s.Ephemeral != nil && s.Ephemeral.VolumeClaimTemplate != nil {
		defaultClaimSpec(&s.Ephemeral.VolumeClaimTemplate.Spec)
	}
}

func defaultProjected(p *v1.ProjectedVolumeSource) {
	setIfNil(&p.DefaultMode, v1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		if d := p.Sources[i].DownwardAPI; d != nil {
			for j := range d.Items {
				defaultFieldRef(d.Items[j].FieldRef)
			}
		}
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			setIfNil(&t.ExpirationSeconds, 60*60)
		}
	}
}

func defaultHostPath(s *v1.HostPathVolumeSource) {
	if s != nil {
		setIfNil(&s.Type, v1.HostPathUnset)
	}
}

func defaultAzureDisk(s *v1.AzureDiskVolumeSource) {
	if s == nil {
		return
	}
	setIfNil(&s.CachingMode, v1.AzureDataDiskCachingReadWrite)
	setIfNil(&s.FSType, "ext4")
	setIfNil(&s.ReadOnly, false)
	setIfNil(&s.Kind, v1.AzureSharedBlobDisk)
}

func defaultClaimSpec(s *v1.PersistentVolumeClaimSpec) {
	setIfNil(&s.VolumeMode, v1.PersistentVolumeFilesystem)
	roundUp(s.Resources.Limits)
	roundUp(s.Resources.Requests)
}

// DefaultPersistentVolumeClaim fills the defaults of a claim, stored or in a
// StatefulSet's template.
func DefaultPersistentVolumeClaim(c *v1.PersistentVolumeClaim) {
	setIfEmpty(&c.Status.Phase, v1.ClaimPending)
	defaultClaimSpec(&c.Spec)
	roundUp(c.Status.Capacity)
	roundUp(c.Status.AllocatedResources)
}
