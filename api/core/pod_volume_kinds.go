package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// volumeKinds are the members of the union that a pod's volume is. Storage that
// once had a driver in the kubelet mostly does nothing today, but objects that
// name it are stored and served. The order decides which of two is one too many.
func (c *podChecker) volumeKinds(v *v1.Volume, p *field.Path) []volumeKind {
	s := &v.VolumeSource
	return []volumeKind{
		{name: "emptyDir", set: s.EmptyDir != nil, check: func(p *field.Path) field.ErrorList { return validateEmptyDir(s.EmptyDir, p) }},
		{name: "hostPath", set: s.HostPath != nil, check: func(p *field.Path) field.ErrorList { return validateHostPath(s.HostPath, p) }},
		{name: "gitRepo", set: s.GitRepo != nil, check: func(p *field.Path) field.ErrorList {
			return append(required(s.GitRepo.Repository, p.Child("repository")), descendingPath(s.GitRepo.Directory, p.Child("directory"))...)
		}},
		{name: "persistentDisk", set: s.GCEPersistentDisk != nil, check: func(p *field.Path) field.ErrorList {
			return validateDisk(s.GCEPersistentDisk.PDName, s.GCEPersistentDisk.Partition, "pdName", p)
		}},
		{name: "awsElasticBlockStore", set: s.AWSElasticBlockStore != nil, check: func(p *field.Path) field.ErrorList {
			return validateDisk(s.AWSElasticBlockStore.VolumeID, s.AWSElasticBlockStore.Partition, "volumeID", p)
		}},
		{name: "secret", set: s.Secret != nil, check: func(p *field.Path) field.ErrorList { return validateSecretVolume(s.Secret, p) }},
		{name: "nfs", set: s.NFS != nil, check: func(p *field.Path) field.ErrorList { return validateNFS(s.NFS, p) }},
		{name: "iscsi", set: s.ISCSI != nil, check: func(p *field.Path) field.ErrorList {
			i := s.ISCSI
			return validateISCSI(i.TargetPortal, i.IQN, i.Lun, i.DiscoveryCHAPAuth || i.SessionCHAPAuth, i.SecretRef != nil, i.InitiatorName, "must be valid format starting with iqn, eui, or naa", p)
		}},
		{name: "glusterfs", set: s.Glusterfs != nil, check: func(p *field.Path) field.ErrorList {
			return append(required(s.Glusterfs.EndpointsName, p.Child("endpoints")), required(s.Glusterfs.Path, p.Child("path"))...)
		}},
		{name: "flocker", set: s.Flocker != nil, check: func(p *field.Path) field.ErrorList { return validateFlocker(s.Flocker, p) }},
		{name: "persistentVolumeClaim", set: s.PersistentVolumeClaim != nil, check: func(p *field.Path) field.ErrorList {
			return required(s.PersistentVolumeClaim.ClaimName, p.Child("claimName"))
		}},
		{name: "rbd", set: s.RBD != nil, check: func(p *field.Path) field.ErrorList { return validateRBD(s.RBD.CephMonitors, s.RBD.RBDImage, p) }},
		{name: "cinder", set: s.Cinder != nil, check: func(p *field.Path) field.ErrorList {
			errs := required(s.Cinder.VolumeID, p.Child("volumeID"))
			if r := s.Cinder.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
			}
			return errs
		}},
		{name: "cephfs", set: s.CephFS != nil, check: func(p *field.Path) field.ErrorList { return validateMonitors(s.CephFS.Monitors, p) }},
		{name: "quobyte", set: s.Quobyte != nil, check: func(p *field.Path) field.ErrorList { return validateQuobyte(s.Quobyte, p) }},
		{name: "downwardAPI", set: s.DownwardAPI != nil, check: func(p *field.Path) field.ErrorList { return validateDownwardAPIVolume(s.DownwardAPI, p) }},
		{name: "fc", set: s.FC != nil, check: func(p *field.Path) field.ErrorList { return validateFC(s.FC, p) }},
		{name: "flexVolume", set: s.FlexVolume != nil, check: func(p *field.Path) field.ErrorList {
			return validateFlex(s.FlexVolume.Driver, s.FlexVolume.Options, p)
		}},
		{name: "configMap", set: s.ConfigMap != nil, check: func(p *field.Path) field.ErrorList { return validateConfigMapVolume(s.ConfigMap, p) }},
		{name: "azureFile", set: s.AzureFile != nil, check: func(p *field.Path) field.ErrorList {
			return append(required(s.AzureFile.SecretName, p.Child("secretName")), required(s.AzureFile.ShareName, p.Child("shareName"))...)
		}},
		{name: "vsphereVolume", set: s.VsphereVolume != nil, check: func(p *field.Path) field.ErrorList {
			return required(s.VsphereVolume.VolumePath, p.Child("volumePath"))
		}},
		{name: "photonPersistentDisk", set: s.PhotonPersistentDisk != nil, check: func(p *field.Path) field.ErrorList {
			return required(s.PhotonPersistentDisk.PdID, p.Child("pdID"))
		}},
		{name: "portworxVolume", set: s.PortworxVolume != nil, check: func(p *field.Path) field.ErrorList {
			return required(s.PortworxVolume.VolumeID, p.Child("volumeID"))
		}},
		{name: "azureDisk", set: s.AzureDisk != nil, check: func(p *field.Path) field.ErrorList { return validateAzureDisk(s.AzureDisk, p) }},
		{name: "storageos", set: s.StorageOS != nil, check: func(p *field.Path) field.ErrorList {
			errs := validateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, p)
			if r := s.StorageOS.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
			}
			return errs
		}},
		{name: "projected", set: s.Projected != nil, check: func(p *field.Path) field.ErrorList { return c.checkProjected(s.Projected, p) }},
		{name: "scaleIO", set: s.ScaleIO != nil, check: func(p *field.Path) field.ErrorList {
			return validateScaleIO(s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName, p)
		}},
		{name: "csi", set: s.CSI != nil, check: func(p *field.Path) field.ErrorList { return validateCSIVolume(s.CSI, p) }},
		{name: "ephemeral", set: s.Ephemeral != nil, check: func(*field.Path) field.ErrorList { return c.checkEphemeral(v, p) }},
		{name: "image", set: s.Image != nil, check: func(p *field.Path) field.ErrorList { return c.checkImageVolume(s.Image, p) }},
	}
}
