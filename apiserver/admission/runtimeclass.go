package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var runtimeClasses = schema.GroupResource{Group: nodev1.GroupName, Resource: "runtimeclasses"}

// runtimeClass gives pods the overhead and the place that their runtime class asks for.
type runtimeClass struct {
	caches lookup.Caches
}

func (r *runtimeClass) get(ctx context.Context, a *seams.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != seams.Create || !is(a, pods, "") {
		return nil, nil, nil
	}
	if pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	class, err := lookup.CachedOrFresh[*nodev1.RuntimeClass](ctx, r.caches, runtimeClasses, "", *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return nil, nil, forbid(a, "pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName)
	}
	return pod, class, err
}

func (r *runtimeClass) Admit(ctx context.Context, a *seams.Attributes) error {
	pod, class, err := r.get(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if o := class.Overhead; o != nil {
		if len(pod.Spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(o.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = o.PodFixed.DeepCopy()
	}
	s := class.Scheduling
	if s == nil {
		return nil
	}
	for key, value := range s.NodeSelector {
		if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
			return forbid(a, "conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own)
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	if len(s.Tolerations) > 0 {
		pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, s.Tolerations)
	}
	return nil
}

func (r *runtimeClass) Validate(ctx context.Context, a *seams.Attributes) error {
	pod, class, err := r.get(ctx, a)
	if err != nil || pod == nil {
		return err
	}
	if class != nil && class.Overhead != nil {
		if !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		return nil
	}
	if pod.Spec.Overhead != nil {
		return forbid(a, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}

// mergeTolerations joins two lists and leaves out what another toleration includes.
func mergeTolerations(a, b []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(a, b)
	var out []corev1.Toleration
	for i := range all {
		t := &all[i]
		included := slices.ContainsFunc(out, func(o corev1.Toleration) bool { return includes(&o, t) })
		for j := i + 1; j < len(all) && !included; j++ {
			included = !apiequality.Semantic.DeepEqual(t, &all[j]) && includes(&all[j], t)
		}
		if !included {
			out = append(out, *t)
		}
	}
	return out
}

// includes says whether a tolerates all that b tolerates.
func includes(a, b *corev1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(a, b) {
		return true
	}
	if a.Key != b.Key && (a.Key != "" || a.Operator != corev1.TolerationOpExists) {
		return false
	}
	if a.Effect != b.Effect && a.Effect != "" {
		return false
	}
	if a.Effect == corev1.TaintEffectNoExecute && a.TolerationSeconds != nil &&
		(b.TolerationSeconds == nil || *b.TolerationSeconds > *a.TolerationSeconds) {
		return false
	}
	switch a.Operator {
	case corev1.TolerationOpEqual, "":
		return (b.Operator == corev1.TolerationOpEqual || b.Operator == "") && b.Value == a.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}
