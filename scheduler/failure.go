package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// failure is why an attempt found no node.
type failure struct {
	nodes    int
	pre      *framework.Status // PreFilter refused all nodes
	statuses []*framework.Status
	post     string
	err      error // ours, not the pod's
}

// rejectedBy lists the plugins that refused, each once.
func (f *failure) rejectedBy() []string {
	set := map[string]struct{}{}
	if f.pre != nil {
		set[f.pre.Plugin] = struct{}{}
	}
	var last *framework.Status
	for _, st := range f.statuses {
		if st != nil && st != last {
			set[st.Plugin] = struct{}{}
			last = st
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// message has upstream's form: 0/N nodes are available: <count reason, …>. <preemption>.
func (f *failure) message() string {
	if f.err != nil {
		return f.err.Error()
	}
	if f.nodes == 0 && f.pre == nil {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", f.nodes)
	if f.pre != nil {
		fmt.Fprintf(&b, " %s.", f.pre.Message())
	} else if parts := histogram(f.statuses); len(parts) > 0 {
		fmt.Fprintf(&b, " %s.", strings.Join(parts, ", "))
	}
	if f.post != "" {
		b.WriteString(" " + f.post)
	}
	return b.String()
}

// histogram counts reasons: "3 Insufficient cpu".
func histogram(statuses []*framework.Status) []string {
	byStatus := map[*framework.Status]int{}
	for _, st := range statuses {
		if st != nil {
			byStatus[st]++
		}
	}
	counts := map[string]int{}
	for st, n := range byStatus {
		for _, r := range st.Reasons {
			counts[r] += n
		}
	}
	parts := make([]string, 0, len(counts))
	for r, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(parts)
	return parts
}

// condition is the pod's PodScheduled after a failure.
func condition(p *corev1.Pod, reason, message string) corev1.PodCondition {
	return corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: p.Generation,
	}
}

// statusPatch is what tells a pod about its failure, or nil when it says so already.
// nominate: "" leaves the nomination alone, "-" clears it.
func statusPatch(p *corev1.Pod, c corev1.PodCondition, nominate string, now metav1.Time) ([]byte, error) {
	status := map[string]any{}
	i := slices.IndexFunc(p.Status.Conditions, func(x corev1.PodCondition) bool { return x.Type == c.Type })
	switch {
	case i < 0:
		c.LastTransitionTime = now
		status["conditions"] = []corev1.PodCondition{c}
	default:
		old := p.Status.Conditions[i]
		c.LastTransitionTime, c.LastProbeTime = old.LastTransitionTime, old.LastProbeTime
		if old.Status != c.Status {
			c.LastTransitionTime = now
		}
		if old != c {
			status["conditions"] = []corev1.PodCondition{c}
		}
	}
	switch {
	case nominate == "-" && p.Status.NominatedNodeName != "":
		status["nominatedNodeName"] = nil
	case nominate != "" && nominate != "-" && nominate != p.Status.NominatedNodeName:
		status["nominatedNodeName"] = nominate
	}
	if len(status) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encoding pod status: %w", err)
	}
	return body, nil
}

// tell writes a failure to the pod's status and events. It runs in a goroutine of its own.
func (s *Scheduler) tell(ctx context.Context, p *corev1.Pod, reason, message, nominate string) {
	s.events.Eventf(p, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", truncated(message))
	patch, err := statusPatch(p, condition(p, reason, message), nominate, metav1.NewTime(s.cfg.Clock.Now()))
	if err == nil && patch != nil {
		_, err = s.cfg.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.cfg.Logger.Warn("updating status of an unschedulable pod failed", "pod", p.Namespace+"/"+p.Name, "err", err)
	}
}

// truncated keeps a note within what an Event may hold.
func truncated(s string) string {
	const most = 1024
	if len(s) <= most {
		return s
	}
	return s[:most-len(" ...")] + " ..."
}
