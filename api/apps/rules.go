package apps

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/core"
)

// Rules that several workload kinds share.

func setDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

func nonNegative(n int64, p *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(n, p)
}

// notDecremented keeps collision counts growing: they make names of children unique.
func notDecremented(now, before *int32, p *field.Path) field.ErrorList {
	if before == nil || now != nil && *now >= *before {
		return nil
	}
	return field.ErrorList{field.Invalid(p, ptr.Deref(now, 0), "cannot be decremented")}
}

// intOrPercent wants a number of pods, or a percentage of them.
func intOrPercent(v intstr.IntOrString, p *field.Path) field.ErrorList {
	switch v.Type {
	case intstr.Int:
		return nonNegative(int64(v.IntVal), p)
	case intstr.String:
		var errs field.ErrorList
		for _, msg := range validation.IsValidPercent(v.StrVal) {
			errs = append(errs, field.Invalid(p, v, msg))
		}
		return errs
	}
	return field.ErrorList{field.Invalid(p, v, "must be an integer or percentage (e.g '5%%')")}
}

func percent(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(v.StrVal[:len(v.StrVal)-1])
	return n, err == nil
}

// amount is the number in v whether it counts pods or percent.
func amount(v intstr.IntOrString) int {
	if n, ok := percent(v); ok {
		return n
	}
	return v.IntValue()
}

func atMost100Percent(v intstr.IntOrString, p *field.Path) field.ErrorList {
	if n, ok := percent(v); ok && n > 100 {
		return field.ErrorList{field.Invalid(p, v, "must not be greater than 100%")}
	}
	return nil
}

// requireSelector validates a workload's selector, which must select something.
// The selector returned is nil when it can't be used.
func requireSelector(s *metav1.LabelSelector, p *field.Path, empty, invalid string) (labels.Selector, field.ErrorList) {
	var errs field.ErrorList
	if s == nil {
		errs = append(errs, field.Required(p, ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, p)...)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(p, s, empty))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, append(errs, field.Invalid(p, s, invalid))
	}
	return selector, errs
}

func selectorMatches(selector labels.Selector, t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	if !selector.Empty() && !selector.Matches(labels.Set(t.Labels)) {
		return field.ErrorList{field.Invalid(p.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")}
	}
	return nil
}

// alwaysRestarted refuses what makes no sense in a pod that is replaced whenever it ends.
func alwaysRestarted(t *corev1.PodTemplateSpec, kind string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(p.Child("spec", "restartPolicy"), t.Spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(p.Child("spec", "activeDeadlineSeconds"),
			"activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

// validateReplicatedTemplate holds for Deployments and ReplicaSets. old may be nil.
func validateReplicatedTemplate(t, old *corev1.PodTemplateSpec, selector labels.Selector, p *field.Path) field.ErrorList {
	errs := selectorMatches(selector, t, p)
	errs = append(errs, core.ValidatePodTemplateUpdate(t, old, p)...)
	return append(errs, alwaysRestarted(t, "ReplicaSet", p)...)
}

func templatePath() *field.Path { return field.NewPath("spec", "template") }

// podNameWarnings tell when a workload's name makes pod names that are no DNS labels.
func podNameWarnings(name string) []string {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
	}
	return nil
}

// selectorString is how autoscaling/v1 Scale shows a selector; empty if it is invalid.
func selectorString(s *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return ""
	}
	return selector.String()
}
