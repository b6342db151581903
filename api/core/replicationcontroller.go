package core

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

func replicationControllers() *api.Resource {
	doc, status := v1.ReplicationControllerSpec{}.SwaggerDoc(), v1.ReplicationControllerStatus{}.SwaggerDoc()
	return &api.Resource{
		Version: "v1", Kind: "ReplicationController", Plural: "replicationcontrollers",
		ShortNames: []string{"rc"}, Categories: []string{"all"},
		Namespaced: true, StoragePath: "controllers",
		New:     func() api.Object { return &v1.ReplicationController{} },
		NewList: func() runtime.Object { return &v1.ReplicationControllerList{} },
		Default: api.Defaults(defaultReplicationController),
		Strategy: api.Strategy{
			HasGeneration: true,
			DefaultGC:     metav1.DeletePropagationOrphan,
			PrepareCreate: api.OnCreate(func(c *v1.ReplicationController) {
				c.Status = v1.ReplicationControllerStatus{}
				DropDisabledTemplateFields(c.Spec.Template, nil)
			}),
			Validate: api.Check(func(c *v1.ReplicationController) field.ErrorList {
				return validateReplicationController(c, nil)
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *v1.ReplicationController) {
				c.Status = old.Status
				DropDisabledTemplateFields(c.Spec.Template, old.Spec.Template)
			}),
			ValidateUpdate: api.CheckUpdate(validateReplicationController),
			Warnings:       api.Warn(replicationControllerWarnings),
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: api.OnUpdate(func(c, old *v1.ReplicationController) { c.Spec = old.Spec }),
			ValidateUpdate: api.CheckUpdate(func(c, _ *v1.ReplicationController) field.ErrorList {
				return validateReplicationControllerStatus(&c.Status, field.NewPath("status"))
			}),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Scale: &api.Scale{
			Get: func(obj runtime.Object) (int32, int32, string) {
				c := obj.(*v1.ReplicationController)
				return ptr.Deref(c.Spec.Replicas, 0), c.Status.Replicas, labels.SelectorFromSet(c.Spec.Selector).String()
			},
			Set: func(obj runtime.Object, replicas int32) { obj.(*v1.ReplicationController).Spec.Replicas = &replicas },
		},
		Fields: api.Selectable(func(c *v1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(c.Status.Replicas))}
		}),
		FieldLabels: []string{"status.replicas"},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Desired", "integer", doc["replicas"], 0),
			api.Column("Current", "integer", status["replicas"], 0),
			api.Column("Ready", "integer", status["readyReplicas"], 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(), api.Column("Selector", "string", doc["selector"], api.Wide))...),
		Row: api.Cells(func(c *v1.ReplicationController, now time.Time) []any {
			var containers []v1.Container
			if c.Spec.Template != nil {
				containers = c.Spec.Template.Spec.Containers
			}
			names, images := api.ContainerCells(containers)
			return []any{c.Name, int64(ptr.Deref(c.Spec.Replicas, 0)), int64(c.Status.Replicas), int64(c.Status.ReadyReplicas),
				api.Age(c.CreationTimestamp, now), names, images, labels.FormatLabels(c.Spec.Selector)}
		}),
	}
}

func defaultReplicationController(c *v1.ReplicationController) {
	setIfNil(&c.Spec.Replicas, 1)
	if c.Spec.Template == nil {
		return
	}
	if l := c.Spec.Template.Labels; l != nil {
		if len(c.Spec.Selector) == 0 {
			c.Spec.Selector = maps.Clone(l)
		}
		if len(c.Labels) == 0 {
			c.Labels = maps.Clone(l)
		}
	}
	DefaultPodTemplate(c.Spec.Template)
}

func validateReplicationController(c, old *v1.ReplicationController) field.ErrorList {
	s, p := &c.Spec, field.NewPath("spec")
	errs := nonNegative(s.MinReadySeconds, p.Child("minReadySeconds"))
	if len(s.Selector) == 0 {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	}
	if s.Replicas == nil {
		errs = append(errs, field.Required(p.Child("replicas"), ""))
	} else {
		errs = append(errs, nonNegative(*s.Replicas, p.Child("replicas"))...)
	}
	t, p := s.Template, p.Child("template")
	if t == nil {
		return append(errs, field.Required(p, ""))
	}
	if len(s.Selector) > 0 && !labels.SelectorFromSet(s.Selector).Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(p.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	if old != nil {
		errs = append(errs, ValidatePodTemplateUpdate(t, old.Spec.Template, p)...)
	} else {
		errs = append(errs, ValidatePodTemplate(t, p)...)
	}
	errs = append(errs, supported(t.Spec.RestartPolicy, p.Child("spec", "restartPolicy"), v1.RestartPolicyAlways)...)
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(p.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicationController is not Supported"))
	}
	return errs
}

func validateReplicationControllerStatus(s *v1.ReplicationControllerStatus, p *field.Path) field.ErrorList {
	errs := nonNegative(s.Replicas, p.Child("replicas"))
	errs = append(errs, nonNegative(s.FullyLabeledReplicas, p.Child("fullyLabeledReplicas"))...)
	errs = append(errs, nonNegative(s.ReadyReplicas, p.Child("readyReplicas"))...)
	errs = append(errs, nonNegative(s.AvailableReplicas, p.Child("availableReplicas"))...)
	errs = append(errs, nonNegative(s.ObservedGeneration, p.Child("observedGeneration"))...)
	for _, c := range []struct {
		name  string
		value int32
	}{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas}, {"availableReplicas", s.AvailableReplicas}} {
		if c.value > s.Replicas {
			errs = append(errs, field.Invalid(p.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}

func replicationControllerWarnings(c, old *v1.ReplicationController) []string {
	p := field.NewPath("spec", "template")
	if old != nil {
		if old.Generation == c.Generation {
			return nil
		}
		return PodTemplateWarnings(c.Spec.Template, old.Spec.Template, p)
	}
	var warnings []string
	if msgs := validation.IsDNS1123Label(c.Name); len(msgs) > 0 {
		warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(warnings, PodTemplateWarnings(c.Spec.Template, nil, p)...)
}
