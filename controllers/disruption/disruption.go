// Package disruption keeps the status of PodDisruptionBudgets: how many of their pods may
// be evicted now. The eviction API counts down from it.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	// deletionTimeout is how long an evicted pod may take to be marked for deletion.
	deletionTimeout = 2 * time.Minute
	// staleTimeout is how long the condition DisruptionTarget may stand on a pod that is
	// not deleted after all.
	staleTimeout = 2 * time.Minute
)

// Controller reconciles PodDisruptionBudgets.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	stale *controller.Loop[controller.Key] // pods
	pdbs  policylisters.PodDisruptionBudgetLister
	pods  corelisters.PodLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "disruption-controller"
	pdbs, pods := cfg.Informers.Policy().V1().PodDisruptionBudgets(), cfg.Informers.Core().V1().Pods()
	c := &Controller{cfg: cfg, pdbs: pdbs.Lister(), pods: pods.Lister()}
	c.loop = controller.NewLoop(name, 2, cfg.Clock, cfg.Logger, c.reconcile)
	c.stale = controller.NewLoop(name, 1, cfg.Clock, cfg.Logger, c.clear)
	apps := cfg.Informers.Apps().V1()
	c.loop.Needs(apps.ReplicaSets().Informer().HasSynced, apps.Deployments().Informer().HasSynced, apps.StatefulSets().Informer().HasSynced)
	return c, errors.Join(
		controller.Watch(c.loop, pdbs.Informer(), controller.Enqueue[*policyv1.PodDisruptionBudget](c.loop)),
		controller.Watch(c.loop, pods.Informer(), controller.Handlers[*corev1.Pod]{
			Added: c.podChanged, Deleted: c.podChanged,
			Updated: func(old, p *corev1.Pod) {
				if !equality.Semantic.DeepEqual(old.Labels, p.Labels) {
					c.podChanged(old)
				} else if ownership.Ready(old) == ownership.Ready(p) && (old.DeletionTimestamp == nil) == (p.DeletionTimestamp == nil) && len(old.OwnerReferences) == len(p.OwnerReferences) && len(old.Status.Conditions) == len(p.Status.Conditions) && old.Status.Phase == p.Status.Phase {
					return
				}
				c.podChanged(p)
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	done := make(chan error, 1)
	if !c.loop.WaitSynced(ctx) {
		return nil
	}
	go func() { done <- c.stale.Run(ctx) }()
	err := c.loop.Run(ctx)
	return errors.Join(err, <-done)
}

func (c *Controller) podChanged(p *corev1.Pod) {
	if staleTarget(p) != nil {
		c.stale.Add(controller.KeyOf(p))
	}
	if len(p.Labels) == 0 {
		return
	}
	all, err := c.pdbs.PodDisruptionBudgets(p.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, b := range all {
		if sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && sel.Matches(labels.Set(p.Labels)) {
			c.loop.Add(controller.KeyOf(b))
		}
	}
}

// staleTarget is the condition DisruptionTarget of a pod that lives on, or nil.
func staleTarget(p *corev1.Pod) *corev1.PodCondition {
	if p.DeletionTimestamp != nil || ownership.Ended(p) {
		return nil
	}
	for i := range p.Status.Conditions {
		cond := &p.Status.Conditions[i]
		if cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue && cond.Reason != corev1.PodReasonTerminationByKubelet {
			return cond
		}
	}
	return nil
}

func (c *Controller) clear(ctx context.Context, key controller.Key) (time.Duration, error) {
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod: %w", err)
	}
	cond := staleTarget(p)
	if cond == nil {
		return 0, nil
	}
	if left := cond.LastTransitionTime.Add(staleTimeout).Sub(c.cfg.Clock.Now()); left > 0 {
		return left, nil
	}
	next := p.DeepCopy()
	*staleTarget(next) = corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now()), ObservedGeneration: p.Generation}
	if _, err := c.cfg.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("clearing DisruptionTarget: %w", err)
	}
	return 0, nil
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	b, err := c.pdbs.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading PodDisruptionBudget: %w", err)
	}
	next := b.DeepCopy()
	again, err := c.count(ctx, b, next)
	if err != nil {
		// Fail safe: nobody is evicted while we do not know.
		next = b.DeepCopy()
		next.Status.DisruptionsAllowed = 0
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
			Message: err.Error(), ObservedGeneration: next.Status.ObservedGeneration,
		})
	}
	if !equality.Semantic.DeepEqual(b.Status, next.Status) {
		if _, werr := c.cfg.Client.PolicyV1().PodDisruptionBudgets(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); werr != nil && !apierrors.IsNotFound(werr) {
			return 0, fmt.Errorf("updating status: %w", werr)
		}
	}
	return again, nil
}

