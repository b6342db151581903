package storage

import (
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

const (
	minTokenSeconds  = 10 * 60
	maxTokenSeconds  = 1 << 32
	minUpdateSeconds = 10
)

func csiDrivers() *api.Resource {
	spec := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "CSIDriver", Plural: "csidrivers",
		StoragePath: "csidrivers",
		New:         func() api.Object { return &storagev1.CSIDriver{} },
		NewList:     func() runtime.Object { return &storagev1.CSIDriverList{} },
		Default:     api.Defaults(defaultCSIDriver),
		Strategy: api.Strategy{
			// Generations of drivers count changes only: upstream sets none at first.
			PrepareCreate: api.OnCreate(func(d *storagev1.CSIDriver) { d.Generation = 0 }),
			Validate: api.Check(func(d *storagev1.CSIDriver) field.ErrorList {
				return validateCSIDriverSpec(&d.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(func(d, old *storagev1.CSIDriver) field.ErrorList {
				p := field.NewPath("spec")
				errs := validateCSIDriverSpec(&d.Spec, p)
				errs = append(errs, apivalidation.ValidateImmutableField(d.Spec.AttachRequired, old.Spec.AttachRequired, p.Child("attachedRequired"))...)
				return append(errs, apivalidation.ValidateImmutableField(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, p.Child("volumeLifecycleModes"))...)
			}),
			Warnings:        api.Warn(csiDriverWarnings),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("AttachRequired", "boolean", spec["attachRequired"], 0),
			api.Column("PodInfoOnMount", "boolean", spec["podInfoOnMount"], 0),
			api.Column("StorageCapacity", "boolean", spec["storageCapacity"], 0),
			api.Column("TokenRequests", "string", spec["tokenRequests"], 0),
			api.Column("RequiresRepublish", "boolean", spec["requiresRepublish"], 0),
			api.Column("Modes", "string", spec["volumeLifecycleModes"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(csiDriverRow),
	}
}

func csiDriverRow(d *storagev1.CSIDriver, now time.Time) []any {
	s := &d.Spec
	modes, tokens := "<none>", "<unset>"
	if len(s.VolumeLifecycleModes) > 0 {
		list := make([]string, len(s.VolumeLifecycleModes))
		for i, m := range s.VolumeLifecycleModes {
			list[i] = string(m)
		}
		modes = strings.Join(list, ",")
	}
	if s.TokenRequests != nil {
		list := make([]string, len(s.TokenRequests))
		for i := range s.TokenRequests {
			list[i] = s.TokenRequests[i].Audience
		}
		tokens = strings.Join(list, ",")
	}
	return []any{d.Name, ptr.Deref(s.AttachRequired, true), ptr.Deref(s.PodInfoOnMount, false), ptr.Deref(s.StorageCapacity, false),
		tokens, ptr.Deref(s.RequiresRepublish, false), modes, api.Age(d.CreationTimestamp, now)}
}

func defaultCSIDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	setDefault(&s.AttachRequired, true)
	setDefault(&s.PodInfoOnMount, false)
	setDefault(&s.StorageCapacity, false)
	setDefault(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setDefault(&s.RequiresRepublish, false)
	setDefault(&s.SELinuxMount, false)
	setDefault(&s.PreventPodSchedulingIfMissing, false)
}

func csiDriverWarnings(d, old *storagev1.CSIDriver) []string {
	if len(d.Spec.TokenRequests) == 0 || d.Spec.ServiceAccountTokenInSecrets != nil ||
		old != nil && equality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests) {
		return nil
	}
	return []string{"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
}

func validateCSIDriverSpec(s *storagev1.CSIDriverSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	required := func(v *bool, name string) {
		if v == nil {
			errs = append(errs, field.Required(p.Child(name), ""))
		}
	}
	required(s.AttachRequired, "attachedRequired")
	required(s.PodInfoOnMount, "podInfoOnMount")
	required(s.StorageCapacity, "storageCapacity")
	policies := []storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if g := s.FSGroupPolicy; g != nil && !slices.Contains(policies, *g) {
		errs = append(errs, field.NotSupported(p.Child("fsGroupPolicy"), g, policies))
	}
	errs = append(errs, validateTokenRequests(s.TokenRequests, p.Child("tokenRequests"))...)
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, m := range s.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(p.Child("volumeLifecycleModes"), m, modes))
		}
	}
	required(s.SELinuxMount, "seLinuxMount")
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < minUpdateSeconds {
		errs = append(errs, field.Invalid(p.Child("nodeAllocatableUpdatePeriodSeconds"), *n, "must be greater than or equal to 10 seconds"))
	}
	if v := s.ServiceAccountTokenInSecrets; v != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(p.Child("serviceAccountTokenInSecrets"), v, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	required(s.PreventPodSchedulingIfMissing, "preventPodSchedulingIfMissing")
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range requests {
		r, rp := &requests[i], p.Index(i)
		if seen.Has(r.Audience) {
			errs = append(errs, field.Duplicate(rp.Child("audience"), r.Audience))
			continue
		}
		seen.Insert(r.Audience)
		switch s := r.ExpirationSeconds; {
		case s == nil:
		case *s < minTokenSeconds:
			errs = append(errs, field.Invalid(rp.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
		case *s > maxTokenSeconds:
			errs = append(errs, field.Invalid(rp.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}
