package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/scheduling"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var priorityClasses = schema.GroupResource{Group: schedulingv1.GroupName, Resource: "priorityclasses"}

// priority turns a pod's priority class into its priority and preemption policy.
type priority struct {
	caches lookup.Caches
}

func (p *priority) Admit(ctx context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, pods, "") {
		return nil
	}
	switch a.Operation {
	case seams.Create:
		return p.set(ctx, a, pod)
	case seams.Update:
		// A client that does not know the fields must not be refused for clearing them.
		old := a.OldObject.(*corev1.Pod)
		if pod.Spec.Priority == nil {
			pod.Spec.Priority = old.Spec.Priority
		}
		if pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
	}
	return nil
}

func (p *priority) set(ctx context.Context, a *seams.Attributes, pod *corev1.Pod) error {
	var class *schedulingv1.PriorityClass
	var err error
	value, policy := int32(0), ptr.To(corev1.PreemptLowerPriority)
	if pod.Spec.PriorityClassName == "" {
		if class, err = p.defaultClass(ctx); err != nil {
			return err
		}
	} else {
		class, err = lookup.CachedOrFresh[*schedulingv1.PriorityClass](ctx, p.caches, priorityClasses, "", pod.Spec.PriorityClassName)
		if apierrors.IsNotFound(err) {
			return forbid(a, "no PriorityClass with name %v was found", pod.Spec.PriorityClassName)
		}
		if err != nil {
			return err
		}
	}
	if class != nil {
		pod.Spec.PriorityClassName = class.Name
		value, policy = class.Value, class.PreemptionPolicy
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name",
			*pod.Spec.Priority, value)
	}
	pod.Spec.Priority = &value
	if policy != nil {
		if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != *policy {
			return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name",
				*pod.Spec.PreemptionPolicy, *policy)
		}
		pod.Spec.PreemptionPolicy = ptr.To(*policy)
	}
	return nil
}

// isSystemClass: the server makes them and needs them.
func isSystemClass(name string) bool {
	return slices.ContainsFunc(scheduling.SystemPriorityClasses(), func(c *schedulingv1.PriorityClass) bool { return c.Name == name })
}

// defaultClass is the global default, the least one should there be several.
func (p *priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	all, err := lookup.CachedList[*schedulingv1.PriorityClass](ctx, p.caches, priorityClasses, "")
	if err != nil {
		return nil, err
	}
	var least *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (least == nil || c.Value < least.Value) {
			least = c
		}
	}
	return least, nil
}

func (p *priority) Validate(ctx context.Context, a *seams.Attributes) error {
	if is(a, priorityClasses, "") && a.Operation == seams.Delete && isSystemClass(a.Name) {
		return forbid(a, "this is a system priority class and cannot be deleted")
	}
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !is(a, priorityClasses, "") || !class.GlobalDefault || (a.Operation != seams.Create && a.Operation != seams.Update) {
		return nil
	}
	current, err := p.defaultClass(ctx)
	if err != nil {
		return err
	}
	if current != nil && (a.Operation == seams.Create || current.Name != class.Name) {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", current.Name)
	}
	return nil
}
