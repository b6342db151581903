package job

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// A pass holds on to what was released when it began: a pod that it has read with its finalizer
// may be shown without it, and so be forgotten as released, before the pass counts it.
func TestPassKeepsWhatWasReleased(t *testing.T) {
	c := &Controller{released: map[types.UID]struct{}{"p": {}}}
	released := c.releasedNow()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "p", Finalizers: []string{batchv1.JobTrackingFinalizer}},
		Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	c.seen(pod.UID) // the informer has shown it meanwhile
	j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](2), BackoffLimit: ptr.To[int32](6)},
		Status: batchv1.JobStatus{Succeeded: 1}}
	p := decide(state{job: j, pods: []*corev1.Pod{pod}, met: true, released: released, now: time.Now()})
	if p.succeeded != 1 || len(p.newSucceeded) > 0 {
		t.Errorf("succeeded %d, newly %d: counted twice", p.succeeded, len(p.newSucceeded))
	}
	if c.releasedNow()(pod.UID) {
		t.Error("remembered for ever")
	}
}