// count fills next's status.
func (c *Controller) count(ctx context.Context, b, next *policyv1.PodDisruptionBudget) (time.Duration, error) {
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("spec.selector: %w", err)
	}
	pods, err := c.pods.Pods(b.Namespace).List(sel)
	if err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	if len(pods) == 0 {
		c.cfg.Events.Event(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	scales := map[types.UID]int32{}
	if b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String {
		if scales, err = c.scales(ctx, pods); err != nil {
			c.cfg.Events.Eventf(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
			return 0, err
		}
	}
	again, err := fill(next, pods, scales, c.cfg.Clock.Now())
	if err != nil {
		return 0, err
	}
	pdbhelper.UpdateDisruptionAllowedCondition(next)
	return again, nil
}

// fill computes a budget's numbers of its pods and the sizes of their controllers. The
// duration is when a pod that was to be deleted and is not is counted again, or 0.
func fill(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, scales map[types.UID]int32, now time.Time) (time.Duration, error) {
	var expected, desired int32
	for _, n := range scales {
		expected += n
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(expected), true)
		if err != nil {
			return 0, fmt.Errorf("spec.maxUnavailable: %w", err)
		}
		desired = max(0, expected-int32(n))
	case b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.Int:
		desired, expected = b.Spec.MinAvailable.IntVal, int32(len(pods))
	case b.Spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(expected), true)
		if err != nil {
			return 0, fmt.Errorf("spec.minAvailable: %w", err)
		}
		desired = int32(n)
	}
	disrupted := map[string]metav1.Time{}
	var again time.Duration
	var healthy int32
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		if at, ok := b.Status.DisruptedPods[p.Name]; ok {
			if left := at.Add(deletionTimeout).Sub(now); left > 0 {
				disrupted[p.Name] = at
				if again == 0 || left < again {
					again = left
				}
				continue
			}
		}
		if ownership.Ready(p) {
			healthy++
		}
	}
	if len(disrupted) == 0 {
		disrupted = nil
	}
	b.Status.ExpectedPods, b.Status.DesiredHealthy, b.Status.CurrentHealthy = expected, desired, healthy
	b.Status.DisruptedPods, b.Status.ObservedGeneration = disrupted, b.Generation
	b.Status.DisruptionsAllowed = 0
	if expected > 0 {
		b.Status.DisruptionsAllowed = max(0, healthy-desired)
	}
	return again, nil
}

// scales finds the sizes of the pods' controllers; pods without one do not count.
func (c *Controller) scales(ctx context.Context, pods []*corev1.Pod) (map[types.UID]int32, error) {
	out := map[types.UID]int32{}
	seen := map[types.UID]bool{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil || seen[ref.UID] {
			continue
		}
		seen[ref.UID] = true
		uid, n, err := c.scale(ctx, p.Namespace, ref)
		if err != nil {
			return nil, fmt.Errorf("found no controllers for pod %q: %w", p.Name, err)
		}
		if uid != "" {
			out[uid] = n
		}
	}
	return out, nil
}

// scale finds a controller's size; a ReplicaSet's is that of its Deployment.
func (c *Controller) scale(ctx context.Context, namespace string, ref *metav1.OwnerReference) (types.UID, int32, error) {
	apps := c.cfg.Informers.Apps().V1()
	switch ref.APIVersion + "/" + ref.Kind {
	case "apps/v1/ReplicaSet":
		rs, err := apps.ReplicaSets().Lister().ReplicaSets(namespace).Get(ref.Name)
		if err != nil || rs.UID != ref.UID {
			return "", 0, nil // gone: its pods will be
		}
		if owner := metav1.GetControllerOfNoCopy(rs); owner != nil && owner.Kind == "Deployment" {
			if d, err := apps.Deployments().Lister().Deployments(namespace).Get(owner.Name); err == nil && d.UID == owner.UID {
				return d.UID, ptr.Deref(d.Spec.Replicas, 1), nil
			}
		}
		return rs.UID, ptr.Deref(rs.Spec.Replicas, 1), nil
	case "apps/v1/StatefulSet":
		s, err := apps.StatefulSets().Lister().StatefulSets(namespace).Get(ref.Name)
		if err != nil || s.UID != ref.UID {
			return "", 0, nil
		}
		return s.UID, ptr.Deref(s.Spec.Replicas, 1), nil
	}
	return c.scaleOf(ctx, namespace, ref)
}

// scaleOf asks any other controller's scale subresource.
func (c *Controller) scaleOf(ctx context.Context, namespace string, ref *metav1.OwnerReference) (types.UID, int32, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, fmt.Errorf("owner reference: %w", err)
	}
	list, err := c.cfg.Discovery.ServerResourcesForGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, fmt.Errorf("discovering %s: %w", ref.APIVersion, err)
	}
	plural := ""
	scalable := map[string]bool{}
	for _, r := range list.APIResources {
		scalable[r.Name] = true
		if r.Kind == ref.Kind && plural == "" {
			plural = r.Name
		}
	}
	if plural == "" || !scalable[plural+"/scale"] {
		return "", 0, fmt.Errorf("%s does not implement the scale subresource", gv.WithKind(ref.Kind))
	}
	prefix := "/apis/" + ref.APIVersion
	if gv.Group == "" {
		prefix = "/api/" + gv.Version
	}
	s := &autoscalingv1.Scale{}
	err = c.cfg.Client.AutoscalingV1().RESTClient().Get().AbsPath(prefix, "namespaces", namespace, plural, ref.Name, "scale").Do(ctx).Into(s)
	if apierrors.IsNotFound(err) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("reading scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	return ref.UID, s.Spec.Replicas, nil
}
