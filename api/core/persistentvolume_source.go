package core

import (
	"path"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePersistentVolumeSource(pv *v1.PersistentVolume, p *field.Path) field.ErrorList {
	s := &pv.Spec.PersistentVolumeSource
	errs := exactlyOneVolume(p, persistentVolumeKinds(pv))
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	return append(errs, validateMountOptionsAnnotation(pv)...)
}

func persistentVolumeKinds(pv *v1.PersistentVolume) []volumeKind {
	s := &pv.Spec.PersistentVolumeSource
	return []volumeKind{
		{name: "hostPath", set: s.HostPath != nil, check: func(p *field.Path) field.ErrorList { return validateHostPath(s.HostPath, p) }},
		{name: "persistentDisk", set: s.GCEPersistentDisk != nil, check: func(p *field.Path) field.ErrorList {
			return validateDisk(s.GCEPersistentDisk.PDName, s.GCEPersistentDisk.Partition, "pdName", p)
		}},
		{name: "awsElasticBlockStore", set: s.AWSElasticBlockStore != nil, check: func(p *field.Path) field.ErrorList {
			return validateDisk(s.AWSElasticBlockStore.VolumeID, s.AWSElasticBlockStore.Partition, "volumeID", p)
		}},
		{name: "glusterfs", set: s.Glusterfs != nil, check: func(p *field.Path) field.ErrorList {
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
		{name: "flocker", set: s.Flocker != nil, check: func(p *field.Path) field.ErrorList { return validateFlocker(s.Flocker, p) }},
		{name: "nfs", set: s.NFS != nil, check: func(p *field.Path) field.ErrorList { return validateNFS(s.NFS, p) }},
		{name: "rbd", set: s.RBD != nil, check: func(p *field.Path) field.ErrorList { return validateRBD(s.RBD.CephMonitors, s.RBD.RBDImage, p) }},
		{name: "quobyte", set: s.Quobyte != nil, check: func(p *field.Path) field.ErrorList { return validateQuobyte(s.Quobyte, p) }},
		{name: "cephfs", set: s.CephFS != nil, check: func(p *field.Path) field.ErrorList { return validateMonitors(s.CephFS.Monitors, p) }},
		{name: "iscsi", set: s.ISCSI != nil, check: func(p *field.Path) field.ErrorList {
			i := s.ISCSI
			errs := validateISCSI(i.TargetPortal, i.IQN, i.Lun, i.DiscoveryCHAPAuth || i.SessionCHAPAuth, i.SecretRef != nil, i.InitiatorName, "must be valid format", p)
			if i.InitiatorName != nil && len(pv.Name+":"+i.TargetPortal) > 64 {
				errs = append(errs, field.Invalid(p.Child("targetportal"), i.TargetPortal, iscsiTooLong))
			}
			if i.SecretRef != nil {
				errs = append(errs, required(i.SecretRef.Name, p.Child("secretRef", "name"))...)
			}
			return errs
		}},
		{name: "cinder", set: s.Cinder != nil, check: func(p *field.Path) field.ErrorList {
			errs := required(s.Cinder.VolumeID, p.Child("volumeID"))
			if r := s.Cinder.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
				errs = append(errs, required(r.Namespace, p.Child("secretRef", "namespace"))...)
			}
			return errs
		}},
		{name: "fc", set: s.FC != nil, check: func(p *field.Path) field.ErrorList { return validateFC(s.FC, p) }},
		// Upstream lets this one stand beside others by mistake; stored objects may.
		{name: "flexVolume", set: s.FlexVolume != nil, beside: true, check: func(p *field.Path) field.ErrorList {
			return validateFlex(s.FlexVolume.Driver, s.FlexVolume.Options, p)
		}},
		{name: "azureFile", set: s.AzureFile != nil, check: func(p *field.Path) field.ErrorList {
			errs := append(required(s.AzureFile.SecretName, p.Child("secretName")), required(s.AzureFile.ShareName, p.Child("shareName"))...)
			if ns := s.AzureFile.SecretNamespace; ns != nil {
				errs = append(errs, required(*ns, p.Child("secretNamespace"))...)
			}
			return errs
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
		{name: "scaleIO", set: s.ScaleIO != nil, check: func(p *field.Path) field.ErrorList {
			return validateScaleIO(s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName, p)
		}},
		{name: "local", set: s.Local != nil, check: func(p *field.Path) field.ErrorList {
			errs := required(s.Local.Path, p.Child("path"))
			errs = append(errs, noBacksteps(s.Local.Path, p.Child("path"))...)
			if pv.Spec.NodeAffinity == nil {
				errs = append(errs, field.Required(field.NewPath("spec", "nodeAffinity"), "Local volume requires node affinity"))
			}
			return errs
		}},
		{name: "storageos", set: s.StorageOS != nil, check: func(p *field.Path) field.ErrorList {
			errs := validateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, p)
			if r := s.StorageOS.SecretRef; r != nil {
				errs = append(errs, required(r.Name, p.Child("secretRef", "name"))...)
				errs = append(errs, required(r.Namespace, p.Child("secretRef", "namespace"))...)
			}
			return errs
		}},
		{name: "csi", set: s.CSI != nil, check: func(p *field.Path) field.ErrorList { return validateCSIPersistentVolume(s.CSI, p) }},
	}
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
