package daemonset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const metadataName = "metadata.name"

// state is what one pass looks at.
type state struct {
	set   *appsv1.DaemonSet
	nodes []*corev1.Node
	pods  []*corev1.Pod // claimed
	hash  string        // of the current revision
	now   time.Time
	// retry is how long a failed pod of a node must stay, so as not to fight with a
	// kubelet that refuses it.
	retry func(node string) time.Duration
}

// plan is what one pass does.
type plan struct {
	create []string // nodes
	remove []*corev1.Pod
	failed []string // nodes whose failed pod goes
	events []event
	again  time.Duration
}

type event struct{ kind, reason, message string }

// nodeOf is the node that a pod is on or, pending, is meant for.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			if f.Key == metadataName && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// tolerations are what all daemon pods tolerate.
func tolerations(hostNetwork bool) []corev1.Toleration {
	t := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	all := []corev1.Toleration{
		t(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
		t(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
		t(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
		t(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
		t(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule),
		t(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
	}
	if hostNetwork {
		all = append(all, t(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
	}
	return all
}

// withTolerations adds those to a pod's own, replacing equal ones.
func withTolerations(own []corev1.Toleration, hostNetwork bool) []corev1.Toleration {
	all := slices.Clone(own)
	for _, t := range tolerations(hostNetwork) {
		i := slices.IndexFunc(all, func(o corev1.Toleration) bool {
			return o.Key == t.Key && o.Operator == t.Operator && o.Effect == t.Effect && o.Value == t.Value
		})
		if i < 0 {
			all = append(all, t)
		} else {
			all[i] = t
		}
	}
	return all
}

// belongs tells whether a node should get a pod, and whether one there may go on.
func belongs(set *appsv1.DaemonSet, n *corev1.Node) (run, stay bool) {
	spec := &set.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != n.Name || !podfit.MatchesNode(spec, n) {
		return false, false
	}
	tolerated := withTolerations(spec.Tolerations, spec.HostNetwork)
	if podfit.Untolerated(n.Spec.Taints, tolerated, corev1.TaintEffectNoExecute) != nil {
		return false, false
	}
	return podfit.Untolerated(n.Spec.Taints, tolerated, corev1.TaintEffectNoSchedule) == nil, true
}

// byAge sorts pods: scheduled ones first, then the oldest.
func byAge(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if (a.Spec.NodeName == "") != (b.Spec.NodeName == "") {
			if a.Spec.NodeName != "" {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// view is the state sorted by nodes.
type view struct {
	state
	plan   plan
	byNode map[string][]*corev1.Pod
	bounds bounds
}

type bounds struct{ desired, surge, unavailable int }

func (s state) sorted() *view {
	v := &view{state: s, byNode: map[string][]*corev1.Pod{}}
	for _, p := range s.pods {
		v.byNode[nodeOf(p)] = append(v.byNode[nodeOf(p)], p)
	}
	for _, n := range s.nodes {
		if run, _ := belongs(s.set, n); run {
			v.bounds.desired++
		}
	}
	if ru := s.set.Spec.UpdateStrategy.RollingUpdate; s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType && ru != nil {
		scaled := func(i *intstr.IntOrString) int {
			n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(i, intstr.FromInt32(0)), v.bounds.desired, true)
			if err != nil { // validation admits no such value
				return 0
			}
			return n
		}
		v.bounds.surge, v.bounds.unavailable = scaled(ru.MaxSurge), scaled(ru.MaxUnavailable)
	}
	if v.bounds.surge == 0 && v.bounds.unavailable == 0 {
		v.bounds.unavailable = 1
	}
	return v
}

// decide first keeps one pod on every node that should have one, then updates them.
func decide(s state) plan {
	v := s.sorted()
	for _, n := range s.nodes {
		v.keep(n)
	}
	known := map[string]bool{}
	for _, n := range s.nodes {
		known[n.Name] = true
	}
	for node, pods := range v.byNode { // pending for nodes that are gone
		if !known[node] {
			for _, p := range pods {
				if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
					v.plan.remove = append(v.plan.remove, p)
				}
			}
		}
	}
	if len(v.plan.create)+len(v.plan.remove) == 0 && s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if v.bounds.surge > 0 {
			v.surge()
		} else {
			v.replace()
		}
	}
	return v.plan
}

func (v *view) current(p *corev1.Pod) bool {
	return p.Labels[appsv1.ControllerRevisionHashLabelKey] == v.hash
}

func (v *view) available(p *corev1.Pod) bool {
	return ownership.AvailableIn(p, v.set.Spec.MinReadySeconds, v.now) == 0
}

func (v *view) note(kind, reason, format string, args ...any) {
	v.plan.events = append(v.plan.events, event{kind, reason, fmt.Sprintf(format, args...)})
}

// keep looks at one node.
func (v *view) keep(n *corev1.Node) {
	run, stay := belongs(v.set, n)
	pods := v.byNode[n.Name]
	switch {
	case run && len(pods) == 0:
		v.plan.create = append(v.plan.create, n.Name)
		return
	case !stay:
		for _, p := range pods {
			if p.DeletionTimestamp == nil {
				v.plan.remove = append(v.plan.remove, p)
			}
		}
		return
	}
	var running []*corev1.Pod
	for _, p := range pods {
		switch {
		case p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodFailed:
			if wait := v.retry(n.Name); wait > 0 {
				if v.plan.again == 0 || wait < v.plan.again {
					v.plan.again = wait
				}
				continue
			}
			v.plan.failed = append(v.plan.failed, n.Name)
			v.note(corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, n.Name)
			v.plan.remove = append(v.plan.remove, p)
		case p.Status.Phase == corev1.PodSucceeded:
			v.note(corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, n.Name)
			v.plan.remove = append(v.plan.remove, p)
		default:
			running = append(running, p)
		}
	}
	byAge(running)
	if v.bounds.surge == 0 {
		if len(running) > 1 {
			v.plan.remove = append(v.plan.remove, running[1:]...)
		}
		return
	}
	if len(running) == 0 && run {
		v.plan.create = append(v.plan.create, n.Name)
		return
	}
	v.keepTwo(running)
}

// keepTwo leaves, while surging, the oldest pod of the old revision and the oldest of the
// new; the old one goes when it is not ready or the new one is available.
func (v *view) keepTwo(running []*corev1.Pod) {
	var newPod, oldPod *corev1.Pod
	for _, p := range running {
		switch {
		case v.current(p) && newPod == nil:
			newPod = p
		case !v.current(p) && oldPod == nil:
			oldPod = p
		default:
			v.plan.remove = append(v.plan.remove, p)
		}
	}
	if newPod != nil && oldPod != nil && (!ownership.Ready(oldPod) || v.available(newPod)) {
		v.plan.remove = append(v.plan.remove, oldPod)
	}
}

// pair finds the one old and one new pod of a node; ok is false when there are more.
func (v *view) pair(pods []*corev1.Pod) (newPod, oldPod *corev1.Pod, ok bool) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		slot := &oldPod
		if v.current(p) {
			slot = &newPod
		}
		if *slot != nil {
			return nil, nil, false
		}
		*slot = p
	}
	return newPod, oldPod, true
}

// relevant are the nodes that have pods or should have, in order.
func (v *view) relevant() []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(v.nodes), func(n *corev1.Node) bool {
		run, _ := belongs(v.set, n)
		return !run && len(v.byNode[n.Name]) == 0
	})
}

// replace deletes old pods as far as maxUnavailable allows: unavailable ones are no loss.
func (v *view) replace() {
	unavailable := 0
	var candidates []*corev1.Pod
	for _, n := range v.relevant() {
		newPod, oldPod, ok := v.pair(v.byNode[n.Name])
		switch {
		case !ok, (oldPod == nil) == (newPod == nil):
			unavailable++
		case newPod != nil:
			if !v.available(newPod) {
				unavailable++
			}
		case !v.available(oldPod):
			v.plan.remove = append(v.plan.remove, oldPod)
			unavailable++
		default:
			candidates = append(candidates, oldPod)
		}
	}
	n := min(max(0, v.bounds.unavailable-unavailable), len(candidates))
	v.plan.remove = append(v.plan.remove, candidates[:n]...)
}

// surge makes new pods beside old ones, at most maxSurge at a time beside available ones.
func (v *view) surge() {
	surging, available := 0, 0
	var candidates []string
	var leaving []*corev1.Pod
	for _, n := range v.relevant() {
		newPod, oldPod, ok := v.pair(v.byNode[n.Name])
		if !ok {
			surging++
			continue
		}
		if oldPod != nil && v.available(oldPod) || oldPod == nil && newPod != nil && v.available(newPod) {
			available++
		}
		run, _ := belongs(v.set, n)
		switch {
		case oldPod == nil:
		case newPod != nil:
			if v.available(newPod) {
				v.plan.remove = append(v.plan.remove, oldPod)
			} else {
				surging++
			}
		case !run && !v.available(oldPod):
			v.plan.remove = append(v.plan.remove, oldPod)
		case !run:
			leaving = append(leaving, oldPod)
		case !v.available(oldPod):
			v.plan.create = append(v.plan.create, n.Name)
		default:
			candidates = append(candidates, n.Name)
		}
	}
	if spare := available - v.bounds.desired; spare > 0 {
		v.plan.remove = append(v.plan.remove, leaving[:min(spare, len(leaving))]...)
	}
	n := min(max(0, v.bounds.surge-surging), len(candidates))
	v.plan.create = append(v.plan.create, candidates[:n]...)
}

// statusOf counts. The duration is when a ready pod becomes available next, or 0.
func statusOf(s state) (appsv1.DaemonSetStatus, time.Duration) {
	st := appsv1.DaemonSetStatus{ObservedGeneration: s.set.Generation, CollisionCount: s.set.Status.CollisionCount, Conditions: s.set.Status.Conditions}
	v := s.sorted()
	var again time.Duration
	for _, n := range s.nodes {
		run, _ := belongs(s.set, n)
		pods := v.byNode[n.Name]
		switch {
		case !run && len(pods) > 0:
			st.NumberMisscheduled++
		case run:
			st.DesiredNumberScheduled++
			if len(pods) == 0 {
				continue
			}
			st.CurrentNumberScheduled++
			byAge(pods)
			if p := pods[0]; ownership.Ready(p) {
				st.NumberReady++
				if in := ownership.AvailableIn(p, s.set.Spec.MinReadySeconds, s.now); in == 0 {
					st.NumberAvailable++
				} else if again == 0 || in < again {
					again = in
				}
			}
			if v.current(pods[0]) {
				st.UpdatedNumberScheduled++
			}
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	return st, again
}
