package cri

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/dump"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Labels and annotations are upstream's, so that a node can change kubelets
// without restarting containers.
const (
	PodNameLabel       = kubelettypes.KubernetesPodNameLabel
	PodNamespaceLabel  = kubelettypes.KubernetesPodNamespaceLabel
	PodUIDLabel        = kubelettypes.KubernetesPodUIDLabel
	ContainerNameLabel = kubelettypes.KubernetesContainerNameLabel

	// OwnerLabel tells kubelets that share a runtime apart.
	OwnerLabel = "skiff.dev/owner"

	hashAnnotation                     = "io.kubernetes.container.hash"
	restartCountAnnotation             = "io.kubernetes.container.restartCount"
	terminationMessagePathAnnotation   = "io.kubernetes.container.terminationMessagePath"
	terminationMessagePolicyAnnotation = "io.kubernetes.container.terminationMessagePolicy"
	preStopHandlerAnnotation           = "io.kubernetes.container.preStopHandler"
	portsAnnotation                    = "io.kubernetes.container.ports"
	deletionGraceAnnotation            = "io.kubernetes.pod.deletionGracePeriod"
	terminationGraceAnnotation         = "io.kubernetes.pod.terminationGracePeriod"
)

// PodLabels are the labels of a pod's sandbox: its own and its identity.
func PodLabels(pod *corev1.Pod) map[string]string {
	out := make(map[string]string, len(pod.Labels)+3)
	for k, v := range pod.Labels {
		out[k] = v
	}
	out[PodNameLabel] = pod.Name
	out[PodNamespaceLabel] = pod.Namespace
	out[PodUIDLabel] = string(pod.UID)
	delete(out, OwnerLabel) // not for users to say
	return out
}

// Own marks the labels of a sandbox or container as this kubelet's.
func (c *Client) Own(labels map[string]string) {
	if c.cfg.Owner != "" {
		labels[OwnerLabel] = c.cfg.Owner
	}
}

// Owns tells whether labels are those of something that this kubelet made, or one that
// it takes over from.
func (c *Client) Owns(labels map[string]string) bool {
	return labels[PodUIDLabel] != "" && labels[OwnerLabel] == c.cfg.Owner
}

// ContainerLabels identify a container of a pod.
func ContainerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		PodNameLabel:       pod.Name,
		PodNamespaceLabel:  pod.Namespace,
		PodUIDLabel:        string(pod.UID),
		ContainerNameLabel: c.Name,
	}
}

// ContainerAnnotations carry what a later kubelet must know of a container when
// the pod object is gone: its hash, restart count and how to end it.
func ContainerAnnotations(pod *corev1.Pod, c *corev1.Container, restartCount int) map[string]string {
	out := map[string]string{
		hashAnnotation:                     strconv.FormatUint(HashContainer(c), 16),
		restartCountAnnotation:             strconv.Itoa(restartCount),
		terminationMessagePathAnnotation:   c.TerminationMessagePath,
		terminationMessagePolicyAnnotation: string(c.TerminationMessagePolicy),
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		out[deletionGraceAnnotation] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		out[terminationGraceAnnotation] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if raw, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			out[preStopHandlerAnnotation] = string(raw)
		}
	}
	if len(c.Ports) > 0 {
		if raw, err := json.Marshal(c.Ports); err == nil {
			out[portsAnnotation] = string(raw)
		}
	}
	return out
}

// HashContainer is upstream's hash of what makes a running container differ from
// its spec: the name and the image, the only mutable part.
func HashContainer(c *corev1.Container) uint64 {
	raw, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(raw))
	return uint64(h.Sum32())
}

// OrphanSpec rebuilds as much of a pod and one of its containers as ending it
// takes, from the container's own annotations.
func OrphanSpec(c *Container) (grace *int64, spec corev1.Container) {
	spec = corev1.Container{Name: c.Name, TerminationMessagePath: c.Annotations[terminationMessagePathAnnotation]}
	for _, key := range []string{deletionGraceAnnotation, terminationGraceAnnotation} {
		if n, err := strconv.ParseInt(c.Annotations[key], 10, 64); err == nil {
			grace = &n
			break
		}
	}
	if raw := c.Annotations[preStopHandlerAnnotation]; raw != "" {
		var h corev1.LifecycleHandler
		if json.Unmarshal([]byte(raw), &h) == nil {
			spec.Lifecycle = &corev1.Lifecycle{PreStop: &h}
		}
	}
	if raw := c.Annotations[portsAnnotation]; raw != "" {
		var ports []corev1.ContainerPort
		if json.Unmarshal([]byte(raw), &ports) == nil {
			spec.Ports = ports
		}
	}
	return grace, spec
}
