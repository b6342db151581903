package core

import (
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podChecker) checkAffinity(p *field.Path) field.ErrorList {
	a := c.spec.Affinity
	if a == nil {
		return nil
	}
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		p := p.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			errs = append(errs, validateNodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, p.Child(required), c.lax.nodeAffinityValues)...)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			t, p := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], p.Child(preferred).Index(i)
			errs = append(errs, affinityWeight(t.Weight, p)...)
			// Bad values never were refused here: the node may match without them.
			errs = append(errs, validateNodeSelectorTerm(&t.Preference, p.Child("preference"), true)...)
		}
	}
	pods := func(req []v1.PodAffinityTerm, pref []v1.WeightedPodAffinityTerm, p *field.Path) {
		for i := range req {
			errs = append(errs, c.checkPodAffinityTerm(&req[i], p.Child(required).Index(i))...)
		}
		for i := range pref {
			p := p.Child(preferred).Index(i)
			errs = append(errs, affinityWeight(pref[i].Weight, p)...)
			errs = append(errs, c.checkPodAffinityTerm(&pref[i].PodAffinityTerm, p.Child("podAffinityTerm"))...)
		}
	}
	if pa := a.PodAffinity; pa != nil {
		pods(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAffinity"))
	}
	if pa := a.PodAntiAffinity; pa != nil {
		pods(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAntiAffinity"))
	}
	return errs
}

func affinityWeight(weight int32, p *field.Path) field.ErrorList {
	if weight < 1 || weight > 100 {
		return field.ErrorList{field.Invalid(p.Child("weight"), weight, "must be in the range 1-100")}
	}
	return nil
}

func (c *podChecker) checkPodAffinityTerm(t *v1.PodAffinityTerm, p *field.Path) field.ErrorList {
	o := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: c.lax.selectorValues}
	errs := metav1validation.ValidateLabelSelector(t.LabelSelector, o, p.Child("labelSelector"))
	errs = append(errs, metav1validation.ValidateLabelSelector(t.NamespaceSelector, o, p.Child("namespaceSelector"))...)
	for _, name := range t.Namespaces {
		errs = append(errs, invalid(p.Child("namespace"), name, apivalidation.ValidateNamespaceName(name, false))...)
	}
	errs = append(errs, validateLabelKeys(t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector, p)...)
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(p.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, metav1validation.ValidateLabelName(t.TopologyKey, p.Child("topologyKey"))...)
}

// validateLabelKeys checks keys whose values are taken from the pod. The selector
// holds them already, so that a key of the user's own shows as a second one.
func validateLabelKeys(match, mismatch []string, s *metav1.LabelSelector, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := func(keys []string, p *field.Path) {
		if len(keys) > 0 && s == nil {
			errs = append(errs, field.Forbidden(p, "must not be specified when labelSelector is not set"))
			return
		}
		for i, key := range keys {
			errs = append(errs, metav1validation.ValidateLabelName(key, p.Index(i))...)
		}
	}
	names(match, p.Child("matchLabelKeys"))
	names(mismatch, p.Child("mismatchLabelKeys"))
	if s != nil {
		index := map[string]int{}
		for i, key := range match {
			index[key] = i
		}
		seen := sets.KeySet(s.MatchLabels)
		for _, e := range s.MatchExpressions {
			if i, is := index[e.Key]; is && seen.Has(e.Key) {
				errs = append(errs, field.Invalid(p.Index(i), e.Key, "exists in both matchLabelKeys and labelSelector"))
			}
			seen.Insert(e.Key)
		}
	}
	others := sets.New(mismatch...)
	for i, key := range match {
		if others.Has(key) {
			errs = append(errs, field.Invalid(p.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return errs
}

func (c *podChecker) checkTopologySpread(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	constraints := c.spec.TopologySpreadConstraints
	for i := range constraints {
		t, p := &constraints[i], p.Index(i)
		errs = append(errs, positive(int64(t.MaxSkew), p.Child("maxSkew"))...)
		if t.TopologyKey == "" {
			errs = append(errs, field.Required(p.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs, supported(t.WhenUnsatisfiable, p.Child("whenUnsatisfiable"), v1.DoNotSchedule, v1.ScheduleAnyway)...)
		for _, later := range constraints[i+1:] {
			if later.TopologyKey == t.TopologyKey && later.WhenUnsatisfiable == t.WhenUnsatisfiable {
				errs = append(errs, field.Duplicate(p.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", t.TopologyKey, t.WhenUnsatisfiable)))
				break
			}
		}
		if m := t.MinDomains; m != nil {
			p := p.Child("minDomains")
			errs = append(errs, positive(int64(*m), p)...)
			if t.WhenUnsatisfiable != v1.DoNotSchedule {
				errs = append(errs, field.Invalid(p, *m, fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", v1.DoNotSchedule, t.WhenUnsatisfiable)))
			}
		}
		for _, policy := range []struct {
			name  string
			value *v1.NodeInclusionPolicy
		}{{"nodeAffinityPolicy", t.NodeAffinityPolicy}, {"nodeTaintsPolicy", t.NodeTaintsPolicy}} {
			if policy.value != nil {
				errs = append(errs, supported(*policy.value, p.Child(policy.name), v1.NodeInclusionPolicyIgnore, v1.NodeInclusionPolicyHonor)...)
			}
		}
		if !c.lax.spreadLabelKeys {
			errs = append(errs, validateLabelKeys(t.MatchLabelKeys, nil, t.LabelSelector, p)...)
		}
		if !c.lax.spreadSelectors {
			errs = append(errs, metav1validation.ValidateLabelSelector(t.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, p.Child("labelSelector"))...)
		}
	}
	return errs
}

func validateSchedulingGates(gates []v1.PodSchedulingGate, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, g := range gates {
		errs = append(errs, qualifiedName(g.Name, p.Index(i))...)
		if seen.Has(g.Name) {
			errs = append(errs, field.Duplicate(p.Index(i), g.Name))
		}
		seen.Insert(g.Name)
	}
	return errs
}

func validateTolerations(tolerations []v1.Toleration, p *field.Path, numeric bool) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		p := p.Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, p.Child("key"))...)
		} else if t.Operator != v1.TolerationOpExists {
			errs = append(errs, field.Invalid(p.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case v1.TolerationOpEqual, "":
			if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
				errs = append(errs, field.Invalid(p.Child("operator"), t.Value, strings.Join(msgs, ";")))
			}
		case v1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(p.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
			}
		case v1.TolerationOpLt, v1.TolerationOpGt:
			if !numeric {
				errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator,
					[]v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists, v1.TolerationOpLt, v1.TolerationOpGt}))
				break
			}
			errs = append(errs, invalid(p.Child("value"), t.Value, content.IsDecimalInteger(t.Value))...)
			if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
				errs = append(errs, field.Invalid(p.Child("value"), t.Value, err.Error()))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator, []v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists}))
		}
		if t.Effect != "" {
			errs = append(errs, oneOfAsListed(t.Effect, p.Child("effect"), taintEffects()...)...)
		}
	}
	return errs
}
