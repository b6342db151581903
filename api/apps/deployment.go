package apps

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

func deployments() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "Deployment", Plural: "deployments",
		ShortNames: []string{"deploy"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "deployments",
		New:         func() api.Object { return &appsv1.Deployment{} },
		NewList:     func() runtime.Object { return &appsv1.DeploymentList{} },
		Default:     api.Defaults(defaultDeployment),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(d *appsv1.Deployment) {
				d.Status = appsv1.DeploymentStatus{}
				core.DropDisabledTemplateFields(&d.Spec.Template, nil)
			}),
			Validate: api.Check(func(d *appsv1.Deployment) field.ErrorList {
				return validateDeploymentSpec(&d.Spec, nil, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(d, old *appsv1.Deployment) {
				d.Status = old.Status
				core.DropDisabledTemplateFields(&d.Spec.Template, &old.Spec.Template)
			}),
			ValidateUpdate: api.CheckUpdate(func(d, old *appsv1.Deployment) field.ErrorList {
				p := field.NewPath("spec")
				errs := validateDeploymentSpec(&d.Spec, &old.Spec.Template, p)
				return append(errs, apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, p.Child("selector"))...)
			}),
			Warnings: api.Warn(func(d, old *appsv1.Deployment) []string {
				if old == nil {
					return append(podNameWarnings(d.Name), core.PodTemplateWarnings(&d.Spec.Template, nil, templatePath())...)
				}
				return core.PodTemplateWarnings(&d.Spec.Template, &old.Spec.Template, templatePath())
			}),
			HasGeneration: true,
			// Annotations count: the deployment controller copies them to its ReplicaSets.
			SpecChanged: api.Changed(func(d, old *appsv1.Deployment) bool {
				return !equality.Semantic.DeepEqual(d.Spec, old.Spec) ||
					!equality.Semantic.DeepEqual(d.Annotations, old.Annotations)
			}),
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(d, old *appsv1.Deployment) {
					d.Spec, d.Labels = old.Spec, old.Labels
				}),
				ValidateUpdate:    api.CheckUpdate(validateDeploymentStatusUpdate),
				IgnoredApplyPaths: []string{"spec", "metadata.labels"},
			},
		}},
		Scale: &api.Scale{
			Get: func(obj runtime.Object) (int32, int32, string) {
				d := obj.(*appsv1.Deployment)
				return ptr.Deref(d.Spec.Replicas, 0), d.Status.Replicas, selectorString(d.Spec.Selector)
			},
			Set: func(obj runtime.Object, replicas int32) { obj.(*appsv1.Deployment).Spec.Replicas = &replicas },
		},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Ready", "string", "Number of the pod with ready state", 0),
			api.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"], 0),
			api.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"], 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(),
			api.Column("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"], api.Wide))...),
		Row: api.Cells(deploymentRow),
	}
}

func deploymentRow(d *appsv1.Deployment, now time.Time) []any {
	selector := "<invalid>"
	if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
		selector = s.String()
	}
	names, images := api.ContainerCells(d.Spec.Template.Spec.Containers)
	return []any{
		d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 0)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas),
		api.Age(d.CreationTimestamp, now), names, images, selector,
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	core.DefaultPodTemplate(&d.Spec.Template)
	setDefault(&d.Spec.Replicas, 1)
	s := &d.Spec.Strategy
	if s.Type == "" {
		s.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if s.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if s.RollingUpdate == nil {
			s.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		setDefault(&s.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		setDefault(&s.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	setDefault(&d.Spec.RevisionHistoryLimit, 10)
	setDefault(&d.Spec.ProgressDeadlineSeconds, 600)
}

func validateDeploymentSpec(s *appsv1.DeploymentSpec, oldTemplate *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := nonNegative(int64(ptr.Deref(s.Replicas, 0)), p.Child("replicas"))
	selector, selErrs := requireSelector(s.Selector, p.Child("selector"), "empty selector is invalid for deployment", "invalid label selector")
	errs = append(errs, selErrs...)
	if selector != nil {
		errs = append(errs, validateReplicatedTemplate(&s.Template, oldTemplate, selector, p.Child("template"))...)
	}
	errs = append(errs, validateDeploymentStrategy(&s.Strategy, p.Child("strategy"))...)
	errs = append(errs, nonNegative(int64(s.MinReadySeconds), p.Child("minReadySeconds"))...)
	if s.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(int64(*s.RevisionHistoryLimit), p.Child("revisionHistoryLimit"))...)
	}
	if s.ProgressDeadlineSeconds != nil {
		deadline := p.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(int64(*s.ProgressDeadlineSeconds), deadline)...)
		if *s.ProgressDeadlineSeconds <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(deadline, s.ProgressDeadlineSeconds, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, p *field.Path) field.ErrorList {
	rolling := p.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(rolling, "may not be specified when strategy `type` is 'Recreate'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(rolling, "this should be defaulted and never be nil")}
		}
		return validateRollingUpdateDeployment(s.RollingUpdate, rolling)
	}
	return field.ErrorList{field.NotSupported(p, s, []string{
		string(appsv1.RecreateDeploymentStrategyType), string(appsv1.RollingUpdateDeploymentStrategyType)})}
}

func validateRollingUpdateDeployment(r *appsv1.RollingUpdateDeployment, p *field.Path) field.ErrorList {
	unavailable, surge := ptr.Deref(r.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(r.MaxSurge, intstr.IntOrString{})
	errs := intOrPercent(unavailable, p.Child("maxUnavailable"))
	errs = append(errs, intOrPercent(surge, p.Child("maxSurge"))...)
	if amount(unavailable) == 0 && amount(surge) == 0 {
		// Neither more nor fewer pods than asked for leaves no room to roll.
		errs = append(errs, field.Invalid(p.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, atMost100Percent(unavailable, p.Child("maxUnavailable"))...)
}

func validateDeploymentStatusUpdate(d, old *appsv1.Deployment) field.ErrorList {
	s, p := &d.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, c := range []struct {
		n    int64
		name string
	}{
		{s.ObservedGeneration, "observedGeneration"},
		{int64(s.Replicas), "replicas"},
		{int64(s.UpdatedReplicas), "updatedReplicas"},
		{int64(s.ReadyReplicas), "readyReplicas"},
		{int64(s.AvailableReplicas), "availableReplicas"},
		{int64(s.UnavailableReplicas), "unavailableReplicas"},
		{int64(ptr.Deref(s.TerminatingReplicas, 0)), "terminatingReplicas"},
		{int64(ptr.Deref(s.CollisionCount, 0)), "collisionCount"},
	} {
		errs = append(errs, nonNegative(c.n, p.Child(c.name))...)
	}
	const msg = "cannot be greater than status.replicas"
	if s.UpdatedReplicas > s.Replicas {
		errs = append(errs, field.Invalid(p.Child("updatedReplicas"), s.UpdatedReplicas, msg))
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
	return append(errs, notDecremented(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}
