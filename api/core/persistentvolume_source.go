package core

import (
	"path"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePersistentVolumeSource(pv *v1.PersistentVolume, p *field.Path) field.ErrorList {
	s := &pv.Spec.PersistentVolumeSource
	errs := exactlyOneVolume(p, []volumeKind{
		{"hostPath", s.HostPath != nil, func(p *field.Path) field.ErrorList { return validateHostPath(s.HostPath, p) }},
		{"gcePersistentDisk", s.GCEPersistentDisk != nil, func(p *field.Path) field.ErrorList {
			return validateDisk(s.GCEPersistentDisk.PDName, s.GCEPersistentDisk.Partition, "pdName", p)
		}},
		{"awsElasticBlockStore", s.AWSElasticBlockStore != nil, func(p *field.Path) field.ErrorList {
			return validateDisk(s.AWSElasticBlockStore.VolumeID, s.AWSElasticBlockStore.Partition, "volumeID", p)
		}},
		{"glusterfs", s.Glusterfs != nil, func(p *field.Path) field.ErrorList {
			errs := append(required(s.Glusterfs.EndpointsName, p.Child("endpoints")), required(s.Glusterfs.Path, p.Child("path"))...)
			if ns := s.Glusterfs.EndpointsNamespace; ns != nil {
				if p := p.Child("endpointsNamespace"); *ns == "" {
					errs = append(errs, field.Invalid(p, *ns, "if the endpointnamespace is set, it must be a valid namespace name"))
				} else {
					errs = append(errs, namespaceName(*ns, p)...)
				}
			}
			return errs
		}},
		{"flocker", s.Flocker != nil, func(p *field.Path) field.ErrorList { return validateFlocker(s.Flocker, p) }},
		{"nfs", s.NFS != nil, func(p *field.Path) field.ErrorList { return validateNFS(s.NFS, p) }},
		{"rbd", s.RBD != nil, func(p *field.Path) field.ErrorList { return validateRBD(s.RBD.CephMonitors, s.RBD.RBDImage, p) }},
		{"quobyte", s.Quobyte != nil, func(p *field.Path) field.ErrorList { return validateQuobyte(s.Quobyte, p) }},
		{"cephfs", s.CephFS != nil, func(p *field.Path) field.ErrorList { return validateMonitors(s.CephFS.Monitors, p) }},
		{"iscsi", s.ISCSI != nil, func(p *field.Path) field.ErrorList {
			i := s.ISCSI
			errs := validateISCSI(i.TargetPortal, i.IQN, i.Lun, i.DiscoveryCHAPAuth || i.SessionCHAPAuth, i.SecretRef != nil, i.InitiatorName, p)
			if i.InitiatorName != nil && len(pv.Name+":"+i.TargetPortal) > 64 {
				errs = append(errs, field.Invalid(p.Child("targetportal"), i.TargetPortal, iscsiTooLong))
			}
			if i.SecretRef != nil {
				errs = append(errs, required(i.SecretRef.Name, p.Child("secretRef", "name"))...)
			}
			return errs
		}},
		{"cinder", s.Cinder != nil, func(p *field.Path) field.ErrorList {
			errs := required(s.Cinder.VolumeID, p.Child("volumeID"))
			if r := s.Cinder.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
				errs = append(errs, required(r.Namespace, p.Child("secretRef", "namespace"))...)
			}
			return errs
		}},
		{"fc", s.FC != nil, func(p *field.Path) field.ErrorList { return validateFC(s.FC, p) }},
		{"flexVolume", s.FlexVolume != nil, func(p *field.Path) field.ErrorList {
			return validateFlex(s.FlexVolume.Driver, s.FlexVolume.Options, p)
		}},
		{"azureFile", s.AzureFile != nil, func(p *field.Path) field.ErrorList {
			errs := append(required(s.AzureFile.SecretName, p.Child("secretName")), required(s.AzureFile.ShareName, p.Child("shareName"))...)
			if ns := s.AzureFile.SecretNamespace; ns != nil {
				errs = append(errs, required(*ns, p.Child("secretNamespace"))...)
			}
			return errs
		}},
		{"vsphereVolume", s.VsphereVolume != nil, func(p *field.Path) field.ErrorList {
			return required(s.VsphereVolume.VolumePath, p.Child("volumePath"))
		}},
		{"photonPersistentDisk", s.PhotonPersistentDisk != nil, func(p *field.Path) field.ErrorList {
			return required(s.PhotonPersistentDisk.PdID, p.Child("pdID"))
		}},
		{"portworxVolume", s.PortworxVolume != nil, func(p *field.Path) field.ErrorList {
			return required(s.PortworxVolume.VolumeID, p.Child("volumeID"))
		}},
		{"azureDisk", s.AzureDisk != nil, func(p *field.Path) field.ErrorList { return validateAzureDisk(s.AzureDisk, p) }},
		{"scaleIO", s.ScaleIO != nil, func(p *field.Path) field.ErrorList {
			return validateScaleIO(s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName, p)
		}},
		{"local", s.Local != nil, func(p *field.Path) field.ErrorList {
			if s.Local.Path == "" {
				return field.ErrorList{field.Required(p.Child("path"), "")}
			}
			return noBacksteps(s.Local.Path, p.Child("path"))
		}},
		{"storageos", s.StorageOS != nil, func(p *field.Path) field.ErrorList {
			errs := validateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, p)
			if r := s.StorageOS.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
				errs = append(errs, required(r.Namespace, p.Child("secretRef", "namespace"))...)
			}
			return errs
		}},
		{"csi", s.CSI != nil, func(p *field.Path) field.ErrorList { return validateCSIPersistentVolume(s.CSI, p) }},
	})
	if s.Local != nil && pv.Spec.NodeAffinity == nil {
		errs = append(errs, field.Required(p.Child("nodeAffinity"), "Local volume requires node affinity"))
	}
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	return append(errs, validateMountOptionsAnnotation(pv)...)
}

func validateCSIPersistentVolume(s *v1.CSIPersistentVolumeSource, p *field.Path) field.ErrorList {
	errs := csiDriverName(s.Driver, p.Child("driver"))
	errs = append(errs, required(s.VolumeHandle, p.Child("volumeHandle"))...)
	for _, r := range []struct {
		name string
		ref  *v1.SecretReference
	}{
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef}, {"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		name, namespace := p.Child(r.name, "name"), p.Child(r.name, "namespace")
		if errs = append(errs, required(r.ref.Name, name)...); r.ref.Name != "" {
			errs = append(errs, dnsSubdomain(r.ref.Name, name)...)
		}
		if errs = append(errs, required(r.ref.Namespace, namespace)...); r.ref.Namespace != "" {
			errs = append(errs, dnsLabel(r.ref.Namespace, namespace)...)
		}
	}
	return errs
}
