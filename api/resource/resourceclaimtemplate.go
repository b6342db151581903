package resource

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

func resourceClaimTemplates() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ResourceClaimTemplate", Plural: "resourceclaimtemplates", Namespaced: true,
		StoragePath: "resourceclaimtemplates",
		New:         func() api.Object { return &resourcev1.ResourceClaimTemplate{} },
		NewList:     func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
		Default:     api.Defaults(func(t *resourcev1.ResourceClaimTemplate) { defaultClaimSpec(&t.Spec.Spec) }),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(t *resourcev1.ResourceClaimTemplate) { dropSpecFields(&t.Spec.Spec, nil) }),
			Validate:      api.Check(validateTemplate),
			PrepareUpdate: api.OnUpdate(func(t, old *resourcev1.ResourceClaimTemplate) { dropSpecFields(&t.Spec.Spec, &old.Spec.Spec) }),
			ValidateUpdate: api.CheckUpdate(func(t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
				return append(validateTemplate(t), apivalidation.ValidateImmutableField(t.Spec, old.Spec, field.NewPath("spec"))...)
			}),
		},
		Columns: []metav1.TableColumnDefinition{api.NameColumn(), api.AgeColumn()},
		Row: api.Cells(func(t *resourcev1.ResourceClaimTemplate, now time.Time) []any {
			return []any{t.Name, api.Age(t.CreationTimestamp, now)}
		}),
	}
}

func validateTemplate(t *resourcev1.ResourceClaimTemplate) field.ErrorList {
	p := field.NewPath("spec")
	errs := core.ValidateTemplateMeta(&t.Spec.ObjectMeta, p.Child("metadata"))
	return append(errs, validateClaimSpec(&t.Spec.Spec, p.Child("spec"))...)
}
