// Package tainteviction deletes pods that do not tolerate, or no longer tolerate, a
// NoExecute taint of their node.
package tainteviction

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/controllers/bynode"
	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Controller evicts by taints.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	nodes corelisters.NodeLister
	list  corelisters.PodLister
	pods  bynode.Index

	mu sync.Mutex
	// since is when we first saw a pod with taints that it tolerates for a while: taints
	// of others may not say when they were added.
	since map[types.UID]time.Time
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "taint-eviction-controller"
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, nodes: core.Nodes().Lister(), list: core.Pods().Lister(), since: map[types.UID]time.Time{}}
	c.loop = controller.NewLoop(name, 8, cfg.Clock, cfg.Logger, c.reconcile)
	var err error
	if c.pods, err = bynode.New(core.Pods().Informer()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, errors.Join(
		controller.Watch(c.loop, core.Nodes().Informer(), controller.Handlers[*corev1.Node]{
			Added: func(n *corev1.Node) {
				if len(noExecute(n)) > 0 {
					c.wake(n)
				}
			},
			Updated: func(old, n *corev1.Node) {
				if !equality.Semantic.DeepEqual(noExecute(old), noExecute(n)) {
					c.wake(n)
				}
			},
		}),
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Added: c.podChanged,
			Updated: func(old, p *corev1.Pod) {
				if old.Spec.NodeName != p.Spec.NodeName || len(old.Spec.Tolerations) != len(p.Spec.Tolerations) {
					c.podChanged(p)
				}
			},
			Deleted: func(p *corev1.Pod) { c.forget(p.UID) },
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func noExecute(n *corev1.Node) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

func (c *Controller) wake(n *corev1.Node) {
	for _, p := range c.pods.Pods(n.Name) {
		c.loop.Add(controller.KeyOf(p))
	}
}

func (c *Controller) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	if n, err := c.nodes.Get(p.Spec.NodeName); err == nil && len(noExecute(n)) > 0 {
		c.loop.Add(controller.KeyOf(p))
	}
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, uid)
}

// Bearable is how long a pod bears the taints from when it met them: negative for ever,
// 0 not at all. Of several tolerations of one taint the first counts, as upstream has it.
func Bearable(taints []corev1.Taint, tolerations []corev1.Toleration) time.Duration {
	least := time.Duration(-1)
	for i := range taints {
		tolerated := false
		for j := range tolerations {
			t := &tolerations[j]
			if !podfit.Tolerates(t, &taints[i]) {
				continue
			}
			tolerated = true
			if t.TolerationSeconds != nil {
				d := max(0, time.Duration(*t.TolerationSeconds)*time.Second)
				if least < 0 || d < least {
					least = d
				}
			}
			break
		}
		if !tolerated {
			return 0
		}
	}
	return least
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	p, err := c.list.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod: %w", err)
	}
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || ownership.Ended(p) {
		c.forget(p.UID)
		return 0, nil
	}
	n, err := c.nodes.Get(p.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	taints := noExecute(n)
	bears := Bearable(taints, p.Spec.Tolerations)
	if len(taints) == 0 || bears < 0 {
		c.mu.Lock()
		_, waited := c.since[p.UID]
		delete(c.since, p.UID)
		c.mu.Unlock()
		if waited {
			c.cfg.Events.Eventf(p, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s/%s", p.Namespace, p.Name)
		}
		return 0, nil
	}
	if bears > 0 {
		now := c.cfg.Clock.Now()
		c.mu.Lock()
		since, ok := c.since[p.UID]
		if !ok {
			since = now
			// What was added before a restart of ours counts from then.
			for _, t := range taints {
				if t.TimeAdded != nil && t.TimeAdded.Time.Before(since) {
					since = t.TimeAdded.Time
				}
			}
			if p.Status.StartTime != nil && since.Before(p.Status.StartTime.Time) {
				since = p.Status.StartTime.Time
			}
			c.since[p.UID] = since
		}
		c.mu.Unlock()
		if left := since.Add(bears).Sub(now); left > 0 {
			return left, nil
		}
	}
	return 0, c.evict(ctx, p)
}

func (c *Controller) evict(ctx context.Context, p *corev1.Pod) error {
	c.cfg.Events.Eventf(p, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", p.Namespace, p.Name)
	cond := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now()), ObservedGeneration: p.Generation}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{cond}},
	})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	client := c.cfg.Client.CoreV1().Pods(p.Namespace)
	_, err = client.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = client.Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(p.UID)}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evicting pod: %w", err)
	}
	c.forget(p.UID)
	return nil
}
