package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// podEvent records an event of a pod.
func (m *Manager) podEvent(pod *corev1.Pod, kind, reason, message string) {
	m.record(pod, "", kind, reason, message)
}

// containerEvent records an event of one of its containers.
func (m *Manager) containerEvent(pod *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	m.record(pod, fieldPath(pod, c.Name), kind, reason, message)
}

func (m *Manager) record(pod *corev1.Pod, path, kind, reason, message string) {
	if pod.Annotations[orphanAnnotation] != "" || m.cfg.Recorder == nil {
		return
	}
	uid := pod.UID
	m.cfg.Recorder.Event(&corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: uid, ResourceVersion: pod.ResourceVersion, FieldPath: path,
	}, kind, reason, message)
}

func fieldPath(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return fmt.Sprintf("spec.containers{%s}", name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return fmt.Sprintf("spec.initContainers{%s}", name)
		}
	}
	return fmt.Sprintf("spec.ephemeralContainers{%s}", name)
}

// describe names a pod as upstream does in messages.
func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}
