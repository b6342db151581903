package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Pod failure policy (KEP-3329) and success policy (KEP-3998).
const (
	maxFailureRules     = 20
	maxExitCodes        = 255
	maxConditions       = 20
	maxSuccessRules     = 20
	maxSucceededIndexes = 64 * 1024
)

var (
	failureActions = []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount,
		batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore}
	exitCodeOperators = []batchv1.PodFailurePolicyOnExitCodesOperator{
		batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	conditionStatuses = []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
)

func validatePodFailurePolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules := s.PodFailurePolicy.Rules
	p = p.Child("rules")
	if len(rules) > maxFailureRules {
		errs = append(errs, field.TooMany(p, len(rules), maxFailureRules))
	}
	containers := sets.New[string]()
	for i := range s.Template.Spec.Containers {
		containers.Insert(s.Template.Spec.Containers[i].Name)
	}
	for i := range s.Template.Spec.InitContainers {
		containers.Insert(s.Template.Spec.InitContainers[i].Name)
	}
	for i := range rules {
		errs = append(errs, validateFailureRule(s, &rules[i], containers, p.Index(i))...)
	}
	return errs
}

func validateFailureRule(s *batchv1.JobSpec, r *batchv1.PodFailurePolicyRule, containers sets.Set[string], p *field.Path) field.ErrorList {
	var errs field.ErrorList
	action := p.Child("action")
	switch {
	case r.Action == "":
		errs = append(errs, field.Required(action, fmt.Sprintf("valid values: %q", failureActions)))
	case r.Action == batchv1.PodFailurePolicyActionFailIndex:
		if s.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(action, r.Action, "requires the backoffLimitPerIndex to be set"))
		}
	case !slices.Contains(failureActions, r.Action):
		errs = append(errs, field.NotSupported(action, r.Action, failureActions))
	}
	if r.OnExitCodes != nil {
		errs = append(errs, validateExitCodes(r.OnExitCodes, containers, p.Child("onExitCodes"))...)
	}
	if len(r.OnPodConditions) > 0 {
		errs = append(errs, validateFailureConditions(r.OnPodConditions, p.Child("onPodConditions"))...)
	}
	switch codes, conditions := r.OnExitCodes != nil, len(r.OnPodConditions) > 0; {
	case codes && conditions:
		errs = append(errs, field.Invalid(p, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
	case !codes && !conditions:
		errs = append(errs, field.Invalid(p, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

func validateFailureConditions(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > maxConditions {
		errs = append(errs, field.TooMany(p, len(patterns), maxConditions))
	}
	for i := range patterns {
		c, cp := &patterns[i], p.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(string(c.Type), cp.Child("type"))...)
		switch {
		case c.Status == "":
			errs = append(errs, field.Required(cp.Child("status"), fmt.Sprintf("valid values: %q", conditionStatuses)))
		case !slices.Contains(conditionStatuses, c.Status):
			errs = append(errs, field.NotSupported(cp.Child("status"), c.Status, conditionStatuses))
		}
	}
	return errs
}

func validateExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, containers sets.Set[string], p *field.Path) field.ErrorList {
	var errs field.ErrorList
	operator, values := p.Child("operator"), p.Child("values")
	switch {
	case r.Operator == "":
		errs = append(errs, field.Required(operator, fmt.Sprintf("valid values: %q", exitCodeOperators)))
	case !slices.Contains(exitCodeOperators, r.Operator):
		errs = append(errs, field.NotSupported(operator, r.Operator, exitCodeOperators))
	}
	if r.ContainerName != nil && !containers.Has(*r.ContainerName) {
		errs = append(errs, field.Invalid(p.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	switch {
	case len(r.Values) == 0:
		errs = append(errs, field.Invalid(values, r.Values, "at least one value is required"))
	case len(r.Values) > maxExitCodes:
		errs = append(errs, field.TooMany(values, len(r.Values), maxExitCodes))
	}
	seen := sets.New[int32]()
	for i, code := range r.Values {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && code == 0 {
			errs = append(errs, field.Invalid(values.Index(i), code, "must not be 0 for the In operator"))
		}
		if seen.Has(code) {
			errs = append(errs, field.Duplicate(values.Index(i), code))
		}
		seen.Insert(code)
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(values, r.Values, "must be ordered"))
	}
	return errs
}

// validateSuccessPolicy wants an Indexed Job.
func validateSuccessPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	p = p.Child("rules")
	rules := s.SuccessPolicy.Rules
	if len(rules) == 0 {
		errs = append(errs, field.Required(p, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(rules) > maxSuccessRules {
		errs = append(errs, field.TooMany(p, len(rules), maxSuccessRules))
	}
	var completions int32
	if s.Completions != nil {
		completions = *s.Completions
	}
	for i := range rules {
		errs = append(errs, validateSuccessRule(&rules[i], completions, p.Index(i))...)
	}
	return errs
}

func validateSuccessRule(r *batchv1.SuccessPolicyRule, completions int32, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.SucceededCount == nil && r.SucceededIndexes == nil {
		errs = append(errs, field.Required(p, "at least one of succeededCount or succeededIndexes must be specified"))
	}
	var total int32
	if r.SucceededIndexes != nil {
		ip := p.Child("succeededIndexes")
		if len(*r.SucceededIndexes) > maxSucceededIndexes {
			errs = append(errs, field.TooLong(ip, "", maxSucceededIndexes))
		}
		n, err := countIndexes(*r.SucceededIndexes, completions)
		if err != nil {
			errs = append(errs, field.Invalid(ip, *r.SucceededIndexes, fmt.Sprintf("error parsing succeededIndexes: %s", err)))
		}
		total = n
	}
	if c := r.SucceededCount; c != nil {
		cp := p.Child("succeededCount")
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*c), cp)...)
		if *c > completions {
			errs = append(errs, field.Invalid(cp, *c, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
		}
		if r.SucceededIndexes != nil && *c > total {
			errs = append(errs, field.Invalid(cp, *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", total)))
		}
	}
	return errs
}
