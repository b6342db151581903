package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// Restart of all containers in place (KEP-5532): when a container ends with an exit
// code for which a rule says so, all containers of the pod are ended and removed,
// and the pod begins anew in its sandbox. The one that set it off is removed last:
// until then every look at the pod comes to the same conclusion.

const (
	restartingAll        = "RestartingAllContainers"
	restartingAllMessage = "The container is removed because RestartAllContainers in place"
)

// setsOffRestart tells whether the exit code of a container has all restarted.
func setsOffRestart(c *corev1.Container, code int32) bool {
	r := matchingRule(c, code)
	return r != nil && r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// matchingRule is the first of a container's restart rules that covers an exit code.
func matchingRule(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		in := false
		for _, v := range r.ExitCodes.Values {
			in = in || v == code
		}
		if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return r
		}
	}
	return nil
}

// mayRestartAll tells whether a pod has such a rule at all.
func mayRestartAll(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for j := range list[i].RestartPolicyRules {
				if list[i].RestartPolicyRules[j].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// toReset are the containers to end and remove, in order; none: nothing set off a
// restart.
func toReset(pod *corev1.Pod, rt *cri.Pod) []*cri.Container {
	if pod.DeletionTimestamp != nil || !mayRestartAll(pod) {
		return nil
	}
	var sources, others []*cri.Container
	collect := func(list []corev1.Container) {
		for i := range list {
			for _, run := range rt.Containers {
				if run.Name != list[i].Name {
					continue
				}
				if run.State == cri.StateExited && setsOffRestart(&list[i], run.ExitCode) {
					sources = append(sources, run)
				} else {
					others = append(others, run)
				}
			}
		}
	}
	collect(pod.Spec.Containers)
	collect(pod.Spec.InitContainers)
	if len(sources) == 0 {
		return nil
	}
	return append(others, sources...)
}
