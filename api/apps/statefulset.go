package apps

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
	"github.com/skiff-k8s/skiff/api/meta"
)

func statefulSets() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "StatefulSet", Plural: "statefulsets",
		ShortNames: []string{"sts"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "statefulsets",
		New:         func() api.Object { return &appsv1.StatefulSet{} },
		NewList:     func() runtime.Object { return &appsv1.StatefulSetList{} },
		Default:     api.Defaults(defaultStatefulSet),
		Strategy: api.Strategy{
			// Pods are named <set>-<ordinal> and take that as their hostname.
			NameErrors: meta.DNSLabel,
			PrepareCreate: api.OnCreate(func(s *appsv1.StatefulSet) {
				s.Status = appsv1.StatefulSetStatus{}
				core.DropDisabledTemplateFields(&s.Spec.Template, nil)
			}),
			Validate: api.Check(func(s *appsv1.StatefulSet) field.ErrorList {
				p := field.NewPath("spec")
				errs := validateStatefulSetSpec(&s.Spec, true, func(t *field.Path) field.ErrorList {
					return core.ValidatePodTemplate(asPods(&s.Spec), t)
				}, p)
				if name := s.Spec.ServiceName; name != "" {
					for _, msg := range validation.IsDNS1123Label(name) {
						errs = append(errs, field.Invalid(p.Child("serviceName"), name, msg))
					}
				}
				return errs
			}),
			PrepareUpdate: api.OnUpdate(func(s, old *appsv1.StatefulSet) {
				s.Status = old.Status
				core.DropDisabledTemplateFields(&s.Spec.Template, &old.Spec.Template)
			}),
			ValidateUpdate: api.CheckUpdate(validateStatefulSetUpdate),
			Warnings:       api.Warn(statefulSetWarnings),
			HasGeneration:  true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate:     api.OnUpdate(func(s, old *appsv1.StatefulSet) { s.Spec = old.Spec }),
				ValidateUpdate:    api.CheckUpdate(validateStatefulSetStatusUpdate),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Scale: &api.Scale{
			Get: func(obj runtime.Object) (int32, int32, string) {
				s := obj.(*appsv1.StatefulSet)
				return ptr.Deref(s.Spec.Replicas, 0), s.Status.Replicas, selectorString(s.Spec.Selector)
			},
			Set: func(obj runtime.Object, replicas int32) { obj.(*appsv1.StatefulSet).Spec.Replicas = &replicas },
		},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Ready", "string", "Number of the pod with ready state", 0),
			api.AgeColumn(),
		}, api.ContainerColumns()...),
		Row: api.Cells(func(s *appsv1.StatefulSet, now time.Time) []any {
			names, images := api.ContainerCells(s.Spec.Template.Spec.Containers)
			return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 0)),
				api.Age(s.CreationTimestamp, now), names, images}
		}),
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	core.DefaultPodTemplate(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		c := &s.Spec.VolumeClaimTemplates[i]
		c.APIVersion, c.Kind = "v1", "PersistentVolumeClaim"
		core.DefaultPersistentVolumeClaim(c)
	}
	if s.Spec.PodManagementPolicy == "" {
		s.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	u := &s.Spec.UpdateStrategy
	if u.Type == "" {
		u.Type = appsv1.RollingUpdateStatefulSetStrategyType
		if u.RollingUpdate == nil {
			u.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
	}
	if u.Type == appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
		setDefault(&u.RollingUpdate.Partition, 0)
		setDefault(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	setDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	r := s.Spec.PersistentVolumeClaimRetentionPolicy
	if r.WhenDeleted == "" {
		r.WhenDeleted = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if r.WhenScaled == "" {
		r.WhenScaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	setDefault(&s.Spec.Replicas, 1)
	setDefault(&s.Spec.RevisionHistoryLimit, 10)
}

// validateStatefulSetSpec leaves the template, and on updates the claims, to the caller.
func validateStatefulSetSpec(s *appsv1.StatefulSetSpec, claims bool, checkTemplate func(*field.Path) field.ErrorList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch s.PodManagementPolicy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	case "":
		errs = append(errs, field.Required(p.Child("podManagementPolicy"), ""))
	default:
		errs = append(errs, field.Invalid(p.Child("podManagementPolicy"), s.PodManagementPolicy, "must be 'OrderedReady' or 'Parallel'"))
	}
	errs = append(errs, validateStatefulSetStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
	if r := s.PersistentVolumeClaimRetentionPolicy; r != nil {
		rp := p.Child("persistentVolumeClaimRetentionPolicy")
		errs = append(errs, validateRetention(r.WhenDeleted, rp.Child("whenDeleted"))...)
		errs = append(errs, validateRetention(r.WhenScaled, rp.Child("whenScaled"))...)
	}
	if claims {
		for i := range s.VolumeClaimTemplates {
			errs = append(errs, core.ValidateClaimSpec(&s.VolumeClaimTemplates[i].Spec, nil,
				p.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
		}
	}
	errs = append(errs, nonNegative(int64(ptr.Deref(s.Replicas, 0)), p.Child("replicas"))...)
	errs = append(errs, nonNegative(int64(s.MinReadySeconds), p.Child("minReadySeconds"))...)
	if s.Ordinals != nil {
		errs = append(errs, nonNegative(int64(s.Ordinals.Start), p.Child("ordinals.start"))...)
	}
	selector, selErrs := requireSelector(s.Selector, p.Child("selector"), "empty selector is invalid for statefulset", "")
	errs = append(errs, selErrs...)
	t := p.Child("template")
	if selector != nil {
		errs = append(errs, selectorMatches(selector, &s.Template, t)...)
		errs = append(errs, checkTemplate(t)...)
	}
	return append(errs, alwaysRestarted(&s.Template, "StatefulSet", t)...)
}

// asPods is the template as the pods will look: the controller sets hostname and
// subdomain, and adds a volume for each claim template.
func asPods(s *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := s.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	claimed := map[string]bool{}
	var volumes []corev1.Volume
	for i := range s.VolumeClaimTemplates {
		name := s.VolumeClaimTemplates[i].Name
		if claimed[name] {
			continue
		}
		claimed[name] = true
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return t
}

func validateStatefulSetStrategy(u *appsv1.StatefulSetUpdateStrategy, p *field.Path) field.ErrorList {
	rolling := p.Child("rollingUpdate")
	switch u.Type {
	case "":
		return field.ErrorList{field.Required(p, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if u.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(rolling, u.RollingUpdate, "only allowed for updateStrategy 'RollingUpdate'")}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if u.RollingUpdate == nil {
			return nil
		}
		errs := nonNegative(int64(ptr.Deref(u.RollingUpdate.Partition, 0)), rolling.Child("partition"))
		if m := u.RollingUpdate.MaxUnavailable; m != nil {
			mp := rolling.Child("maxUnavailable")
			errs = append(errs, intOrPercent(*m, mp)...)
			if amount(*m) == 0 {
				errs = append(errs, field.Invalid(mp, *m, "cannot be 0"))
			}
			errs = append(errs, atMost100Percent(*m, mp)...)
		}
		return errs
	}
	return field.ErrorList{field.Invalid(p, *u, "must be 'RollingUpdate' or 'OnDelete'")}
}

func validateRetention(policy appsv1.PersistentVolumeClaimRetentionPolicyType, p *field.Path) field.ErrorList {
	switch policy {
	case appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		return nil
	}
	return field.ErrorList{field.NotSupported(p, policy, []string{
		string(appsv1.RetainPersistentVolumeClaimRetentionPolicyType), string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType)})}
}

func validateStatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	p := field.NewPath("spec")
	now, before := asPods(&s.Spec), asPods(&old.Spec)
	template := func(t *field.Path) field.ErrorList { return core.ValidatePodTemplateUpdate(now, before, t) }
	// Where the old object is not valid, the template may be what it is.
	if len(validateStatefulSetSpec(&old.Spec, false, func(t *field.Path) field.ErrorList {
		return core.ValidatePodTemplateUpdate(before, before, t)
	}, p)) > 0 {
		template = func(*field.Path) field.ErrorList { return nil }
	}
	errs := validateStatefulSetSpec(&s.Spec, false, template, p)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Selector, old.Spec.Selector, p.Child("selector"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates, p.Child("volumeClaimTemplates"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.ServiceName, old.Spec.ServiceName, p.Child("serviceName"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy, p.Child("podManagementPolicy"))...)
}

func statefulSetWarnings(s, old *appsv1.StatefulSet) []string {
	var oldTemplate *corev1.PodTemplateSpec
	if old != nil {
		oldTemplate = &old.Spec.Template
	}
	warnings := core.PodTemplateWarnings(&s.Spec.Template, oldTemplate, templatePath())
	for i := range s.Spec.VolumeClaimTemplates {
		p := field.NewPath("spec", "volumeClaimTemplates").Index(i)
		warnings = append(warnings, core.ClaimSpecWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, p)...)
	}
	if ptr.Deref(s.Spec.RevisionHistoryLimit, 0) < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}

func validateStatefulSetStatusUpdate(set, old *appsv1.StatefulSet) field.ErrorList {
	s, p := &set.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, c := range []struct {
		n    int64
		name string
	}{
		{int64(s.Replicas), "replicas"},
		{int64(s.ReadyReplicas), "readyReplicas"},
		{int64(s.CurrentReplicas), "currentReplicas"},
		{int64(s.UpdatedReplicas), "updatedReplicas"},
		{int64(s.AvailableReplicas), "availableReplicas"},
		{s.ObservedGeneration, "observedGeneration"},
		{int64(ptr.Deref(s.CollisionCount, 0)), "collisionCount"},
	} {
		errs = append(errs, nonNegative(c.n, p.Child(c.name))...)
	}
	const msg = "cannot be greater than status.replicas"
	for _, c := range []struct {
		n    int32
		name string
	}{
		{s.ReadyReplicas, "readyReplicas"}, {s.CurrentReplicas, "currentReplicas"},
		{s.UpdatedReplicas, "updatedReplicas"}, {s.AvailableReplicas, "availableReplicas"},
	} {
		if c.n > s.Replicas {
			errs = append(errs, field.Invalid(p.Child(c.name), c.n, msg))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than status.readyReplicas"))
	}
	return append(errs, notDecremented(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}
