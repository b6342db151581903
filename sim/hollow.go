package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// hollow is a node whose pods run at once. A pod whose first container has the argument
// "exit N" ends with that code; what is deleted is gone at once.
type hollow struct {
	name   string
	client kubernetes.Interface
	shared informers.SharedInformerFactory

	mu   sync.Mutex
	next int
	off  chan struct{} // closed when the machine is off: no heartbeats, nothing runs
}

func newHollow(name string, client kubernetes.Interface, shared informers.SharedInformerFactory) *hollow {
	return &hollow{name: name, client: client, shared: shared, off: make(chan struct{})}
}

// Run registers the node and plays its kubelet until ctx ends.
func (h *hollow) Run(ctx context.Context) error {
	work := make(chan *corev1.Pod, 10000)
	note := func(o any) {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName == h.name {
			work <- p
		}
	}
	inf := h.shared.Core().V1().Pods().Informer()
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, o any) { note(o) }}); err != nil {
		return fmt.Errorf("adding event handler: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer h.shared.Shutdown()
	defer cancel()
	h.shared.StartWithContext(ctx)
	if err := h.register(ctx); err != nil {
		return err
	}
	t := time.NewTicker(heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.off:
			<-ctx.Done()
			return nil
		case <-t.C:
			if err := h.beat(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		case p := <-work:
			if err := h.play(ctx, p); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (h *hollow) register(ctx context.Context) error {
	quantities := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110")}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: h.name, Labels: map[string]string{corev1.LabelHostname: h.name}},
		Status:     corev1.NodeStatus{Capacity: quantities, Allocatable: quantities},
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
		if t == corev1.NodeReady {
			c.Status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	if _, err := h.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering %s: %w", h.name, err)
	}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: h.name, Namespace: corev1.NamespaceNodeLease},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(h.name), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: ptr.To(metav1.NowMicro())}}
	if _, err := h.client.CoordinationV1().Leases(l.Namespace).Create(ctx, l, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating lease of %s: %w", h.name, err)
	}
	return nil
}

func (h *hollow) beat(ctx context.Context) error {
	client := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	l, err := client.Get(ctx, h.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading lease of %s: %w", h.name, err)
	}
	l.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if _, err := client.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("renewing lease of %s: %w", h.name, err)
	}
	return nil
}

func (h *hollow) play(ctx context.Context, p *corev1.Pod) error {
	client := h.client.CoreV1().Pods(p.Namespace)
	var err error
	switch {
	case p.DeletionTimestamp != nil && (p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending):
		q := p.DeepCopy()
		q.Status.Phase = corev1.PodFailed
		if _, err = client.UpdateStatus(ctx, q, metav1.UpdateOptions{}); err == nil {
			err = h.remove(ctx, p)
		}
	case p.DeletionTimestamp != nil:
		err = h.remove(ctx, p)
	case p.Status.Phase == corev1.PodPending:
		_, err = client.UpdateStatus(ctx, h.started(p), metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // its update will come
	}
	if err != nil {
		return fmt.Errorf("%s: pod %s: %w", h.name, p.Name, err)
	}
	return nil
}

func (h *hollow) remove(ctx context.Context, p *corev1.Pod) error {
	return h.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: ptr.To(p.UID)}})
}

// started is a pod that runs, or has run already.
func (h *hollow) started(p *corev1.Pod) *corev1.Pod {
	h.mu.Lock()
	h.next++
	ip := fmt.Sprintf("10.244.%d.%d", h.next/250, h.next%250+1)
	h.mu.Unlock()
	q := p.DeepCopy()
	now := metav1.Now()
	exit, ends := int32(0), false
	if args := p.Spec.Containers[0].Args; len(args) == 2 && args[0] == "exit" {
		ends = true
		if _, err := fmt.Sscan(args[1], &exit); err != nil {
			exit = 255
		}
	}
	q.Status.Phase, q.Status.StartTime = corev1.PodRunning, &now
	q.Status.PodIP, q.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	ready := corev1.ConditionTrue
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	if ends {
		ready = corev1.ConditionFalse
		q.Status.Phase = corev1.PodSucceeded
		if exit != 0 {
			q.Status.Phase = corev1.PodFailed
		}
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, StartedAt: now, FinishedAt: now}}
	}
	for _, c := range p.Spec.Containers {
		q.Status.ContainerStatuses = append(q.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: !ends, State: state})
	}
	q.Status.Conditions = append(q.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready, LastTransitionTime: now})
	return q
}
