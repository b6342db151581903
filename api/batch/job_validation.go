package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/core"
)

// Limits of Indexed Jobs keep the index lists in their status storable.
const (
	maxIndexedParallelism = 100_000
	maxFailedIndexes      = 100_000
	manyCompletions       = 100_000
	parallelismForMany    = 10_000
	failedIndexesForMany  = 10_000
	maxManagedBy          = 63
)

// validateGeneratedSelector checks what generateSelector made, in case the user's own
// labels got in its way.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if ptr.Deref(j.Spec.ManualSelector, false) || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if j.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	expected := labels.Set{}
	p := field.NewPath("spec", "template", "metadata", "labels")
	for _, l := range [][2]string{
		{legacyUIDLabel, string(j.UID)}, {legacyNameLabel, j.Name},
		{batchv1.ControllerUidLabel, string(j.UID)}, {batchv1.JobNameLabel, j.Name},
	} {
		expected[l[0]] = l[1]
		switch have, ok := j.Spec.Template.Labels[l[0]]; {
		case !ok:
			errs = append(errs, field.Required(p.Key(l[0]), fmt.Sprintf("must be '%s'", l[1])))
		case have != l[1]:
			errs = append(errs, field.Invalid(p.Key(l[0]), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", l[1])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(expected) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// validateIndexedName: pods of an Indexed Job have the hostname <job>-<index>.
func validateIndexedName(j *batchv1.Job) field.ErrorList {
	n := ptr.Deref(j.Spec.Completions, 0)
	if !isIndexed(&j.Spec) || n <= 0 {
		return nil
	}
	last := fmt.Sprintf("%s-%d", j.Name, n-1)
	if len(validation.IsDNS1123Label(last)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), j.Name,
		"will not able to create pod with invalid DNS label: "+last)}
}

func isIndexed(s *batchv1.JobSpec) bool {
	return ptr.Deref(s.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// validateJobSpec validates a job's spec; old is nil on create.
func validateJobSpec(s, old *batchv1.JobSpec, p *field.Path) field.ErrorList {
	errs := validateJobSpecParts(s, old, p)
	opts := metav1validation.LabelSelectorValidationOptions{}
	if old != nil {
		opts.AllowInvalidLabelValueInSelector = metav1validation.LabelSelectorHasInvalidLabelValue(old.Selector)
	}
	if s.Selector == nil {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(s.Selector, opts, p.Child("selector"))...)
	}
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(p.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateJobSpecParts validates all but the selector, which a CronJob's template lacks.
func validateJobSpecParts(s, old *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	nonNegative := func(n *int32, name string) {
		if n != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*n), p.Child(name))...)
		}
	}
	nonNegative(s.Parallelism, "parallelism")
	nonNegative(s.Completions, "completions")
	if s.ActiveDeadlineSeconds != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(*s.ActiveDeadlineSeconds, p.Child("activeDeadlineSeconds"))...)
	}
	nonNegative(s.BackoffLimit, "backoffLimit")
	nonNegative(s.TTLSecondsAfterFinished, "ttlSecondsAfterFinished")
	nonNegative(s.BackoffLimitPerIndex, "backoffLimitPerIndex")
	if s.MaxFailedIndexes != nil {
		nonNegative(s.MaxFailedIndexes, "maxFailedIndexes")
		if s.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Required(p.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
		}
	}
	if m := s.ManagedBy; m != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(p.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs = append(errs, field.TooLong(p.Child("managedBy"), "", maxManagedBy))
		}
	}
	errs = append(errs, validateCompletionMode(s, p)...)
	if s.PodFailurePolicy != nil {
		errs = append(errs, validatePodFailurePolicy(s, p.Child("podFailurePolicy"))...)
	}
	if s.SuccessPolicy != nil {
		if isIndexed(s) {
			errs = append(errs, validateSuccessPolicy(s, p.Child("successPolicy"))...)
		} else {
			errs = append(errs, field.Invalid(p.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode"))
		}
	}
	errs = append(errs, validateReplacementPolicy(s, p.Child("podReplacementPolicy"))...)
	var oldTemplate *corev1.PodTemplateSpec
	if old != nil {
		oldTemplate = &old.Template
	}
	errs = append(errs, core.ValidatePodTemplateUpdate(&s.Template, oldTemplate, p.Child("template"))...)
	return append(errs, validateJobRestartPolicy(s, p.Child("template", "spec", "restartPolicy"))...)
}

func validateJobRestartPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	switch r := s.Template.Spec.RestartPolicy; {
	case r == corev1.RestartPolicyAlways || r == "":
		return field.ErrorList{field.Required(p, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))}
	case r != corev1.RestartPolicyOnFailure && r != corev1.RestartPolicyNever:
		return field.ErrorList{field.NotSupported(p, r, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
	case s.PodFailurePolicy != nil && r != corev1.RestartPolicyNever:
		return field.ErrorList{field.Invalid(p, r, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever))}
	}
	return nil
}

