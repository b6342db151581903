package storage

import (
	"context"
	"fmt"
	"math"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

const (
	maxAttachmentMetadata = 256 << 10
	maxErrorMessage       = 1024
)

func volumeAttachments() *api.Resource {
	spec := storagev1.VolumeAttachmentSpec{}.SwaggerDoc()
	attacher := api.Column("Attacher", "string", spec["attacher"], 0)
	attacher.Format = "name"
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "VolumeAttachment", Plural: "volumeattachments",
		StoragePath: "volumeattachments",
		New:         func() api.Object { return &storagev1.VolumeAttachment{} },
		NewList:     func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		Default: api.Defaults(func(a *storagev1.VolumeAttachment) {
			if v := a.Spec.Source.InlineVolumeSpec; v != nil {
				core.DefaultPersistentVolumeSource(v)
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} }),
			Validate: api.Check(func(a *storagev1.VolumeAttachment) field.ErrorList {
				return validateAttachment(a, validateAttacher)
			}),
			PrepareUpdate: api.OnUpdate(func(a, old *storagev1.VolumeAttachment) { a.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(a, old *storagev1.VolumeAttachment) field.ErrorList {
				errs := validateAttachment(a, validateDriverName)
				return append(errs, api.Immutable(a.Spec, old.Spec, field.NewPath("spec"))...)
			}),
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(a, old *storagev1.VolumeAttachment) {
					a.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
				}),
				ValidateUpdate: api.CheckUpdate(func(a, _ *storagev1.VolumeAttachment) field.ErrorList {
					return validateAttachment(a, validateDriverName)
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			attacher,
			api.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"], 0),
			api.Column("Node", "string", spec["nodeName"], 0),
			api.Column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(a *storagev1.VolumeAttachment, now time.Time) []any {
			return []any{a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName,
				a.Status.Attached, api.Age(a.CreationTimestamp, now)}
		}),
	}
}

// validateAttachment words what is wrong with the attacher differently where it is new.
func validateAttachment(a *storagev1.VolumeAttachment, attacher func(string, *field.Path) field.ErrorList) field.ErrorList {
	p := field.NewPath("spec")
	errs := attacher(a.Spec.Attacher, p.Child("attacher"))
	errs = append(errs, validateSource(&a.Spec.Source, p.Child("source"))...)
	errs = append(errs, invalid(a.Spec.NodeName, validation.IsDNS1123Subdomain(a.Spec.NodeName), p.Child("nodeName"))...)
	s := field.NewPath("status")
	size := 0
	for k, v := range a.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxAttachmentMetadata {
		errs = append(errs, field.TooLong(s.Child("attachmentMetadata"), "", maxAttachmentMetadata))
	}
	errs = append(errs, validateVolumeError(a.Status.AttachError, s.Child("attachError"))...)
	errs = append(errs, validateVolumeError(a.Status.DetachError, s.Child("detachError"))...)
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		errs = append(errs, invalid(*name, validation.IsDNS1123Subdomain(*name), field.NewPath("spec.source.persistentVolumeName"))...)
	}
	return errs
}

func validateAttacher(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	ctx, op := context.Background(), operation.Operation{}
	errs := validate.LongNameCaseless(ctx, op, p, &name, nil)
	return append(errs, validate.MaxLength(ctx, op, p, &name, nil, maxDriverName)...)
}

func validateSource(s *storagev1.VolumeAttachmentSource, p *field.Path) field.ErrorList {
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		return field.ErrorList{field.Required(p, one)}
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		return field.ErrorList{field.Forbidden(p, one)}
	case s.PersistentVolumeName != nil:
		if *s.PersistentVolumeName == "" {
			return field.ErrorList{field.Required(p.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")}
		}
		return nil
	}
	return core.ValidateInlineVolume(s.InlineVolumeSpec, p.Child("inlineVolumeSpec"))
}

func validateVolumeError(e *storagev1.VolumeError, p *field.Path) field.ErrorList {
	if e == nil {
		return nil
	}
	var errs field.ErrorList
	if len(e.Message) > maxErrorMessage {
		errs = append(errs, field.TooLong(p.Child("message"), "", maxErrorMessage))
	}
	if c := e.ErrorCode; c != nil && *c < 0 {
		errs = append(errs, field.Invalid(p.Child("errorCode"), *c, fmt.Sprintf("must be between %d and %d, inclusive", 0, math.MaxInt32)))
	}
	return errs
}
