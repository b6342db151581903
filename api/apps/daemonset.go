package apps

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

func daemonSets() *api.Resource {
	status := appsv1.DaemonSetStatus{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "DaemonSet", Plural: "daemonsets",
		ShortNames: []string{"ds"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "daemonsets",
		New:         func() api.Object { return &appsv1.DaemonSet{} },
		NewList:     func() runtime.Object { return &appsv1.DaemonSetList{} },
		Default: api.Defaults(func(d *appsv1.DaemonSet) {
			defaultDaemonSet(d)
			setTemplateGeneration(d, templateGeneration(d)) // upstream's conversion does, before it sees who owns what
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(d *appsv1.DaemonSet) {
				d.Status = appsv1.DaemonSetStatus{}
				setTemplateGeneration(d, max(1, templateGeneration(d)))
				core.DropDisabledTemplateFields(&d.Spec.Template, nil)
			}),
			Validate: api.Check(func(d *appsv1.DaemonSet) field.ErrorList {
				return validateDaemonSetSpec(&d.Spec, nil, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(d, old *appsv1.DaemonSet) {
				d.Status = old.Status
				core.DropDisabledTemplateFields(&d.Spec.Template, &old.Spec.Template)
				generation := templateGeneration(old)
				if !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
					generation++
				}
				setTemplateGeneration(d, generation)
			}),
			ValidateUpdate: api.CheckUpdate(func(d, old *appsv1.DaemonSet) field.ErrorList {
				p := field.NewPath("spec")
				errs := apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, p.Child("selector"))
				return append(errs, validateDaemonSetSpec(&d.Spec, &old.Spec, p)...)
			}),
			Warnings: api.Warn(func(d, old *appsv1.DaemonSet) []string {
				if old == nil {
					return core.PodTemplateWarnings(&d.Spec.Template, nil, templatePath())
				}
				if templateGeneration(d) == templateGeneration(old) {
					return nil
				}
				return core.PodTemplateWarnings(&d.Spec.Template, &old.Spec.Template, templatePath())
			}),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(d, old *appsv1.DaemonSet) {
					d.Spec = old.Spec
					setTemplateGeneration(d, templateGeneration(old))
				}),
				ValidateUpdate:    api.CheckUpdate(validateDaemonSetStatusUpdate),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Desired", "integer", status["desiredNumberScheduled"], 0),
			api.Column("Current", "integer", status["currentNumberScheduled"], 0),
			api.Column("Ready", "integer", status["numberReady"], 0),
			api.Column("Up-to-date", "integer", status["updatedNumberScheduled"], 0),
			api.Column("Available", "integer", status["numberAvailable"], 0),
			api.Column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"], 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(),
			api.Column("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"], api.Wide))...),
		Row: api.Cells(func(d *appsv1.DaemonSet, now time.Time) []any {
			names, images := api.ContainerCells(d.Spec.Template.Spec.Containers)
			s := &d.Status
			return []any{
				d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
				int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable),
				labels.FormatLabels(d.Spec.Template.Spec.NodeSelector), api.Age(d.CreationTimestamp, now),
				names, images, metav1.FormatLabelSelector(d.Spec.Selector),
			}
		}),
	}
}

// The generation of the template is no field of apps/v1: upstream keeps it in an
// annotation, on the wire and in etcd.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	core.DefaultPodTemplate(&d.Spec.Template)
	s := &d.Spec.UpdateStrategy
	if s.Type == "" {
		s.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if s.RollingUpdate == nil {
			s.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		setDefault(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setDefault(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setDefault(&d.Spec.RevisionHistoryLimit, 10)
}

func validateDaemonSetSpec(s, old *appsv1.DaemonSetSpec, p *field.Path) field.ErrorList {
	var oldTemplate *corev1.PodTemplateSpec
	opts := metav1validation.LabelSelectorValidationOptions{}
	if old != nil {
		oldTemplate = &old.Template
		opts.AllowInvalidLabelValueInSelector = metav1validation.LabelSelectorHasInvalidLabelValue(old.Selector)
	}
	errs := metav1validation.ValidateLabelSelector(s.Selector, opts, p.Child("selector"))
	t := p.Child("template")
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(t.Child("metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	if s.Selector != nil && len(s.Selector.MatchLabels)+len(s.Selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(p.Child("selector"), s.Selector, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, core.ValidatePodTemplateUpdate(&s.Template, oldTemplate, t)...)
	errs = append(errs, alwaysRestarted(&s.Template, "DaemonSet", t)...)
	errs = append(errs, nonNegative(int64(s.MinReadySeconds), p.Child("minReadySeconds"))...)
	errs = append(errs, validateDaemonSetStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
	if s.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(int64(*s.RevisionHistoryLimit), p.Child("revisionHistoryLimit"))...)
	}
	return errs
}

func validateDaemonSetStrategy(s *appsv1.DaemonSetUpdateStrategy, p *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(p.Child("rollingUpdate"), "")}
		}
		return validateRollingUpdateDaemonSet(s.RollingUpdate, p.Child("rollingUpdate"))
	}
	return field.ErrorList{field.NotSupported(p, s, []string{
		string(appsv1.RollingUpdateDaemonSetStrategyType), string(appsv1.OnDeleteDaemonSetStrategyType)})}
}

func validateRollingUpdateDaemonSet(r *appsv1.RollingUpdateDaemonSet, p *field.Path) field.ErrorList {
	unavailable, surge := ptr.Deref(r.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(r.MaxSurge, intstr.IntOrString{})
	pu, ps := p.Child("maxUnavailable"), p.Child("maxSurge")
	errs := intOrPercent(unavailable, pu)
	errs = append(errs, intOrPercent(surge, ps)...)
	errs = append(errs, atMost100Percent(unavailable, pu)...)
	errs = append(errs, atMost100Percent(surge, ps)...)
	switch u, s := amount(unavailable) != 0, amount(surge) != 0; {
	case u && s:
		errs = append(errs, field.Invalid(ps, r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	case !u && !s:
		errs = append(errs, field.Required(pu, "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetStatusUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	s, p := &d.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, c := range []struct {
		n    int64
		name string
	}{
		{int64(s.CurrentNumberScheduled), "currentNumberScheduled"},
		{int64(s.NumberMisscheduled), "numberMisscheduled"},
		{int64(s.DesiredNumberScheduled), "desiredNumberScheduled"},
		{int64(s.NumberReady), "numberReady"},
		{s.ObservedGeneration, "observedGeneration"},
		{int64(s.UpdatedNumberScheduled), "updatedNumberScheduled"},
		{int64(s.NumberAvailable), "numberAvailable"},
		{int64(s.NumberUnavailable), "numberUnavailable"},
		{int64(ptr.Deref(s.CollisionCount, 0)), "collisionCount"},
	} {
		errs = append(errs, nonNegative(c.n, p.Child(c.name))...)
	}
	return append(errs, notDecremented(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}
