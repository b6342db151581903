package core

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func podTemplates() *api.Resource {
	template := field.NewPath("template")
	return &api.Resource{
		Version: "v1", Kind: "PodTemplate", Plural: "podtemplates",
		Namespaced: true, StoragePath: "podtemplates",
		New:     func() api.Object { return &v1.PodTemplate{} },
		NewList: func() runtime.Object { return &v1.PodTemplateList{} },
		Default: api.Defaults(func(t *v1.PodTemplate) { DefaultPodTemplate(&t.Template) }),
		Strategy: api.Strategy{
			HasGeneration: true,
			PrepareCreate: api.OnCreate(func(t *v1.PodTemplate) { DropDisabledTemplateFields(&t.Template, nil) }),
			Validate:      api.Check(func(t *v1.PodTemplate) field.ErrorList { return ValidatePodTemplate(&t.Template, template) }),
			PrepareUpdate: api.OnUpdate(func(t, old *v1.PodTemplate) { DropDisabledTemplateFields(&t.Template, &old.Template) }),
			ValidateUpdate: api.CheckUpdate(func(t, old *v1.PodTemplate) field.ErrorList {
				return ValidatePodTemplateUpdate(&t.Template, &old.Template, template)
			}),
			Warnings: api.Warn(func(t, old *v1.PodTemplate) []string {
				if old == nil {
					return PodTemplateWarnings(&t.Template, nil, template)
				}
				if t.Generation == old.Generation {
					return nil
				}
				return PodTemplateWarnings(&t.Template, &old.Template, template)
			}),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Containers", "string", "Names of each container in the template.", 0),
			api.Column("Images", "string", "Images referenced by each container in the template.", 0),
			api.Column("Pod Labels", "string", "The labels for the pod template.", 0),
		},
		Row: api.Cells(func(t *v1.PodTemplate, _ time.Time) []any {
			names, images := api.ContainerCells(t.Template.Spec.Containers)
			return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
		}),
	}
}
