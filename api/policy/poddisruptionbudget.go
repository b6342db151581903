// Package policy declares the resources of the policy group.
//
// Owns: poddisruptionbudgets. Must not: evict, that is pods/eviction in the API server,
// nor count pods, that is the disruption controller's.
package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{podDisruptionBudgets()} }

// legacyLabel is how policy/v1beta1 selectors for all and for no pods are stored.
const legacyLabel = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

func podDisruptionBudgets() *api.Resource {
	return &api.Resource{
		Group: policyv1.GroupName, Version: "v1",
		Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets",
		ShortNames:  []string{"pdb"},
		Namespaced:  true,
		StoragePath: "poddisruptionbudgets",
		New:         func() api.Object { return &policyv1.PodDisruptionBudget{} },
		NewList:     func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		Strategy: api.Strategy{
			NameErrors: func(string, bool) []string { return nil }, // anything that fits in a URL
			PrepareCreate: api.OnCreate(func(b *policyv1.PodDisruptionBudget) {
				b.Status = policyv1.PodDisruptionBudgetStatus{}
				stripLegacyLabel(b.Spec.Selector)
			}),
			Validate: api.Check(func(b *policyv1.PodDisruptionBudget) field.ErrorList {
				return validateSpec(&b.Spec, nil, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(b, old *policyv1.PodDisruptionBudget) {
				b.Status = old.Status
				if !equality.Semantic.DeepEqual(b.Spec.Selector, old.Spec.Selector) {
					stripLegacyLabel(b.Spec.Selector)
				}
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *policyv1.PodDisruptionBudget) field.ErrorList {
				return validateSpec(&b.Spec, &old.Spec, field.NewPath("spec"))
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(b, old *policyv1.PodDisruptionBudget) { b.Spec = old.Spec }),
				ValidateUpdate: api.CheckUpdate(func(b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
					return validateStatus(&b.Status, field.NewPath("status"))
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Min Available", "string", "The minimum number of pods that must be available.", 0),
			api.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable.", 0),
			api.Column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time.", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(b *policyv1.PodDisruptionBudget, now time.Time) []any {
			return []any{b.Name, amountCell(b.Spec.MinAvailable), amountCell(b.Spec.MaxUnavailable),
				int64(b.Status.DisruptionsAllowed), api.Age(b.CreationTimestamp, now)}
		}),
	}
}

func amountCell(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

// stripLegacyLabel keeps the label that stands for a whole v1beta1 selector from being
// combined with anything else.
func stripLegacyLabel(s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	none := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: legacyLabel, Operator: metav1.LabelSelectorOpExists}}}
	all := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: legacyLabel, Operator: metav1.LabelSelectorOpDoesNotExist}}}
	if equality.Semantic.DeepEqual(s, none) || equality.Semantic.DeepEqual(s, all) {
		return
	}
	delete(s.MatchLabels, legacyLabel)
	s.MatchExpressions = slices.DeleteFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == legacyLabel })
}

func validateSpec(s, old *policyv1.PodDisruptionBudgetSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(p, *s, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, validateAmount(s.MinAvailable, p.Child("minAvailable"))...)
	errs = append(errs, validateAmount(s.MaxUnavailable, p.Child("maxUnavailable"))...)
	opts := metav1validation.LabelSelectorValidationOptions{
		AllowInvalidLabelValueInSelector: old != nil && len(metav1validation.ValidateLabelSelector(old.Selector, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0}
	errs = append(errs, metav1validation.ValidateLabelSelector(s.Selector, opts, p.Child("selector"))...)
	if u := s.UnhealthyPodEvictionPolicy; u != nil {
		valid := []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}
		if !slices.Contains(valid, *u) {
			errs = append(errs, field.NotSupported(p.Child("unhealthyPodEvictionPolicy"), *u, valid))
		}
	}
	return errs
}

func validateAmount(v *intstr.IntOrString, p *field.Path) field.ErrorList {
	switch {
	case v == nil:
		return nil
	case v.Type == intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), p)
	case v.Type != intstr.String:
		return field.ErrorList{field.Invalid(p, *v, "must be an integer or percentage (e.g '5%%')")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsValidPercent(v.StrVal) {
		errs = append(errs, field.Invalid(p, *v, msg))
	}
	if n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%")); err == nil && len(errs) == 0 && n > 100 {
		errs = append(errs, field.Invalid(p, *v, "must not be greater than 100%"))
	}
	return errs
}

func validateStatus(s *policyv1.PodDisruptionBudgetStatus, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateConditions(s.Conditions, p.Child("conditions"))
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.DisruptionsAllowed), p.Child("disruptionsAllowed"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.CurrentHealthy), p.Child("currentHealthy"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.DesiredHealthy), p.Child("desiredHealthy"))...)
	return append(errs, apivalidation.ValidateNonnegativeField(int64(s.ExpectedPods), p.Child("expectedPods"))...)
}
