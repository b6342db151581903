package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// inbox takes what happened elsewhere to the loop, in order.
type inbox struct {
	mu     sync.Mutex
	news   []func(now time.Time)
	spare  []func(now time.Time)
	signal chan struct{}
}

func (b *inbox) post(f func(now time.Time)) {
	b.mu.Lock()
	b.news = append(b.news, f)
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// drain applies all news.
func (b *inbox) drain(now time.Time) {
	b.mu.Lock()
	news := b.news
	b.news = b.spare[:0]
	b.mu.Unlock()
	for i, f := range news {
		f(now)
		news[i] = nil
	}
	b.mu.Lock()
	b.spare = news[:0]
	b.mu.Unlock()
}

// on registers handlers that post to the inbox.
func on[T any](s *Scheduler, inf cache.SharedInformer, changed func(old, obj *T, now time.Time)) error {
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if obj, ok := o.(*T); ok {
				s.inbox.post(func(now time.Time) { changed(nil, obj, now) })
			}
		},
		UpdateFunc: func(a, o any) {
			old, ok1 := a.(*T)
			obj, ok2 := o.(*T)
			if ok1 && ok2 {
				s.inbox.post(func(now time.Time) { changed(old, obj, now) })
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if obj, ok := o.(*T); ok {
				s.inbox.post(func(now time.Time) { changed(obj, nil, now) })
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding event handler: %w", err)
	}
	s.synced = append(s.synced, reg.HasSynced)
	return nil
}

func (s *Scheduler) watch() error {
	core := s.cfg.Informers.Core().V1()
	return errors.Join(
		on(s, core.Nodes().Informer(), s.nodeChanged),
		on(s, core.Pods().Informer(), s.podChanged),
		on(s, core.PersistentVolumeClaims().Informer(), func(_, _ *corev1.PersistentVolumeClaim, now time.Time) { s.volumeChanged(now) }),
		on(s, core.PersistentVolumes().Informer(), func(_, _ *corev1.PersistentVolume, now time.Time) { s.volumeChanged(now) }),
		on(s, s.cfg.Informers.Storage().V1().StorageClasses().Informer(), func(_, _ *storagev1.StorageClass, now time.Time) { s.volumeChanged(now) }),
		on(s, core.Namespaces().Informer(), s.namespaceChanged),
	)
}

func (s *Scheduler) volumeChanged(now time.Time) {
	s.queue.Event(framework.Event{Kind: framework.VolumeChange}, now)
}

// namespaceChanged tells of labels that namespaceSelectors may want. A new namespace counts:
// its pods may have been seen before it.
func (s *Scheduler) namespaceChanged(old, ns *corev1.Namespace, now time.Time) {
	if ns != nil && (old == nil || !maps.Equal(old.Labels, ns.Labels)) {
		s.queue.Event(framework.Event{Kind: framework.NamespaceChange}, now)
	}
}

// nodeChanged applies a node's event; old is nil for a new one, node for a deleted one.
func (s *Scheduler) nodeChanged(old, node *corev1.Node, now time.Time) {
	if node == nil {
		s.snap.RemoveNode(old.Name)
		s.queue.Event(framework.Event{Kind: framework.NodeDelete, OldNode: old}, now)
		return
	}
	s.snap.SetNode(node)
	e := framework.Event{OldNode: old, Node: node}
	if old == nil {
		e.Kind = framework.NodeAdd
	} else {
		if !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
			e.Kind |= framework.NodeAllocatable
		}
		if !maps.Equal(old.Labels, node.Labels) {
			e.Kind |= framework.NodeLabel
		}
		if old.Spec.Unschedulable != node.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
			e.Kind |= framework.NodeTaint
		}
	}
	if e.Kind != 0 {
		s.queue.Event(e, now)
	}
}

func placed(p *corev1.Pod) bool {
	return p != nil && p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// podChanged applies a pod's event.
func (s *Scheduler) podChanged(old, pod *corev1.Pod, now time.Time) {
	switch {
	case pod == nil:
		s.podGone(old, now)
	case placed(pod):
		s.podPlaced(old, pod, now)
	case pod.Spec.NodeName != "": // ended
		s.podGone(pod, now)
	case s.profiles[pod.Spec.SchedulerName] == nil:
	case s.snap.Assumed(pod.UID): // being bound; the binding will be seen
		if b := s.bindings[pod.UID]; b != nil {
			b.latest = pod
		}
		if old != nil && old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
			s.rejectWaiting(pod.UID, "pod is being deleted")
		}
	case old != nil && !schedulingChanged(old, pod):
		// Only the status changed, by ourselves most likely: the attempt needs not be repeated.
		if it := s.queue.Get(pod.UID); it != nil {
			s.renominate(old, pod, it.Pod, now)
			it.Pod.Pod = pod
		}
	default:
		s.enqueue(old, pod, now)
	}
}

func (s *Scheduler) enqueue(old, pod *corev1.Pod, now time.Time) {
	// Of gated pods the API server itself tells, in the condition SchedulingGated.
	if old != nil && s.queue.Get(pod.UID) != nil {
		s.queue.Update(pod, now)
		s.renominate(old, pod, s.queue.Get(pod.UID).Pod, now)
		return
	}
	s.queue.Add(pod, now)
	if n := pod.Status.NominatedNodeName; n != "" {
		s.nominate(s.queue.Get(pod.UID).Pod, n)
	}
}

// schedulingChanged tells whether anything but the status and bookkeeping changed.
func schedulingChanged(old, pod *corev1.Pod) bool {
	return old.Generation != pod.Generation || (old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		!maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations) ||
		!equality.Semantic.DeepEqual(old.Spec, pod.Spec) || !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses)
}

// podPlaced notes a pod on a node.
func (s *Scheduler) podPlaced(old, pod *corev1.Pod, now time.Time) {
	s.denominate(pod.UID, pod.Spec.NodeName, now)
	s.queue.Delete(pod.UID)
	before := s.snap.Pod(pod.UID)
	s.snap.SetPod(pod)
	after := s.snap.Pod(pod.UID)
	e := framework.Event{OldPod: before, Pod: after}
	switch {
	case !placed(old):
		e.Kind = framework.PodAdd
	case before != nil && (!maps.Equal(old.Labels, pod.Labels) || !slices.Equal(before.Requests.Scalars, after.Requests.Scalars) ||
		before.Requests.MilliCPU > after.Requests.MilliCPU || before.Requests.Memory > after.Requests.Memory):
		e.Kind = framework.PodUpdate
	}
	if placed(old) && old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
		e.Kind |= framework.PodTerminates
	}
	if e.Kind != 0 {
		s.queue.Event(e, now)
	}
}

// podGone forgets a pod that was deleted or has ended.
func (s *Scheduler) podGone(pod *corev1.Pod, now time.Time) {
	s.queue.Delete(pod.UID)
	s.denominate(pod.UID, "", now)
	s.rejectWaiting(pod.UID, "pod was deleted")
	if was := s.snap.RemovePod(pod.UID); was != nil {
		s.queue.Event(framework.Event{Kind: framework.PodDelete, Pod: was}, now)
	}
}
