package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// podResize refuses resizes that can never fit the pod's node (KEP-1287).
type podResize struct {
	validating
	caches lookup.Caches
}

func (p *podResize) Validate(ctx context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	old, isUpdate := a.OldObject.(*corev1.Pod)
	if !ok || !isUpdate || a.Operation != seams.Update || !is(a, pods, "resize") || pod.Spec.NodeName == "" ||
		apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		return nil
	}
	node, err := lookup.CachedOrFresh[*corev1.Node](ctx, p.caches, nodes, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	if os, ok := node.Labels[corev1.LabelOSStable]; ok && os != "linux" {
		return because(forbid(a, "pod resize is only supported on linux nodes, node %q is %q", node.Name, os), "UnsupportedPlatform")
	}
	requests := podfit.Requests(pod)
	var msgs []string
	if cpu := requests[corev1.ResourceCPU]; cpu.Cmp(*node.Status.Allocatable.Cpu()) > 0 {
		msgs = append(msgs, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), node.Status.Allocatable.Cpu().MilliValue()))
	}
	if memory := requests[corev1.ResourceMemory]; memory.Cmp(*node.Status.Allocatable.Memory()) > 0 {
		msgs = append(msgs, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), node.Status.Allocatable.Memory().Value()))
	}
	if len(msgs) > 0 {
		return because(forbid(a, "node didn't have enough allocatable resources: %s", strings.Join(msgs, "; ")), "NodeCapacity")
	}
	return nil
}

func because(err error, cause metav1.CauseType) error {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
