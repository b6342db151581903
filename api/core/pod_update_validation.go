package core

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// validatePodUpdate keeps the spec as it is, but for images, a shorter deadline,
// added tolerations, removed scheduling gates and, while gated, narrower node
// selection.
func validatePodUpdate(p, old *v1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodAndSpec(p, old)
	errs = append(errs, validatePodAnnotationUpdate(p, old)...)
	for _, c := range []struct {
		now, before []v1.Container
		p           *field.Path
	}{
		{p.Spec.Containers, old.Spec.Containers, spec.Child("containers")},
		{p.Spec.InitContainers, old.Spec.InitContainers, spec.Child("initContainers")},
	} {
		if len(c.now) != len(c.before) {
			return append(errs, field.Forbidden(c.p, "pod updates may not add or remove containers"))
		}
	}
	deadline, bad := validateDeadlineChange(p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, spec.Child("activeDeadlineSeconds"))
	errs = append(errs, bad...)
	if !deadline {
		return errs
	}
	errs = append(errs, onlyAddedTolerations(p.Spec.Tolerations, old.Spec.Tolerations, spec.Child("tolerations"))...)
	errs = append(errs, onlyRemovedGates(p.Spec.SchedulingGates, old.Spec.SchedulingGates, spec.Child("schedulingGates"))...)
	if equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		return errs
	}
	// With the changes that were allowed taken back, nothing may differ.
	rest := p.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.SchedulingGates, rest.Tolerations = old.Spec.SchedulingGates, old.Spec.Tolerations
	if g := old.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 && rest.TerminationGracePeriodSeconds != nil && *rest.TerminationGracePeriodSeconds == 1 {
		rest.TerminationGracePeriodSeconds = g
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, takeBackNodeSelection(rest, &old.Spec, spec)...)
	}
	if !equality.Semantic.DeepEqual(*rest, old.Spec) {
		errs = append(errs, field.Forbidden(spec, fmt.Sprintf("pod updates may not change fields other than %s\n%v",
			strings.Join([]string{
				"`spec.containers[*].image`",
				"`spec.initContainers[*].image`",
				"`spec.activeDeadlineSeconds`",
				"`spec.tolerations` (only additions to existing tolerations)",
				"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
			}, ","), diff.Diff(api.Internal(old.Spec), api.Internal(*rest)))))
	}
	return errs
}

// validateDeadlineChange: a deadline can be set and brought forward. ok is false
// when further checks make no sense.
func validateDeadlineChange(now, before *int64, p *field.Path) (ok bool, errs field.ErrorList) {
	switch {
	case now == nil && before == nil:
		return true, nil
	case now == nil:
		return true, field.ErrorList{field.Invalid(p, now, "must not update from a positive integer to nil value")}
	case *now < 0 || *now > math.MaxInt32:
		return false, field.ErrorList{field.Invalid(p, *now, validation.InclusiveRangeError(0, math.MaxInt32))}
	case before != nil && *before < *now:
		return false, field.ErrorList{field.Invalid(p, *now, "must be less than or equal to previous value")}
	}
	return true, nil
}

