package podfit

import v1 "k8s.io/api/core/v1"

// Tolerates tells whether the toleration accepts the taint. An empty key with
// Exists accepts every key, an empty effect every effect, an empty operator means
// Equal. The numeric operators belong to a gate that is off, and accept nothing.
func Tolerates(t *v1.Toleration, taint *v1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", v1.TolerationOpEqual:
		return t.Value == taint.Value
	case v1.TolerationOpExists:
		return true
	}
	return false
}

// Tolerated tells whether one of the tolerations accepts the taint.
func Tolerated(tolerations []v1.Toleration, taint *v1.Taint) bool {
	for i := range tolerations {
		if Tolerates(&tolerations[i], taint) {
			return true
		}
	}
	return false
}

// Untolerated returns the first taint with one of the effects that the
// tolerations do not accept, or nil. No effects means any.
func Untolerated(taints []v1.Taint, tolerations []v1.Toleration, effects ...v1.TaintEffect) *v1.Taint {
	for i := range taints {
		if hasEffect(&taints[i], effects) && !Tolerated(tolerations, &taints[i]) {
			return &taints[i]
		}
	}
	return nil
}

func hasEffect(taint *v1.Taint, effects []v1.TaintEffect) bool {
	for _, e := range effects {
		if taint.Effect == e {
			return true
		}
	}
	return len(effects) == 0
}
