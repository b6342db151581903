// Package binding assigns pods to nodes: pods/binding, and bindings of old.
//
// Owns: what a Binding changes in a pod. Must not: choose nodes, or check that the node exists,
// which is the binder's to know.
package binding

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/core"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var pods = schema.GroupResource{Resource: "pods"}

// Endpoints are pods/binding and bindings.
func Endpoints(caches lookup.Caches, c clock.PassiveClock) []seams.Endpoint {
	if c == nil {
		c = clock.RealClock{}
	}
	b := &binder{caches: caches, clock: c}
	e := seams.Endpoint{
		Kind:   corev1.SchemeGroupVersion.WithKind("Binding"),
		New:    func() runtime.Object { return &corev1.Binding{} },
		Create: b.create,
	}
	sub, own := e, e
	sub.Resource, sub.Subresource = pods, "binding"
	own.Resource = schema.GroupResource{Resource: "bindings"}
	return []seams.Endpoint{sub, own}
}

type binder struct {
	caches lookup.Caches
	clock  clock.PassiveClock
}

func (b *binder) create(ctx context.Context, r *seams.CreateRequest) (runtime.Object, error) {
	binding := r.Object.(*corev1.Binding)
	name := binding.Name
	if r.Resource.Resource == pods.Resource && name != r.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if name == "" {
		return nil, apierrors.NewBadRequest("Name parameter required.")
	}
	if errs := core.ValidateBinding(binding); len(errs) > 0 {
		return nil, errs.ToAggregate() // 500, as upstream
	}
	resource, err := lookup.Resource(b.caches, pods)
	if err != nil {
		return nil, err
	}
	var pre cacher.Preconditions
	if binding.UID != "" {
		pre.UID = &binding.UID
	}
	if binding.ResourceVersion != "" {
		pre.ResourceVersion = &binding.ResourceVersion
	}
	success := &metav1.Status{Status: metav1.StatusSuccess}
	if r.DryRun {
		current, err := resource.Get(ctx, r.Namespace, name, "")
		if err != nil {
			return nil, err
		}
		if _, err := Bind(current.Runtime().(*corev1.Pod), binding, b.clock.Now()); err != nil {
			return nil, conflict(name, err)
		}
		return success, nil
	}
	// Below the pod's strategy: nothing else may set a node name.
	_, err = resource.Update(ctx, r.Namespace, name, false, pre, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		next, err := Bind(current.Runtime().(*corev1.Pod), binding, b.clock.Now())
		return next, 0, err
	})
	if err != nil {
		return nil, conflict(name, err)
	}
	return success, nil
}

func conflict(name string, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, name, err)
}

// Bind returns the pod as bound.
func Bind(pod *corev1.Pod, binding *corev1.Binding, now time.Time) (*corev1.Pod, error) {
	switch {
	case pod.DeletionTimestamp != nil:
		return nil, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return nil, fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	next := pod.DeepCopy()
	next.Spec.NodeName = binding.Target.Name
	next.Status.NominatedNodeName = ""
	if len(binding.Annotations) > 0 {
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		maps.Copy(next.Annotations, binding.Annotations)
	}
	if len(binding.Labels) > 0 {
		if next.Labels == nil {
			next.Labels = map[string]string{}
		}
		maps.Copy(next.Labels, binding.Labels)
	}
	scheduled := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
	}
	for i := range next.Status.Conditions {
		c := &next.Status.Conditions[i]
		if c.Type != corev1.PodScheduled {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			scheduled.LastTransitionTime = c.LastTransitionTime
		}
		*c = scheduled
		return next, nil
	}
	next.Status.Conditions = append(next.Status.Conditions, scheduled)
	return next, nil
}
