package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is what spec.podFailurePolicy makes of a failed pod.
type verdict struct {
	action  batchv1.PodFailurePolicyAction // "" when no rule matches
	message string                         // of FailJob
}

// counts reports whether the failure counts towards the limits.
func (v verdict) counts() bool { return v.action != batchv1.PodFailurePolicyActionIgnore }

// judge applies the first rule that matches.
func judge(policy *batchv1.PodFailurePolicy, p *corev1.Pod) verdict {
	if policy == nil {
		return verdict{}
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		switch {
		case r.OnExitCodes != nil:
			if s := exited(p, r.OnExitCodes); s != nil {
				return verdict{r.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d",
					s.Name, p.Namespace, p.Name, s.State.Terminated.ExitCode, r.Action, i)}
			}
		case r.OnPodConditions != nil:
			if c := conditioned(p, r.OnPodConditions); c != nil {
				return verdict{r.Action, fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d", p.Namespace, p.Name, c.Type, r.Action, i)}
			}
		}
	}
	return verdict{}
}

func exited(p *corev1.Pod, req *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			s := &list[i]
			t := s.State.Terminated
			if t == nil || t.ExitCode == 0 || req.ContainerName != nil && *req.ContainerName != s.Name {
				continue
			}
			in := slices.Contains(req.Values, t.ExitCode)
			if in && req.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn || !in && req.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn {
				return s
			}
		}
	}
	return nil
}

func conditioned(p *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		for _, want := range patterns {
			if c.Type == want.Type && c.Status == want.Status {
				return c
			}
		}
	}
	return nil
}

// succeededEnough applies spec.successPolicy and returns the index of the rule that holds, or -1.
func succeededEnough(policy *batchv1.SuccessPolicy, done indexes, completions int) int {
	if policy == nil || len(done) == 0 {
		return -1
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		got, all := done.total(), -1
		if r.SucceededIndexes != nil {
			wanted := parseIndexes(*r.SucceededIndexes, completions)
			if len(wanted) == 0 {
				continue
			}
			got, all = done.overlap(wanted), wanted.total()
		}
		if got == all || r.SucceededCount != nil && got >= int(*r.SucceededCount) {
			return i
		}
	}
	return -1
}
