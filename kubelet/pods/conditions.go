package pods

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// ownCondition tells whether the kubelet alone writes a pod condition.
func ownCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	}
	return false
}

// conditions adds those of the kubelet, keeping the time of what did not change.
func conditions(in statusInput, s *corev1.PodStatus, all []corev1.ContainerStatus) {
	pod := in.Pod
	add := func(t corev1.PodConditionType, ok bool, reason, message string) {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(in.Now)}
		if ok {
			c.Status = corev1.ConditionTrue
		}
		for _, list := range [][]corev1.PodCondition{in.Old.Conditions, pod.Status.Conditions} {
			if o := condition(list, t); o != nil {
				if o.Status == c.Status {
					c.LastTransitionTime = o.LastTransitionTime
				}
				break
			}
		}
		s.Conditions = append(s.Conditions, c)
	}

	changed, _, _, why := sandboxChanged(pod, in.Runtime)
	if changed {
		add(corev1.PodReadyToStartContainers, false, "PodSandboxNotReady", why)
	} else {
		add(corev1.PodReadyToStartContainers, true, "", "")
	}
	ok, reason, message := initialized(in, all, s.Phase)
	add(corev1.PodInitialized, ok, reason, message)
	ok, reason, message = containersReady(pod, all, s.Phase)
	gateOK, gateReason, gateMessage := ok, reason, message
	if ok {
		gateOK, gateReason, gateMessage = readinessGates(pod, s.Conditions)
	}
	add(corev1.PodReady, gateOK, gateReason, gateMessage)
	add(corev1.ContainersReady, ok, reason, message)
	add(corev1.PodScheduled, true, "", "")
	if mayRestartAll(pod) {
		switch {
		case s.Phase == corev1.PodSucceeded:
			add(corev1.AllContainersRestarting, false, "PodCompleted", "")
		case s.Phase == corev1.PodFailed:
			add(corev1.AllContainersRestarting, false, "PodFailed", "")
		case len(toReset(pod, in.Runtime)) > 0:
			add(corev1.AllContainersRestarting, true, "RestartAllContainersStarted", "container exited with restart policy rule")
		default:
			add(corev1.AllContainersRestarting, false, "", "")
		}
	}
}

func condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func find(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

func initialized(in statusInput, all []corev1.ContainerStatus, phase corev1.PodPhase) (bool, string, string) {
	pod := in.Pod
	var unknown, incomplete []string
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		st := find(all, c.Name)
		switch {
		case st == nil:
			unknown = append(unknown, c.Name)
		case podfit.Restartable(c) && (st.Started == nil || !*st.Started), !podfit.Restartable(c) && !st.Ready:
			incomplete = append(incomplete, c.Name)
		}
	}
	if phase == corev1.PodSucceeded && len(unknown) == 0 {
		return true, "PodCompleted", ""
	}
	// Sidecars that restart don't undo initialisation.
	for i := range pod.Spec.Containers {
		if st := find(all, pod.Spec.Containers[i].Name); st != nil &&
			(st.State.Running != nil || st.State.Terminated != nil || st.LastTerminationState.Terminated != nil) {
			return true, "", ""
		}
	}
	if in.restarting {
		if c := condition(in.Old.Conditions, corev1.PodInitialized); c != nil && c.Status == corev1.ConditionTrue {
			return true, "", "" // once initialised, always so
		}
	}
	if msg := names("unknown", unknown, "incomplete", incomplete); msg != "" {
		return false, "ContainersNotInitialized", msg
	}
	return true, "", ""
}

func containersReady(pod *corev1.Pod, all []corev1.ContainerStatus, phase corev1.PodPhase) (bool, string, string) {
	var unknown, unready []string
	check := func(c *corev1.Container) {
		switch st := find(all, c.Name); {
		case st == nil:
			unknown = append(unknown, c.Name)
		case !st.Ready:
			unready = append(unready, c.Name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podfit.Restartable(c) {
			check(c)
		}
	}
	for i := range pod.Spec.Containers {
		check(&pod.Spec.Containers[i])
	}
	switch {
	case phase == corev1.PodSucceeded && len(unknown) == 0:
		return false, "PodCompleted", ""
	case phase == corev1.PodFailed:
		return false, "PodFailed", ""
	}
	if msg := names("unknown", unknown, "unready", unready); msg != "" {
		return false, "ContainersNotReady", msg
	}
	return true, "", ""
}

func readinessGates(pod *corev1.Pod, conds []corev1.PodCondition) (bool, string, string) {
	var msgs []string
	for _, g := range pod.Spec.ReadinessGates {
		c := condition(conds, g.ConditionType)
		switch {
		case c == nil:
			msgs = append(msgs, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType))
		case c.Status != corev1.ConditionTrue:
			msgs = append(msgs, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType, c.Status))
		}
	}
	if len(msgs) > 0 {
		return false, "ReadinessGatesNotReady", strings.Join(msgs, ", ")
	}
	return true, "", ""
}

func names(kindA string, a []string, kindB string, b []string) string {
	var out []string
	if len(a) > 0 {
		out = append(out, fmt.Sprintf("containers with %s status: %s", kindA, a))
	}
	if len(b) > 0 {
		out = append(out, fmt.Sprintf("containers with %s status: %s", kindB, b))
	}
	return strings.Join(out, ", ")
}
