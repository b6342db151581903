package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func persistentVolumes() *api.Resource {
	doc := v1.PersistentVolumeSpec{}.SwaggerDoc()
	status := v1.PersistentVolumeStatus{}.SwaggerDoc()
	return &api.Resource{
		Version: "v1", Kind: "PersistentVolume", Plural: "persistentvolumes", ShortNames: []string{"pv"},
		StoragePath: "persistentvolumes",
		New:         func() api.Object { return &v1.PersistentVolume{} },
		NewList:     func() runtime.Object { return &v1.PersistentVolumeList{} },
		Default:     api.Defaults(defaultPersistentVolume),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(pv *v1.PersistentVolume) {
				now := metav1.Now()
				pv.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending, LastPhaseTransitionTime: &now}
			}),
			Validate: api.Check(func(pv *v1.PersistentVolume) field.ErrorList {
				return validatePersistentVolume(pv, nil)
			}),
			PrepareUpdate:  api.OnUpdate(func(pv, old *v1.PersistentVolume) { pv.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(validatePersistentVolumeUpdate),
			Warnings:       api.Warn(persistentVolumeWarnings),
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
				pv, before := obj.(*v1.PersistentVolume), old.(*v1.PersistentVolume)
				pv.Spec = before.Spec
				stampPhase(&pv.Status, &before.Status, metav1.Now())
			},
			ValidateUpdate:    api.CheckUpdate(func(_, _ *v1.PersistentVolume) field.ErrorList { return nil }),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Capacity", "string", doc["capacity"], 0),
			api.Column("Access Modes", "string", doc["accessModes"], 0),
			api.Column("Reclaim Policy", "string", doc["persistentVolumeReclaimPolicy"], 0),
			api.Column("Status", "string", status["phase"], 0),
			api.Column("Claim", "string", doc["claimRef"], 0),
			api.Column("StorageClass", "string", "StorageClass of the pv", 0),
			api.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv", 0),
			api.Column("Reason", "string", status["reason"], 0),
			api.AgeColumn(),
			api.Column("VolumeMode", "string", doc["volumeMode"], api.Wide),
		},
		Row: api.Cells(persistentVolumeRow),
	}
}

