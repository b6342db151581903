package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// phaseOf derives a pod's phase from its container statuses.
func phaseOf(pod *corev1.Pod, statuses []corev1.ContainerStatus, terminal, hasInitialized bool) corev1.PodPhase {
	byName := make(map[string]*corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		byName[statuses[i].Name] = &statuses[i]
	}
	var pendingInit, pendingSidecar, unknown, running, waiting, stopped, final, succeeded int
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		st := byName[c.Name]
		if podfit.Restartable(c) {
			switch {
			case st == nil:
				unknown++
			case st.State.Running != nil:
				if st.Started == nil || !*st.Started {
					pendingSidecar++
				}
				running++
			case st.State.Terminated != nil:
			case st.State.Waiting != nil:
				if st.LastTerminationState.Terminated == nil {
					pendingSidecar++
					waiting++
				}
			default:
				pendingSidecar++
				unknown++
			}
			continue
		}
		switch {
		case st == nil, st.State.Running != nil:
			pendingInit++
		case ended(st) != nil:
			if end := ended(st); end.ExitCode != 0 && end.Reason != restartingAll && !restartsAfter(pod, c, end.ExitCode) {
				return corev1.PodFailed
			}
		default:
			pendingInit++
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		st := byName[c.Name]
		switch {
		case st == nil:
			unknown++
		case st.State.Running != nil:
			running++
		case ended(st) != nil:
			stopped++
			if end := ended(st); end.Reason != restartingAll && !restartsAfter(pod, c, end.ExitCode) {
				final++
			}
			if st.State.Terminated != nil && st.State.Terminated.ExitCode == 0 {
				succeeded++
			}
		case st.State.Waiting != nil:
			waiting++
		default:
			unknown++
		}
	}
	switch {
	case pendingInit > 0, pendingSidecar > 0 && !hasInitialized, waiting > 0:
		return corev1.PodPending
	case running > 0 && unknown == 0:
		return corev1.PodRunning
	case running == 0 && stopped > 0 && unknown == 0:
		switch {
		case terminal && !isStatic(pod):
			if stopped == succeeded {
				return corev1.PodSucceeded
			}
			return corev1.PodFailed
		case stopped != final:
			return corev1.PodRunning // at least one is about to restart
		case stopped == succeeded:
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}

// ended is how the container last ended, if it does not run.
func ended(st *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case st.State.Terminated != nil:
		return st.State.Terminated
	case st.State.Waiting != nil:
		return st.LastTerminationState.Terminated
	}
	return nil
}
