package podfit

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// MatchesNode tells whether the node has what the pod's nodeSelector and
// required node affinity ask for.
func MatchesNode(spec *v1.PodSpec, node *v1.Node) bool {
	for key, value := range spec.NodeSelector {
		if got, has := node.Labels[key]; !has || got != value {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return MatchesSelector(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, node)
}

// MatchesSelector tells whether one of the selector's terms matches the node.
func MatchesSelector(s *v1.NodeSelector, node *v1.Node) bool {
	for i := range s.NodeSelectorTerms {
		if MatchesTerm(&s.NodeSelectorTerms[i], node) {
			return true
		}
	}
	return false
}

// MatchesTerm tells whether all requirements of the term hold for the node. An
// empty term matches nothing, and so does one that does not parse.
func MatchesTerm(t *v1.NodeSelectorTerm, node *v1.Node) bool {
	if len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0 {
		return false
	}
	for i := range t.MatchExpressions {
		if !matchesLabel(&t.MatchExpressions[i], node) {
			return false
		}
	}
	for i := range t.MatchFields {
		if !matchesField(&t.MatchFields[i], node) {
			return false
		}
	}
	return true
}

// PreferredWeight sums the weights of the preferred terms that the node matches.
func PreferredWeight(terms []v1.PreferredSchedulingTerm, node *v1.Node) int64 {
	var sum int64
	for i := range terms {
		if MatchesTerm(&terms[i].Preference, node) {
			sum += int64(terms[i].Weight)
		}
	}
	return sum
}

func matchesLabel(r *v1.NodeSelectorRequirement, node *v1.Node) bool {
	value, has := node.Labels[r.Key]
	switch r.Operator {
	case v1.NodeSelectorOpIn:
		return has && slices.Contains(r.Values, value)
	case v1.NodeSelectorOpNotIn:
		return len(r.Values) > 0 && (!has || !slices.Contains(r.Values, value))
	case v1.NodeSelectorOpExists:
		return has && len(r.Values) == 0
	case v1.NodeSelectorOpDoesNotExist:
		return !has && len(r.Values) == 0
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		if !has || len(r.Values) != 1 || len(content.IsDecimalInteger(r.Values[0])) > 0 {
			return false
		}
		have, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return false
		}
		bound, err := strconv.ParseInt(r.Values[0], 10, 64)
		if err != nil {
			return false
		}
		if r.Operator == v1.NodeSelectorOpGt {
			return have > bound
		}
		return have < bound
	}
	return false
}

// matchesField knows the one field that node selectors may name.
func matchesField(r *v1.NodeSelectorRequirement, node *v1.Node) bool {
	if len(r.Values) != 1 {
		return false
	}
	value := ""
	if r.Key == "metadata.name" {
		value = node.Name
	}
	switch r.Operator {
	case v1.NodeSelectorOpIn:
		return value == r.Values[0]
	case v1.NodeSelectorOpNotIn:
		return value != r.Values[0]
	}
	return false
}
