package core

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateInlineVolume validates a persistent volume inside a volume attachment, where a
// volume of before CSI is given as what its CSI driver attaches.
func ValidateInlineVolume(s *v1.PersistentVolumeSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(set bool, name, detail string) {
		if set {
			errs = append(errs, field.Forbidden(p.Child(name), detail))
		}
	}
	const never = "may not be specified in the context of inline volumes"
	forbid(s.ClaimRef != nil, "claimRef", never)
	forbid(len(s.Capacity) != 0, "capacity", never)
	if s.CSI == nil {
		errs = append(errs, field.Required(p.Child("csi"), "has to be specified in the context of inline volumes"))
	}
	errs = append(errs, validateAccessModes(s.AccessModes, "", p.Child("accessModes"))...)
	policy := s.PersistentVolumeReclaimPolicy
	forbid(policy != "" && policy != v1.PersistentVolumeReclaimRetain, "persistentVolumeReclaimPolicy",
		fmt.Sprintf("may only be %s in the context of inline volumes", v1.PersistentVolumeReclaimRetain))
	forbid(s.NodeAffinity != nil, "nodeAffinity", never)
	errs = append(errs, validatePersistentVolumeSource(&v1.PersistentVolume{Spec: *s}, p)...)
	forbid(s.StorageClassName != "", "storageClassName", never)
	forbid(s.VolumeMode != nil && *s.VolumeMode != v1.PersistentVolumeFilesystem, "volumeMode",
		fmt.Sprintf("may not specify volumeMode other than %s in the context of inline volumes", v1.PersistentVolumeFilesystem))
	return errs
}
