package podfit

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// ShouldRestart tells whether a container that ended with the exit code is to be
// started again: by the first of its own rules that matches, else its own policy,
// else the pod's (KEP-5307).
func ShouldRestart(c *v1.Container, pod *v1.PodSpec, exitCode int32) bool {
	if c.RestartPolicy != nil {
		if RestartRule(c, exitCode) != nil {
			return true // both actions that rules have restart it
		}
		switch *c.RestartPolicy {
		case v1.ContainerRestartPolicyAlways:
			return true
		case v1.ContainerRestartPolicyOnFailure:
			return exitCode != 0
		case v1.ContainerRestartPolicyNever:
			return false
		}
	}
	switch pod.RestartPolicy {
	case v1.RestartPolicyOnFailure:
		return exitCode != 0
	case v1.RestartPolicyNever:
		return false
	}
	return true
}

// RestartRule is the container's first rule that matches the exit code, or nil.
func RestartRule(c *v1.Container, exitCode int32) *v1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(r.ExitCodes.Values, exitCode)
		if listed && r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn ||
			!listed && r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpNotIn {
			return r
		}
	}
	return nil
}

// MayRestartAll tells whether some container's end can restart all of the pod's.
func MayRestartAll(pod *v1.PodSpec) bool {
	for _, cs := range [][]v1.Container{pod.InitContainers, pod.Containers} {
		for i := range cs {
			for _, r := range cs[i].RestartPolicyRules {
				if r.Action == v1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}
