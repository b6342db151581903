package apps

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

func replicaSets() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ReplicaSet", Plural: "replicasets",
		ShortNames: []string{"rs"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "replicasets",
		New:         func() api.Object { return &appsv1.ReplicaSet{} },
		NewList:     func() runtime.Object { return &appsv1.ReplicaSetList{} },
		Default:     api.Defaults(defaultReplicaSet),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(r *appsv1.ReplicaSet) {
				r.Status = appsv1.ReplicaSetStatus{}
				core.DropDisabledTemplateFields(&r.Spec.Template, nil)
			}),
			Validate: api.Check(func(r *appsv1.ReplicaSet) field.ErrorList {
				return validateReplicaSetSpec(&r.Spec, nil, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(r, old *appsv1.ReplicaSet) {
				r.Status = old.Status
				core.DropDisabledTemplateFields(&r.Spec.Template, &old.Spec.Template)
			}),
			ValidateUpdate: api.CheckUpdate(func(r, old *appsv1.ReplicaSet) field.ErrorList {
				p := field.NewPath("spec")
				errs := validateReplicaSetSpec(&r.Spec, &old.Spec.Template, p)
				return append(errs, apivalidation.ValidateImmutableField(r.Spec.Selector, old.Spec.Selector, p.Child("selector"))...)
			}),
			Warnings: api.Warn(func(r, old *appsv1.ReplicaSet) []string {
				if old == nil {
					return append(podNameWarnings(r.Name), core.PodTemplateWarnings(&r.Spec.Template, nil, templatePath())...)
				}
				return core.PodTemplateWarnings(&r.Spec.Template, &old.Spec.Template, templatePath())
			}),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(r, old *appsv1.ReplicaSet) { r.Spec = old.Spec }),
				ValidateUpdate: api.CheckUpdate(func(r, _ *appsv1.ReplicaSet) field.ErrorList {
					return validateReplicaSetStatus(&r.Status, field.NewPath("status"))
				}),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Scale: &api.Scale{
			Get: func(obj runtime.Object) (int32, int32, string) {
				r := obj.(*appsv1.ReplicaSet)
				return ptr.Deref(r.Spec.Replicas, 0), r.Status.Replicas, selectorString(r.Spec.Selector)
			},
			Set: func(obj runtime.Object, replicas int32) { obj.(*appsv1.ReplicaSet).Spec.Replicas = &replicas },
		},
		Fields: api.Selectable(func(r *appsv1.ReplicaSet) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
		}),
		FieldLabels: []string{"status.replicas"},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"], 0),
			api.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"], 0),
			api.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"], 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(),
			api.Column("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"], api.Wide))...),
		Row: api.Cells(func(r *appsv1.ReplicaSet, now time.Time) []any {
			names, images := api.ContainerCells(r.Spec.Template.Spec.Containers)
			return []any{
				r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				api.Age(r.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(r.Spec.Selector),
			}
		}),
	}
}

func defaultReplicaSet(r *appsv1.ReplicaSet) {
	core.DefaultPodTemplate(&r.Spec.Template)
	setDefault(&r.Spec.Replicas, 1)
}

func validateReplicaSetSpec(s *appsv1.ReplicaSetSpec, oldTemplate *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := nonNegative(int64(ptr.Deref(s.Replicas, 0)), p.Child("replicas"))
	errs = append(errs, nonNegative(int64(s.MinReadySeconds), p.Child("minReadySeconds"))...)
	// Upstream says "deployment" here too.
	selector, selErrs := requireSelector(s.Selector, p.Child("selector"), "empty selector is invalid for deployment", "invalid label selector")
	errs = append(errs, selErrs...)
	if selector != nil {
		errs = append(errs, validateReplicatedTemplate(&s.Template, oldTemplate, selector, p.Child("template"))...)
	}
	return errs
}

func validateReplicaSetStatus(s *appsv1.ReplicaSetStatus, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, c := range []struct {
		n    int64
		name string
	}{
		{int64(s.Replicas), "replicas"},
		{int64(s.FullyLabeledReplicas), "fullyLabeledReplicas"},
		{int64(s.ReadyReplicas), "readyReplicas"},
		{int64(s.AvailableReplicas), "availableReplicas"},
		{s.ObservedGeneration, "observedGeneration"},
		{int64(ptr.Deref(s.TerminatingReplicas, 0)), "terminatingReplicas"},
	} {
		errs = append(errs, nonNegative(c.n, p.Child(c.name))...)
	}
	const msg = "cannot be greater than status.replicas"
	if s.FullyLabeledReplicas > s.Replicas {
		errs = append(errs, field.Invalid(p.Child("fullyLabeledReplicas"), s.FullyLabeledReplicas, msg))
	}
	if s.ReadyReplicas > s.Replicas {
		errs = append(errs, field.Invalid(p.Child("readyReplicas"), s.ReadyReplicas, msg))
	}
	if s.AvailableReplicas > s.Replicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), s.AvailableReplicas, msg))
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
