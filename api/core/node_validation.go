package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func validateNode(n *v1.Node) field.ErrorList {
	errs := validateNodeTaints(n)
	errs = append(errs, validateNodeResources(n)...)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil {
		errs = append(errs, positive(*swap.Capacity, field.NewPath("metadata", "nodeSwapStatus", "capacity"))...)
	}
	errs = append(errs, validateDeclaredFeatures(n.Status.DeclaredFeatures)...)
	if len(n.Spec.PodCIDRs) == 0 {
		return errs
	}
	p := field.NewPath("spec", "podCIDRs")
	for i, cidr := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(p.Index(i), cidr, true, nil)...)
	}
	if len(n.Spec.PodCIDRs) > 1 {
		dual, err := netutils.IsDualStackCIDRStrings(n.Spec.PodCIDRs)
		if err != nil {
			errs = append(errs, field.InternalError(p, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err)))
		}
		if !dual || len(n.Spec.PodCIDRs) > 2 {
			errs = append(errs, field.Invalid(p, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
		}
	}
	return errs
}

func validateNodeTaints(n *v1.Node) field.ErrorList {
	// Upstream reports them under metadata.
	return validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))
}

func validateNodeResources(n *v1.Node) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedKeys(n.Status.Capacity) {
		errs = append(errs, quantity(name, n.Status.Capacity[name], field.NewPath("status", "capacity", string(name)))...)
	}
	for _, name := range sortedKeys(n.Status.Allocatable) {
		errs = append(errs, quantity(name, n.Status.Allocatable[name], field.NewPath("status", "allocatable", string(name)))...)
	}
	return errs
}

func validateNodeUpdate(n, old *v1.Node) field.ErrorList {
	errs := validateDeclaredFeatures(n.Status.DeclaredFeatures)
	seen := map[v1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		seen[a] = true
	}
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "podCIDRs"), `node updates may not change podCIDR except from "" to valid`))
	}
	if provider := field.NewPath("spec", "providerID"); old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		if n.Spec.ProviderID == "" {
			errs = append(errs, field.Invalid(provider, nil, "field cannot be cleared once set"))
		} else {
			errs = append(errs, field.Invalid(provider, nil, "field cannot be modified once set"))
		}
	}
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "externalID"), "may not be updated"))
	}
	return errs
}

func validateTaints(taints []v1.Taint, p *field.Path) field.ErrorList {
	type keyEffect struct {
		key    string
		effect v1.TaintEffect
	}
	var errs field.ErrorList
	seen := map[keyEffect]bool{}
	for i, t := range taints {
		p := p.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, p.Child("key"))...)
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			errs = append(errs, field.Invalid(p.Child("value"), t.Value, strings.Join(msgs, ";")))
		}
		errs = append(errs, oneOfAsListed(t.Effect, p.Child("effect"), taintEffects()...)...)
		id := keyEffect{t.Key, t.Effect}
		if seen[id] {
			twice := field.Duplicate(p, t)
			twice.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, twice)
		}
		seen[id] = true
	}
	return errs
}

func taintEffects() []v1.TaintEffect {
	return []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}
}

// Compiled on first use: most servers never see a node with declared features.
var featureName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)
})

func validateDeclaredFeatures(names []string) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("status", "declaredFeatures")
	for i, name := range names {
		if len(name) > validation.DNS1123SubdomainMaxLength {
			errs = append(errs, field.Invalid(p.Index(i), name, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", name, validation.DNS1123SubdomainMaxLength)))
		} else if !featureName().MatchString(name) {
			errs = append(errs, field.Invalid(p.Index(i), name, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", name)))
		}
		if i == 0 {
			continue
		}
		if names[i-1] == name {
			errs = append(errs, field.Duplicate(p.Index(i), name))
		} else if names[i-1] > name {
			errs = append(errs, field.Invalid(p.Index(i), name, "list must be sorted alphabetically"))
		}
	}
	return errs
}
