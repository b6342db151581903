// Package podgc removes pods that no kubelet will: those of nodes that are gone, those
// deleted before they had a node, those of nodes declared out of service, and ended ones
// when there are too many.
package podgc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	period     = 20 * time.Second
	quarantine = 40 * time.Second // a node may be made again under its name
	// Threshold is upstream's --terminated-pod-gc-threshold.
	Threshold = 12500
)

// Controller removes pods.
type Controller struct {
	cfg    controller.Config
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	synced []cache.InformerSynced
	lost   map[string]time.Time // nodes not found, since when
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	return &Controller{
		cfg: cfg, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), lost: map[string]time.Time{},
		synced: []cache.InformerSynced{core.Pods().Informer().HasSynced, core.Nodes().Informer().HasSynced},
	}, nil
}

// Run looks every now and then until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !controller.WaitSynced(ctx, c.synced...) {
		return nil
	}
	t := c.cfg.Clock.NewTicker(period)
	defer t.Stop()
	for {
		if err := c.collect(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("removing pods failed, it will be retried", "controller", "pod-garbage-collector-controller", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
		}
	}
}

// found is what one look finds.
type found struct {
	unscheduled, outOfService, ended []*corev1.Pod
	orphans                          map[string][]*corev1.Pod // by node that is not there
}

// sort looks at all pods once; node returns nil for one that is not known.
func sort(pods []*corev1.Pod, node func(string) *corev1.Node, threshold int) found {
	f := found{orphans: map[string][]*corev1.Pod{}}
	for _, p := range pods {
		switch {
		case p.Spec.NodeName == "":
			if p.DeletionTimestamp != nil {
				f.unscheduled = append(f.unscheduled, p)
			}
		case node(p.Spec.NodeName) == nil:
			f.orphans[p.Spec.NodeName] = append(f.orphans[p.Spec.NodeName], p)
		case p.DeletionTimestamp != nil && outOfService(node(p.Spec.NodeName)):
			f.outOfService = append(f.outOfService, p)
		}
		if ownership.Ended(p) && p.DeletionTimestamp == nil {
			f.ended = append(f.ended, p)
		}
	}
	over := len(f.ended) - threshold
	if threshold <= 0 || over <= 0 {
		f.ended = nil
		return f
	}
	evicted := func(p *corev1.Pod) int {
		if p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortFunc(f.ended, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(evicted(a), evicted(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	f.ended = f.ended[:over]
	return f
}

// outOfService: an admin vouches that the machine is off (KEP-2268).
func outOfService(n *corev1.Node) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func (c *Controller) collect(ctx context.Context) error {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	f := sort(pods, func(name string) *corev1.Node {
		n, err := c.nodes.Get(name)
		if err != nil {
			return nil
		}
		return n
	}, Threshold)
	var errs []error
	each := func(pods []*corev1.Pod, cond *corev1.PodCondition) {
		for _, p := range pods {
			errs = append(errs, c.remove(ctx, p, cond))
		}
	}
	each(f.ended, nil)
	each(f.unscheduled, nil)
	each(f.outOfService, nil)
	now := c.cfg.Clock.Now()
	for name := range c.lost {
		if f.orphans[name] == nil {
			delete(c.lost, name)
		}
	}
	for name, pods := range f.orphans {
		since, ok := c.lost[name]
		if !ok {
			c.lost[name] = now
			continue
		}
		if now.Sub(since) < quarantine {
			continue
		}
		if _, err := c.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			if err == nil {
				delete(c.lost, name)
			} else {
				errs = append(errs, fmt.Errorf("reading node %s: %w", name, err))
			}
			continue
		}
		each(pods, &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists"})
	}
	return errors.Join(errs...)
}

// remove ends a pod for good: nobody is there to do it gracefully.
func (c *Controller) remove(ctx context.Context, p *corev1.Pod, cond *corev1.PodCondition) error {
	client := c.cfg.Client.CoreV1().Pods(p.Namespace)
	if !ownership.Ended(p) {
		status := map[string]any{"phase": corev1.PodFailed}
		if cond != nil {
			cond.LastTransitionTime, cond.ObservedGeneration = metav1.NewTime(c.cfg.Clock.Now()), p.Generation
			status["conditions"] = []corev1.PodCondition{*cond}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
		if err != nil {
			return fmt.Errorf("encoding patch: %w", err)
		}
		if _, err := client.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return ignoreGone(err, p)
		}
	}
	return ignoreGone(client.Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: ptr.To(p.UID)},
	}), p)
}

func ignoreGone(err error, p *corev1.Pod) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("removing pod %s/%s: %w", p.Namespace, p.Name, err)
}
