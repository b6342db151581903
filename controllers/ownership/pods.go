package ownership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
)

// NewPod makes a pod of a template for its controller; the server completes the name.
func NewPod(template *corev1.PodTemplateSpec, namespace, owner string, ref *metav1.OwnerReference) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:    namespace,
			GenerateName: owner + "-",
			Labels:       maps.Clone(template.Labels),
			Annotations:  maps.Clone(template.Annotations),
			Finalizers:   slices.Clone(template.Finalizers),
		},
		Spec: *template.Spec.DeepCopy(),
	}
	if ref != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return pod
}

// Pods writes pods on behalf of their owners and tells about it in events.
type Pods struct {
	Client kubernetes.Interface
	Events record.EventRecorder
}

// Create creates a pod. Events are about owner.
func (p Pods) Create(ctx context.Context, pod *corev1.Pod, owner runtime.Object) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, errors.New("creating pod: its template has no labels")
	}
	made, err := p.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			p.Events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, fmt.Errorf("creating pod: %w", err)
	}
	p.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete deletes this very pod; that it is gone already is returned as NotFound.
func (p Pods) Delete(ctx context.Context, pod *corev1.Pod, owner runtime.Object) error {
	err := p.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}})
	switch {
	case err == nil:
		p.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // another pod of that name is not ours to delete
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	}
	p.Events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// Patch sends a strategic merge patch to a pod (see Claim).
func (p Pods) Patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	_, err := p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// SlowStart calls f for 0..n-1 in batches of 1, 2, 4 … and stops after the first batch
// with an error, so that what must fail (quota …) fails once and not n times. It returns
// how many calls succeeded. A batch runs in parallel.
func SlowStart(n int, f func(i int) error) (int, error) {
	done := 0
	for next, batch := 0, 1; next < n; batch *= 2 {
		batch = min(batch, n-next)
		ok, err := Parallel(batch, func(i int) error { return f(next + i) })
		done += ok
		if err != nil {
			return done, err
		}
		next += batch
	}
	return done, nil
}

// parallelism bounds concurrent writes: more would only queue at the API server.
const parallelism = 16

// Parallel calls f for 0..n-1 and returns how many succeeded and one of the errors.
func Parallel(n int, f func(i int) error) (int, error) {
	if n == 1 {
		if err := f(0); err != nil {
			return 0, err
		}
		return 1, nil
	}
	var (
		wg    sync.WaitGroup
		next  atomic.Int64
		good  atomic.Int64
		once  sync.Once
		first error
	)
	for range min(n, parallelism) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
				} else {
					good.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(good.Load()), first
}