func validateCompletionMode(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	mode := ptr.Deref(s.CompletionMode, batchv1.NonIndexedCompletion)
	switch mode {
	case batchv1.NonIndexedCompletion:
		if s.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(p.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if s.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
		}
		return errs
	case batchv1.IndexedCompletion:
	default:
		return append(errs, field.NotSupported(p.Child("completionMode"), s.CompletionMode,
			[]batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion}))
	}

	completions, parallelism, failed := p.Child("completions"), p.Child("parallelism"), p.Child("maxFailedIndexes")
	n := ptr.Deref(s.Parallelism, 0)
	if s.Completions == nil {
		errs = append(errs, field.Required(completions, fmt.Sprintf("when completion mode is %s", mode)))
	}
	if n > maxIndexedParallelism {
		errs = append(errs, field.Invalid(parallelism, n, fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism, mode)))
	}
	if m := s.MaxFailedIndexes; m != nil {
		if s.Completions != nil && *m > *s.Completions {
			errs = append(errs, field.Invalid(failed, *m, "must be less than or equal to completions"))
		}
		if *m > maxFailedIndexes {
			errs = append(errs, field.Invalid(failed, *m, fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes)))
		}
	}
	if ptr.Deref(s.Completions, 0) <= manyCompletions || s.BackoffLimitPerIndex == nil {
		return errs
	}
	const many = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if s.MaxFailedIndexes == nil {
		errs = append(errs, field.Required(failed, fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
	}
	if n > parallelismForMany {
		errs = append(errs, field.Invalid(parallelism, n, fmt.Sprintf(many, parallelismForMany, manyCompletions)))
	}
	if m := s.MaxFailedIndexes; m != nil && *m > failedIndexesForMany {
		errs = append(errs, field.Invalid(failed, *m, fmt.Sprintf(many, failedIndexesForMany, manyCompletions)))
	}
	return errs
}

func validateReplacementPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if s.PodReplacementPolicy == nil {
		return nil
	}
	valid := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
	if s.PodFailurePolicy != nil {
		valid = valid[:1]
	}
	if slices.Contains(valid, *s.PodReplacementPolicy) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, *s.PodReplacementPolicy, valid)}
}

func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateJobSpec(&j.Spec, &old.Spec, p)
	errs = append(errs, validateCompletionsUpdate(&j.Spec, &old.Spec, p.Child("completions"))...)
	immutable := func(now, before any, name string) {
		errs = append(errs, apivalidation.ValidateImmutableField(now, before, p.Child(name))...)
	}
	immutable(j.Spec.Selector, old.Spec.Selector, "selector")
	errs = append(errs, validateJobTemplateUpdate(&j.Spec, old, p)...)
	immutable(j.Spec.CompletionMode, old.Spec.CompletionMode, "completionMode")
	immutable(j.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy, "podFailurePolicy")
	immutable(j.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex, "backoffLimitPerIndex")
	immutable(j.Spec.ManagedBy, old.Spec.ManagedBy, "managedBy")
	immutable(j.Spec.SuccessPolicy, old.Spec.SuccessPolicy, "successPolicy")
	return append(errs, validateIndexedName(j)...)
}

// validateCompletionsUpdate lets only Indexed Jobs be resized, and whole.
func validateCompletionsUpdate(s, old *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if !isIndexed(s) {
		return apivalidation.ValidateImmutableField(s.Completions, old.Completions, p)
	}
	if s.Completions == nil || ptr.Equal(s.Completions, old.Completions) || *s.Completions == ptr.Deref(s.Parallelism, 0) {
		return nil
	}
	return field.ErrorList{field.Invalid(p, s.Completions, fmt.Sprintf("can only be modified in tandem with %s", p.Root().Child("parallelism")))}
}

// validateJobTemplateUpdate keeps the template as it is, but where the job is suspended and
// has no pods: scheduling directives and resources may change then.
func validateJobTemplateUpdate(s *batchv1.JobSpec, old *batchv1.Job, p *field.Path) field.ErrorList {
	t, before := &s.Template, &old.Spec.Template
	idle := ptr.Deref(old.Spec.Suspend, false) && old.Status.Active == 0 &&
		(old.Status.StartTime == nil || hasCondition(old, batchv1.JobSuspended, corev1.ConditionTrue))
	if !idle {
		return apivalidation.ValidateImmutableField(t, before, p.Child("template"))
	}
	before = before.DeepCopy()
	allowScheduling(before, t)
	allowResources(before.Spec.Containers, t.Spec.Containers)
	allowResources(before.Spec.InitContainers, t.Spec.InitContainers)
	if equality.Semantic.DeepEqual(t.Spec, before.Spec) {
		return nil
	}
	return apivalidation.ValidateImmutableField(t.Spec, before.Spec, p.Child("template.spec"))
}

// allowScheduling copies to before what may differ from t.
func allowScheduling(before, t *corev1.PodTemplateSpec) {
	b := &before.Spec
	switch {
	case t.Spec.Affinity == nil && b.Affinity != nil:
		b.Affinity.NodeAffinity = nil
		if *b.Affinity == (corev1.Affinity{}) {
			b.Affinity = nil
		}
	case t.Spec.Affinity != nil && b.Affinity == nil:
		b.Affinity = &corev1.Affinity{NodeAffinity: t.Spec.Affinity.NodeAffinity}
	case t.Spec.Affinity != nil:
		b.Affinity.NodeAffinity = t.Spec.Affinity.NodeAffinity
	}
	b.NodeSelector = t.Spec.NodeSelector
	b.Tolerations = t.Spec.Tolerations
	b.SchedulingGates = t.Spec.SchedulingGates
	before.Annotations, before.Labels = t.Annotations, t.Labels
}

func allowResources(before, now []corev1.Container) {
	if len(before) != len(now) {
		return
	}
	for i := range now {
		if before[i].Name == now[i].Name {
			before[i].Resources = now[i].Resources
		}
	}
}
