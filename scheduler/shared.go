package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/plugins/interpodaffinity"
	"github.com/skiff-k8s/skiff/scheduler/plugins/podtopologyspread"
	"github.com/skiff-k8s/skiff/scheduler/plugins/volumebinding"
	"github.com/skiff-k8s/skiff/scheduler/plugins/volumerestrictions"
	"github.com/skiff-k8s/skiff/scheduler/preempt"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// sharedPlugins are those that need the scheduler's informers or the scheduler itself.
func (s *Scheduler) sharedPlugins() []framework.Plugin {
	core, apps := s.cfg.Informers.Core().V1(), s.cfg.Informers.Apps().V1()
	pdbs := s.cfg.Informers.Policy().V1().PodDisruptionBudgets()
	s.synced = append(s.synced,
		core.Namespaces().Informer().HasSynced, core.Services().Informer().HasSynced,
		apps.ReplicaSets().Informer().HasSynced, pdbs.Informer().HasSynced)
	namespaces := core.Namespaces().Lister()
	return []framework.Plugin{
		volumerestrictions.New(core.PersistentVolumeClaims().Lister()),
		s.volumes(),
		podtopologyspread.New(s.group),
		interpodaffinity.New(func(ns string) labels.Set {
			n, err := namespaces.Get(ns)
			if err != nil {
				return nil
			}
			return n.Labels
		}),
		preempt.New(&s.search,
			func() ([]*policyv1.PodDisruptionBudget, error) { return pdbs.Lister().List(labels.Everything()) },
			func(n int) int { return s.search.rnd.IntN(n) },
			s.evict),
	}
}

// volumes makes the one VolumeBinding of all profiles: what it promises holds for all.
func (s *Scheduler) volumes() framework.Plugin {
	if s.volumeBinding == nil {
		s.volumeBinding = volumebinding.New(s.cfg.Client, s.cfg.Informers, s.cfg.Clock)
	}
	return s.volumeBinding
}

// group returns the selector of the pods that belong together with p: those of its
// Services and of its controller.
func (s *Scheduler) group(p *corev1.Pod) labels.Selector {
	services, err := s.cfg.Informers.Core().V1().Services().Lister().Services(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	set := labels.Set{}
	for _, svc := range services {
		if len(svc.Spec.Selector) == 0 || !subset(svc.Spec.Selector, p.Labels) {
			continue
		}
		for k, v := range svc.Spec.Selector {
			set[k] = v
		}
	}
	var sel labels.Selector
	if len(set) > 0 {
		sel = labels.SelectorFromSet(set)
	}
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return sel
	}
	var own *metav1.LabelSelector
	switch ref.APIVersion + "/" + ref.Kind {
	case "apps/v1/ReplicaSet":
		if rs, err := s.cfg.Informers.Apps().V1().ReplicaSets().Lister().ReplicaSets(p.Namespace).Get(ref.Name); err == nil {
			own = rs.Spec.Selector
		}
	case "apps/v1/StatefulSet", "v1/ReplicationController", "batch/v1/Job":
		// Their pods carry labels that tell them; to read the objects would take an
		// informer for each kind.
		own = labelsOf(p)
	}
	if own == nil {
		return sel
	}
	extra, err := metav1.LabelSelectorAsSelector(own)
	if err != nil {
		return sel
	}
	if sel == nil {
		return extra
	}
	requirements, _ := extra.Requirements()
	return sel.Add(requirements...)
}

// labelsOf selects pods with the same labels but for those that differ within a group.
func labelsOf(p *corev1.Pod) *metav1.LabelSelector {
	m := map[string]string{}
	for k, v := range p.Labels {
		switch k {
		case appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel, "batch.kubernetes.io/job-completion-index":
		default:
			m[k] = v
		}
	}
	if len(m) == 0 {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: m}
}

func subset(selector, of map[string]string) bool {
	for k, v := range selector {
		if got, ok := of[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Fits, Place and Displace make the searcher a preempt.Simulator.
func (s *searcher) Fits(n *snapshot.Node) *framework.Status { return s.filter(n) }

// Place puts a pod on a node for a while.
func (s *searcher) Place(p *snapshot.Pod, n *snapshot.Node) { s.place(p, n) }

// Displace takes a pod off a node for a while.
func (s *searcher) Displace(p *snapshot.Pod, n *snapshot.Node) { s.displace(p, n) }

// evict deletes the victims of a nomination, and withdraws nominations to the node of
// pods that would now come second.
func (s *Scheduler) evict(c *framework.Cycle, n *framework.Nomination) {
	for uid, p := range s.nominated[n.Node] {
		if p.Priority < c.Pod.Priority {
			delete(s.nominated[n.Node], uid)
			s.queue.Activate(uid, s.cfg.Clock.Now())
		}
	}
	preemptor, node := c.Pod.Pod, n.Node
	for _, v := range n.Victims {
		if b := s.bindings[v.UID]; b != nil && b.verdict != nil {
			b.decide(errRejected{"preempted"}) // it never got there
			continue
		}
		victim := v.Pod
		s.write(s.ctx, func(ctx context.Context) {
			if err := s.evictOne(ctx, preemptor, victim, node); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("preempting failed", "pod", victim.Namespace+"/"+victim.Name, "err", err)
				// Without it the preemptor may fit no better: try again.
				s.inbox.post(func(now time.Time) { s.queue.Activate(preemptor.UID, now) })
			}
		})
	}
}

func (s *Scheduler) evictOne(ctx context.Context, preemptor, victim *corev1.Pod, node string) error {
	cond := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName),
		LastTransitionTime: metav1.NewTime(s.cfg.Clock.Now()), ObservedGeneration: victim.Generation,
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{cond}},
	})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	client := s.cfg.Client.CoreV1().Pods(victim.Namespace)
	if _, err := client.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return ignoreGone(err)
	}
	err = client.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(victim.UID)}})
	if err != nil {
		return ignoreGone(err)
	}
	s.events.Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", preemptor.UID, node)
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