func defaultPersistentVolume(pv *v1.PersistentVolume) {
	setIfEmpty(&pv.Status.Phase, v1.VolumePending)
	setIfEmpty(&pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain)
	setIfNil(&pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	DefaultPersistentVolumeSource(&pv.Spec)
}

// DefaultPersistentVolumeSource fills what every persistent volume has, also one that is
// inline in a volume attachment.
func DefaultPersistentVolumeSource(s *v1.PersistentVolumeSpec) {
	roundUp(s.Capacity)
	defaultHostPath(s.HostPath)
	defaultAzureDisk(s.AzureDisk)
	if s.RBD != nil {
		setIfEmpty(&s.RBD.RBDPool, "rbd")
		setIfEmpty(&s.RBD.RadosUser, "admin")
		setIfEmpty(&s.RBD.Keyring, "/etc/ceph/keyring")
	}
	if s.ISCSI != nil {
		setIfEmpty(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.ScaleIO != nil {
		setIfEmpty(&s.ScaleIO.StorageMode, "ThinProvisioned")
		setIfEmpty(&s.ScaleIO.FSType, "xfs")
	}
}

// stampPhase records when the phase changed, unless the client says so itself.
func stampPhase(s, old *v1.PersistentVolumeStatus, now metav1.Time) {
	switch {
	case s.Phase == old.Phase:
		if s.LastPhaseTransitionTime == nil {
			s.LastPhaseTransitionTime = old.LastPhaseTransitionTime
		}
	case s.LastPhaseTransitionTime == nil || s.LastPhaseTransitionTime.Equal(old.LastPhaseTransitionTime):
		s.LastPhaseTransitionTime = &now
	}
}

func persistentVolumeRow(pv *v1.PersistentVolume, now time.Time) []any {
	claim := ""
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	phase := string(pv.Status.Phase)
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class := pv.Spec.StorageClassName
	if beta, has := pv.Annotations[v1.BetaStorageClassAnnotation]; has {
		class = beta
	}
	return []any{
		pv.Name, capacity.String(), accessModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy),
		phase, claim, class, orUnset(pv.Spec.VolumeAttributesClassName), pv.Status.Reason,
		api.Age(pv.CreationTimestamp, now), orUnset(pv.Spec.VolumeMode),
	}
}

func accessModes(modes []v1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range []struct {
		mode  v1.PersistentVolumeAccessMode
		short string
	}{{v1.ReadWriteOnce, "RWO"}, {v1.ReadOnlyMany, "ROX"}, {v1.ReadWriteMany, "RWX"}, {v1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			short = append(short, m.short)
		}
	}
	return strings.Join(short, ",")
}

func orUnset[T ~string](p *T) string {
	if p == nil {
		return "<unset>"
	}
	return string(*p)
}

// validatePersistentVolume leaves node label values alone where an old volume,
// nil on create, has bad ones already.
func validatePersistentVolume(pv, old *v1.PersistentVolume) field.ErrorList {
	lax := old != nil && old.Spec.NodeAffinity != nil && old.Spec.NodeAffinity.Required != nil &&
		badNodeSelectorValue(old.Spec.NodeAffinity.Required)
	spec, p := &pv.Spec, field.NewPath("spec")
	errs := validateAccessModes(spec.AccessModes, "", p.Child("accessModes"))
	if len(spec.Capacity) == 0 {
		errs = append(errs, field.Required(p.Child("capacity"), ""))
	}
	if _, has := spec.Capacity[v1.ResourceStorage]; !has || len(spec.Capacity) > 1 {
		errs = append(errs, field.NotSupported(p.Child("capacity"), spec.Capacity, []v1.ResourceName{v1.ResourceStorage}))
	}
	for _, name := range sortedKeys(spec.Capacity) {
		q, p := spec.Capacity[name], p.Child("capacity").Key(string(name))
		errs = append(errs, amount(q, p)...)
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(p, q.String(), "must be greater than zero"))
		}
	}
	errs = append(errs, oneOfOrEmpty(spec.PersistentVolumeReclaimPolicy, p.Child("persistentVolumeReclaimPolicy"),
		v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle, v1.PersistentVolumeReclaimRetain)...)
	if spec.NodeAffinity != nil {
		required := p.Child("nodeAffinity", "required")
		if spec.NodeAffinity.Required == nil {
			errs = append(errs, field.Required(required, "must specify required node constraints"))
		} else {
			errs = append(errs, validateNodeSelector(spec.NodeAffinity.Required, required, lax)...)
		}
	}
	errs = append(errs, validatePersistentVolumeSource(pv, p)...)
	if spec.StorageClassName != "" {
		errs = append(errs, dnsSubdomain(spec.StorageClassName, p.Child("storageClassName"))...)
	}
	if spec.VolumeMode != nil {
		errs = append(errs, supported(*spec.VolumeMode, p.Child("volumeMode"), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
	}
	if class := spec.VolumeAttributesClassName; class != nil {
		p := p.Child("volumeAttributesClassName")
		if *class == "" {
			errs = append(errs, field.Required(p, "an empty string is disallowed"))
		} else {
			errs = append(errs, dnsSubdomain(*class, p)...)
		}
		if spec.CSI == nil {
			errs = append(errs, field.Required(field.NewPath("spec", "csi"), "has to be specified when using volumeAttributesClassName"))
		}
	}
	return errs
}

// validateAccessModes checks the modes of a volume or claim; missing explains
// that there must be one.
func validateAccessModes(modes []v1.PersistentVolumeAccessMode, missing string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(modes) == 0 {
		errs = append(errs, field.Required(p, missing))
	}
	oncePod, others := false, false
	for _, m := range modes {
		bad := supported(m, p, v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod)
		errs = append(errs, bad...)
		if m == v1.ReadWriteOncePod {
			oncePod = true
		} else if len(bad) == 0 {
			others = true
		}
	}
	if oncePod && others {
		errs = append(errs, field.Forbidden(p, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

func validatePersistentVolumeUpdate(pv, old *v1.PersistentVolume) field.ErrorList {
	errs := validatePersistentVolume(pv, old)
	source := pv.Spec.PersistentVolumeSource
	if source.CSI != nil && old.Spec.CSI != nil && old.Spec.CSI.ControllerExpandSecretRef == nil {
		// It may be set once.
		source.CSI = source.CSI.DeepCopy()
		source.CSI.ControllerExpandSecretRef = nil
	}
	if !equality.Semantic.DeepEqual(source, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(api.Internal(old.Spec.PersistentVolumeSource), api.Internal(source)))))
	}
	errs = append(errs, immutable(pv.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil && !equality.Semantic.DeepEqual(pv.Spec.NodeAffinity, old.Spec.NodeAffinity) &&
		!equality.Semantic.DeepEqual(pv.Spec.NodeAffinity, withStableLabels(old.Spec.NodeAffinity)) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), pv.Spec.NodeAffinity,
			"field is immutable, except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && pv.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}

// withStableLabels names the stable node labels where a names their beta forms.
func withStableLabels(a *v1.VolumeNodeAffinity) *v1.VolumeNodeAffinity {
	stable := map[string]string{
		v1.LabelFailureDomainBetaZone:   v1.LabelTopologyZone,
		v1.LabelFailureDomainBetaRegion: v1.LabelTopologyRegion,
		"beta.kubernetes.io/os":         v1.LabelOSStable,
		"beta.kubernetes.io/arch":       v1.LabelArchStable,
		v1.LabelInstanceType:            v1.LabelInstanceTypeStable,
	}
	a = a.DeepCopy()
	if a.Required == nil {
		return a
	}
	for _, t := range a.Required.NodeSelectorTerms {
		for i := range t.MatchExpressions {
			if key, has := stable[t.MatchExpressions[i].Key]; has {
				t.MatchExpressions[i].Key = key
			}
		}
	}
	return a
}

func persistentVolumeWarnings(pv, _ *v1.PersistentVolume) []string {
	var list []string
	annotations := field.NewPath("metadata", "annotations")
	if _, has := pv.Annotations[v1.BetaStorageClassAnnotation]; has {
		list = append(list, fmt.Sprintf("%s: %s", annotations.Key(v1.BetaStorageClassAnnotation), deprecatedClassAnnotation))
	}
	if _, has := pv.Annotations[v1.MountOptionAnnotation]; has {
		list = append(list, fmt.Sprintf(`%s: deprecated since v1.31; use "mountOptions" attribute instead`, annotations.Key(v1.MountOptionAnnotation)))
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle {
		list = append(list, "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if a := pv.Spec.NodeAffinity; a != nil && a.Required != nil {
		var w warnings
		for i := range a.Required.NodeSelectorTerms {
			w.nodeTerm(&a.Required.NodeSelectorTerms[i], false, field.NewPath("spec", "nodeAffinity", "required", "nodeSelectorTerms").Index(i))
		}
		list = append(list, w...)
	}
	for _, gone := range []struct {
		used bool
		text string
	}{
		{pv.Spec.CephFS != nil, "spec.cephfs: deprecated in v1.28, non-functional in v1.31+"},
		{pv.Spec.PhotonPersistentDisk != nil, "spec.photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+"},
		{pv.Spec.ScaleIO != nil, "spec.scaleIO: deprecated in v1.16, non-functional in v1.22+"},
		{pv.Spec.StorageOS != nil, "spec.storageOS: deprecated in v1.22, non-functional in v1.25+"},
		{pv.Spec.Glusterfs != nil, "spec.glusterfs: deprecated in v1.25, non-functional in v1.26+"},
		{pv.Spec.RBD != nil, "spec.rbd: deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.used {
			list = append(list, gone.text)
		}
	}
	return list
}

const deprecatedClassAnnotation = `deprecated since v1.8; use "storageClassName" attribute instead`

// mountOptionsAnnotation is honoured by a few volume types only.
func validateMountOptionsAnnotation(pv *v1.PersistentVolume) field.ErrorList {
	s := &pv.Spec
	if s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil ||
		s.VsphereVolume != nil || s.AzureDisk != nil || s.PhotonPersistentDisk != nil {
		return nil
	}
	if _, has := pv.Annotations[v1.MountOptionAnnotation]; has {
		return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations", v1.MountOptionAnnotation),
			"may not specify mount options for this volume type")}
	}
	return nil
}
