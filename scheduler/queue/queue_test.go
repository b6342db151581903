package queue

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
}

func open(*corev1.Pod) *framework.Status { return nil }

func pop(t *testing.T, q *Queue, now time.Time, want string) *Item {
	t.Helper()
	it := q.Pop(now)
	switch {
	case it == nil && want != "":
		t.Fatalf("nothing to pop, want %s", want)
	case it != nil && it.Name != want:
		t.Fatalf("popped %s, want %q", it.Name, want)
	}
	return it
}

func TestOrder(t *testing.T) {
	q := New(open)
	q.Add(pod("old", 0), at(0))
	q.Add(pod("urgent", 10), at(time.Second))
	q.Add(pod("new", 0), at(2*time.Second))
	pop(t, q, at(3*time.Second), "urgent")
	pop(t, q, at(3*time.Second), "old")
	q.Delete("new")
	pop(t, q, at(3*time.Second), "")
}

func TestBackoffGrowsWithFailures(t *testing.T) {
	q := New(open)
	q.Add(pod("p", 0), at(0))
	now := at(0)
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		it := pop(t, q, now, "p")
		q.Failed(it, nil, nil, true, now)
		next := q.Next()
		if got := next.Sub(now); got != want*time.Second {
			t.Errorf("failure %d: waits %s, want %s s", i+1, got, want)
		}
		pop(t, q, next.Add(-time.Millisecond), "")
		now = next
	}
}

func TestUnschedulableWaitsForWhatHelps(t *testing.T) {
	q := New(open)
	q.Add(pod("p", 0), at(0))
	hints := []framework.Hint{{Kinds: framework.NodeAdd, Worth: func(_ *snapshot.Pod, e framework.Event) bool { return e.Node.Name == "right" }}}
	it := pop(t, q, at(0), "p")
	q.Failed(it, []string{"X"}, hints, false, at(0))
	node := func(name string) framework.Event {
		return framework.Event{Kind: framework.NodeAdd, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	}
	q.Event(framework.Event{Kind: framework.PodDelete}, at(20*time.Second))
	q.Event(node("wrong"), at(20*time.Second))
	pop(t, q, at(20*time.Second), "")
	q.Event(node("right"), at(20*time.Second))
	it = pop(t, q, at(20*time.Second), "p")

	// An event within the back-off: nothing else to do, so it is tried at once.
	q.Failed(it, []string{"X"}, hints, false, at(20*time.Second))
	q.Event(node("right"), at(20*time.Second))
	if a, b, u, _ := q.Len(); a != 0 || b != 1 || u != 0 {
		t.Errorf("active %d, backoff %d, unschedulable %d", a, b, u)
	}
	it = pop(t, q, at(20*time.Second), "p")

	// With no event it comes again after five minutes.
	q.Failed(it, []string{"X"}, hints, false, at(time.Minute))
	pop(t, q, at(5*time.Minute), "")
	pop(t, q, at(6*time.Minute+30*time.Second), "p")
}

func TestGate(t *testing.T) {
	q := New(func(p *corev1.Pod) *framework.Status {
		if len(p.Spec.SchedulingGates) > 0 {
			return framework.NewStatus(framework.Unresolvable, "G", "gated")
		}
		return nil
	})
	p := pod("p", 0)
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	if st := q.Add(p, at(0)); st == nil {
		t.Error("a gated pod was let in")
	}
	q.Event(framework.Event{Kind: framework.NodeAdd, Node: &corev1.Node{}}, at(time.Hour))
	pop(t, q, at(time.Hour), "")
	q.Update(pod("p", 0), at(time.Hour))
	pop(t, q, at(time.Hour), "p")
}
