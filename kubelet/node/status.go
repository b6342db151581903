package node

import (
	"context"
	"fmt"
	"runtime"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxImages     = 50 // in the node's status
	maxImageNames = 5
	imagesEvery   = time.Minute
)

func (n *Node) version(ctx context.Context) (name, version string, err error) {
	resp, err := n.cfg.CRI.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", "", fmt.Errorf("ask the container runtime for its version: %w", err)
	}
	return resp.RuntimeName, resp.RuntimeVersion, nil
}

// status computes the node's status; what others own in old stays.
func (n *Node) status(ctx context.Context, old *corev1.NodeStatus) corev1.NodeStatus {
	s := *old.DeepCopy()
	n.takeShare()
	s.Capacity, s.Allocatable = n.Capacity().DeepCopy(), n.Allocatable().DeepCopy()
	// Extended resources are not ours.
	for k, v := range old.Capacity {
		if _, mine := s.Capacity[k]; !mine {
			s.Capacity[k] = v
		}
	}
	for k, v := range old.Allocatable {
		if _, mine := s.Allocatable[k]; !mine {
			s.Allocatable[k] = v
		}
	}
	s.Addresses = n.addresses(old.Addresses)
	s.DaemonEndpoints.KubeletEndpoint.Port = n.cfg.Port
	s.DeclaredFeatures = declaredFeatures

	n.mu.Lock()
	cond, runtimeErr := n.conditions, n.runtimeErr
	s.NodeInfo = n.info
	n.mu.Unlock()
	if runtimeErr == nil {
		s.Images = n.listImages(ctx, old.Images)
		s.RuntimeHandlers = nil
		for _, h := range cond.Handlers {
			f := corev1.NodeRuntimeHandler{Name: h.Name}
			if h.Features != nil {
				f.Features = &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &h.Features.RecursiveReadOnlyMounts, UserNamespaces: &h.Features.UserNamespaces}
			}
			s.RuntimeHandlers = append(s.RuntimeHandlers, f)
		}
		s.Features = nil
		if f := cond.Features; f != nil {
			s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &f.SupplementalGroupsPolicy}
		}
	}

	now := metav1.NewTime(time.Now().Truncate(time.Second))
	set := func(t corev1.NodeConditionType, is bool, reason, message string) {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if is {
			c.Status = corev1.ConditionTrue
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	var p Pressure
	if n.cfg.Pressure != nil {
		p = n.cfg.Pressure()
	}
	pressure := func(t corev1.NodeConditionType, is bool, bad, badMsg, good, goodMsg string) {
		if is {
			set(t, true, bad, badMsg)
		} else {
			set(t, false, good, goodMsg)
		}
	}
	pressure(corev1.NodeMemoryPressure, p.Memory, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	pressure(corev1.NodeDiskPressure, p.Disk, "KubeletHasDiskPressure", "kubelet has disk pressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	pressure(corev1.NodePIDPressure, p.PID, "KubeletHasInsufficientPID", "kubelet has insufficient PID available", "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	switch {
	case runtimeErr != nil:
		set(corev1.NodeReady, false, "KubeletNotReady", "container runtime is down: "+runtimeErr.Error())
	case !cond.Runtime:
		set(corev1.NodeReady, false, "KubeletNotReady", "container runtime not ready: RuntimeReady=false "+cond.RuntimeReason)
	case !cond.Network:
		set(corev1.NodeReady, false, "KubeletNotReady", "container runtime network not ready: NetworkReady=false "+cond.NetworkReason)
	default:
		set(corev1.NodeReady, true, "KubeletReady", "kubelet is posting ready status")
	}
	return s
}

func condition(s *corev1.NodeStatus, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// listImages are the largest images of the node, read once a minute.
func (n *Node) listImages(ctx context.Context, old []corev1.ContainerImage) []corev1.ContainerImage {
	n.mu.Lock()
	have, at := n.images, n.imagesAt
	n.mu.Unlock()
	if time.Since(at) < imagesEvery {
		return have
	}
	resp, err := n.cfg.CRI.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		n.cfg.Logger.Debug("list images", "error", err)
		return old
	}
	var out []corev1.ContainerImage
	for _, img := range resp.Images {
		names := append(append([]string(nil), img.RepoDigests...), img.RepoTags...)
		if len(names) == 0 {
			continue
		}
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: int64(img.Size)})
	}
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].SizeBytes != out[j].SizeBytes {
			return out[i].SizeBytes > out[j].SizeBytes
		}
		return out[i].Names[0] < out[j].Names[0]
	})
	out = out[:min(len(out), maxImages)]
	n.mu.Lock()
	n.images, n.imagesAt = out, time.Now()
	n.mu.Unlock()
	return out
}

// declaredFeatures (KEP-5328), sorted: schedulers place pods that need them only
// where they are declared.
var declaredFeatures = []string{"ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"}

func defaultLabels(hostname string) map[string]string {
	return map[string]string{
		corev1.LabelHostname: hostname, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
}
