package storage

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
)

func storageClasses() *api.Resource {
	doc := storagev1.StorageClass{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "StorageClass", Plural: "storageclasses",
		ShortNames:  []string{"sc"},
		StoragePath: "storageclasses",
		New:         func() api.Object { return &storagev1.StorageClass{} },
		NewList:     func() runtime.Object { return &storagev1.StorageClassList{} },
		Default: api.Defaults(func(c *storagev1.StorageClass) {
			setDefault(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			setDefault(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		}),
		Strategy: api.Strategy{
			Validate: api.Check(validateStorageClass),
			ValidateUpdate: api.CheckUpdate(func(c, old *storagev1.StorageClass) field.ErrorList {
				errs := validateStorageClass(c)
				immutable := func(now, before any, name string) {
					errs = append(errs, api.Immutable(now, before, field.NewPath(name))...)
				}
				immutable(c.Parameters, old.Parameters, "parameters")
				immutable(c.Provisioner, old.Provisioner, "provisioner")
				immutable(c.ReclaimPolicy, old.ReclaimPolicy, "reclaimPolicy")
				immutable(c.VolumeBindingMode, old.VolumeBindingMode, "volumeBindingMode")
				return errs
			}),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Provisioner", "string", doc["provisioner"], 0),
			api.Column("ReclaimPolicy", "string", doc["reclaimPolicy"], 0),
			api.Column("VolumeBindingMode", "string", doc["volumeBindingMode"], 0),
			api.Column("AllowVolumeExpansion", "string", doc["allowVolumeExpansion"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(storageClassRow),
	}
}

func storageClassRow(c *storagev1.StorageClass, now time.Time) []any {
	name := c.Name
	if c.Annotations[defaultAnnotation] == "true" {
		name += " (default)"
	}
	return []any{name, c.Provisioner,
		string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
		string(ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
		ptr.Deref(c.AllowVolumeExpansion, false), api.Age(c.CreationTimestamp, now)}
}

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(c.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	reclaim := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}
	if r := ptr.Deref(c.ReclaimPolicy, ""); r != "" && !slices.Contains(reclaim, r) {
		errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, reclaim))
	}
	binding := []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}
	if m := c.VolumeBindingMode; m == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else if !slices.Contains(binding, *m) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), m, binding))
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

func validateProvisioner(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return metav1validation.ValidateLabelName(strings.ToLower(name), p)
}

func validateParameters(params map[string]string, p *field.Path) field.ErrorList {
	if len(params) > maxParameters {
		return field.ErrorList{field.TooLong(p, "", maxParameters)}
	}
	var errs field.ErrorList
	size := 0
	for k, v := range params {
		if k == "" {
			errs = append(errs, field.Invalid(p, k, "field can not be empty."))
		}
		size += len(k) + len(v)
	}
	if size > maxParametersSize {
		errs = append(errs, field.TooLong(p, "", maxParametersSize))
	}
	return errs
}

// validateTopologies refuses terms that say the same as another.
func validateTopologies(terms []corev1.TopologySelectorTerm, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	// As upstream, the terms are compared with as many empty ones first.
	seen := make([]map[string]sets.Set[string], len(terms))
	for i := range terms {
		ep := p.Index(i).Child("matchLabelExpressions")
		term := map[string]sets.Set[string]{}
		for k, e := range terms[i].MatchLabelExpressions {
			values, valueErrs := validateExpression(&e, ep.Index(k))
			errs = append(errs, valueErrs...)
			if _, ok := term[e.Key]; ok {
				errs = append(errs, field.Duplicate(ep.Index(k).Child("key"), e.Key))
			}
			term[e.Key] = values
		}
		for _, s := range seen {
			if equality.Semantic.DeepEqual(s, term) {
				errs = append(errs, field.Duplicate(ep, ""))
			}
		}
		seen = append(seen, term)
	}
	return errs
}

func validateExpression(e *corev1.TopologySelectorLabelRequirement, p *field.Path) (sets.Set[string], field.ErrorList) {
	var errs field.ErrorList
	values := sets.New[string]()
	if len(e.Values) == 0 {
		errs = append(errs, field.Required(p.Child("values"), ""))
	}
	for i, v := range e.Values {
		if values.Has(v) {
			errs = append(errs, field.Duplicate(p.Child("values").Index(i), v))
		}
		values.Insert(v)
	}
	return values, append(errs, metav1validation.ValidateLabelName(e.Key, p.Child("key"))...)
}