func onlyAddedTolerations(now, before []v1.Toleration, p *field.Path) field.ErrorList {
	for _, old := range before {
		kept := slices.ContainsFunc(now, func(t v1.Toleration) bool {
			old.TolerationSeconds = t.TolerationSeconds // may change
			return t == old
		})
		if !kept {
			return field.ErrorList{field.Forbidden(p, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

func onlyRemovedGates(now, before []v1.PodSchedulingGate, p *field.Path) field.ErrorList {
	known := sets.New[string]()
	for _, g := range before {
		known.Insert(g.Name)
	}
	var errs field.ErrorList
	for i, g := range now {
		if !known.Has(g.Name) {
			errs = append(errs, field.Forbidden(p.Index(i).Child("name"), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// takeBackNodeSelection checks that node selection became narrower only, and sets
// it to the old one.
func takeBackNodeSelection(rest, old *v1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !maps.Equal(rest.NodeSelector, old.NodeSelector) {
		for key, value := range old.NodeSelector {
			if now, has := rest.NodeSelector[key]; !has || now != value {
				errs = append(errs, field.Invalid(p.Child("nodeSelector"), rest.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
				break
			}
		}
		rest.NodeSelector = old.NodeSelector
	}
	nodeAffinity := func(s *v1.PodSpec) *v1.NodeAffinity {
		if s.Affinity == nil {
			return nil
		}
		return s.Affinity.NodeAffinity
	}
	now, before := nodeAffinity(rest), nodeAffinity(old)
	if equality.Semantic.DeepEqual(now, before) {
		return errs
	}
	errs = append(errs, validateNodeAffinityChange(now, before, p.Child("affinity", "nodeAffinity"))...)
	switch {
	case rest.Affinity == nil:
		rest.Affinity = &v1.Affinity{NodeAffinity: before}
	case old.Affinity == nil && rest.Affinity.PodAffinity == nil && rest.Affinity.PodAntiAffinity == nil:
		rest.Affinity = nil
	default:
		rest.Affinity.NodeAffinity = before
	}
	return errs
}

func validateNodeAffinityChange(now, before *v1.NodeAffinity, p *field.Path) field.ErrorList {
	if before == nil || before.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil // any requirement narrows
	}
	terms := before.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	p = p.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(terms) == 0 {
		return nil
	}
	var left []v1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		left = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(left) != len(terms) {
		return field.ErrorList{field.Invalid(p, left, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range terms {
		if !extendsTerm(&left[i], &terms[i]) {
			errs = append(errs, field.Invalid(p.Index(i), left[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// extendsTerm tells whether the term begins with all of the old one, which must
// not have matched nothing.
func extendsTerm(now, before *v1.NodeSelectorTerm) bool {
	if len(before.MatchExpressions) == 0 && len(before.MatchFields) == 0 {
		return len(now.MatchExpressions) == 0 && len(now.MatchFields) == 0
	}
	n, m := len(before.MatchExpressions), len(before.MatchFields)
	return len(now.MatchExpressions) >= n && equality.Semantic.DeepEqual(now.MatchExpressions[:n], before.MatchExpressions) &&
		len(now.MatchFields) >= m && equality.Semantic.DeepEqual(now.MatchFields[:m], before.MatchFields)
}

func validatePodAnnotationUpdate(p, old *v1.Pod) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("metadata", "annotations")
	guarded := func(key string) (what string, is bool) {
		if strings.HasPrefix(key, appArmorAnnotationPrefix) {
			return "AppArmor annotations", true
		}
		return "mirror pod annotation", key == v1.MirrorPodAnnotationKey
	}
	for _, key := range sortedKeys(old.Annotations) {
		if now, has := p.Annotations[key]; has && now == old.Annotations[key] {
			continue
		}
		if what, is := guarded(key); is {
			errs = append(errs, field.Forbidden(at.Key(key), "may not remove or update "+what))
		}
	}
	for _, key := range sortedKeys(p.Annotations) {
		if _, had := old.Annotations[key]; had {
			continue
		}
		if what, is := guarded(key); is {
			errs = append(errs, field.Forbidden(at.Key(key), "may not add "+what))
		}
	}
	return errs
}

func validateEphemeralContainersUpdate(p, old *v1.Pod) field.ErrorList {
	if isMirror(old.Annotations) {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	errs := validatePodAndSpec(p, old)
	errs = append(errs, validatePodAnnotationUpdate(p, old)...)
	at := field.NewPath("spec", "ephemeralContainers")
	for _, before := range old.Spec.EphemeralContainers {
		i := slices.IndexFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == before.Name })
		if i < 0 {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", before.Name)))
		} else if now := p.Spec.EphemeralContainers[i]; !equality.Semantic.DeepEqual(before, now) {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", before.Name, diff.Diff(api.Internal(before), api.Internal(now)))))
		}
	}
	return errs
}
