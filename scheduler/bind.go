package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/queue"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// binding is a pod on its way to a node.
type binding struct {
	item    *queue.Item
	profile *profile
	cycle   *framework.Cycle
	node    string
	// verdict ends a wait that Permit plugins asked for: nil allows.
	verdict chan error
	waiting map[string]struct{} // plugins not yet content
	latest  *corev1.Pod         // an update that came meanwhile, or nil
}

// bind asks Permit and hands the rest to a goroutine. The pod is assumed already.
func (s *Scheduler) bind(ctx context.Context, it *queue.Item, pr *profile, c *framework.Cycle, node string) {
	b := &binding{item: it, profile: pr, cycle: c, node: node}
	s.bindings[it.UID] = b
	var longest time.Duration
	for _, pl := range pr.permits {
		wait, st := pl.Permit(c, node)
		switch {
		case st == nil:
		case st.Code == framework.Wait:
			if b.waiting == nil {
				b.waiting = map[string]struct{}{}
				b.verdict = make(chan error, 1)
			}
			b.waiting[st.Plugin] = struct{}{}
			longest = max(longest, wait)
		default:
			s.unbound(ctx, b, nil, st)
			return
		}
	}
	if b.waiting == nil {
		s.wg.Go(func() { s.finish(ctx, b, s.commit(ctx, b)) })
		return
	}
	s.wg.Go(func() {
		timer := s.cfg.Clock.NewTimer(longest)
		defer timer.Stop()
		select {
		case err := <-b.verdict:
			if err == nil {
				err = s.commit(ctx, b)
			}
			s.finish(ctx, b, err)
		case <-timer.C():
			s.finish(ctx, b, errRejected{"rejected due to timeout after waiting " + longest.String()})
		case <-ctx.Done():
		}
	})
}

// errRejected is a Permit's no: the pod waits for an event rather than backing off.
type errRejected struct{ reason string }

func (e errRejected) Error() string { return e.reason }

// Allow lets one plugin's wait for a pod end well; the binding goes on when all have.
func (s *Scheduler) Allow(uid types.UID, plugin string) {
	s.inbox.post(func(time.Time) {
		b := s.bindings[uid]
		if b == nil || b.waiting == nil {
			return
		}
		delete(b.waiting, plugin)
		if len(b.waiting) == 0 {
			b.decide(nil)
		}
	})
}

// rejectWaiting ends a wait for a pod that is gone.
func (s *Scheduler) rejectWaiting(uid types.UID, why string) {
	if b := s.bindings[uid]; b != nil && b.verdict != nil {
		b.decide(errRejected{why})
	}
}

func (b *binding) decide(err error) {
	select {
	case b.verdict <- err:
	default: // decided before
	}
}

// commit runs PreBind and Bind. Only the latter counts as a write: the former may wait long.
func (s *Scheduler) commit(ctx context.Context, b *binding) error {
	for _, pl := range b.profile.preBinds {
		if err := pl.PreBind(ctx, b.cycle, b.node); err != nil {
			return fmt.Errorf("preparing to bind: %w", err)
		}
	}
	select {
	case s.writes <- struct{}{}:
		defer func() { <-s.writes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if len(b.profile.binds) > 0 {
		return b.profile.binds[0].Bind(ctx, b.item.Pod.Pod, b.node)
	}
	pod := b.item.Pod
	err := s.cfg.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: b.node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("binding to node %s: %w", b.node, err)
	}
	return nil
}

// finish reports a binding's end to the loop.
func (s *Scheduler) finish(ctx context.Context, b *binding, err error) {
	if err == nil {
		p := b.item.Pod.Pod
		s.events.Eventf(p, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %s/%s to %s", p.Namespace, p.Name, b.node)
		s.inbox.post(func(time.Time) {
			delete(s.bindings, b.item.UID)
			if s.queue.Get(b.item.UID) == b.item {
				s.queue.Delete(b.item.UID)
			}
		})
		return
	}
	if ctx.Err() != nil {
		return
	}
	s.inbox.post(func(time.Time) { s.unbound(ctx, b, err, nil) })
}

// unbound undoes an assumption and queues the pod again, unless it is gone.
func (s *Scheduler) unbound(ctx context.Context, b *binding, err error, refused *framework.Status) {
	delete(s.bindings, b.item.UID)
	for i := len(b.profile.reserves) - 1; i >= 0; i-- {
		b.profile.reserves[i].Unreserve(b.cycle, b.node)
	}
	was := s.snap.Pod(b.item.UID)
	s.snap.Forget(b.item.UID)
	now := s.cfg.Clock.Now()
	if was != nil && !s.snap.Assumed(b.item.UID) {
		s.queue.Event(framework.Event{Kind: framework.PodDelete, Pod: was}, now)
	}
	s.queue.Event(framework.Event{Kind: framework.VolumeChange}, now) // Unreserve may have freed some
	if apierrors.IsNotFound(err) || s.queue.Get(b.item.UID) != b.item {
		s.queue.Delete(b.item.UID)
		return
	}
	if b.latest != nil {
		b.item.Pod = snapshot.NewPod(b.latest)
	}
	f := &failure{nodes: len(s.snap.Nodes), err: err}
	var no errRejected
	if errors.As(err, &no) {
		refused = framework.NewStatus(framework.Unschedulable, "Permit", no.reason)
	}
	if refused != nil {
		f.err, f.pre = nil, refused
	}
	s.failed(ctx, b.item, b.profile, nil, f)
}
