package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func (l *lab) pick(of ...string) string { return of[l.rnd.IntN(len(of))] }

func (l *lab) node(name string) *corev1.Node {
	n := testNode(name, func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelHostname: name}
		for _, k := range []string{corev1.LabelTopologyZone, "rack"} {
			if v := l.pick("", "1", "2"); v != "" {
				n.Labels[k] = v
			}
		}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(l.pick("1", "2", "4")), corev1.ResourceMemory: resource.MustParse(l.pick("2Gi", "8Gi")),
			corev1.ResourcePods: resource.MustParse(l.pick("2", "5", "10")), "example.com/gpu": resource.MustParse(l.pick("0", "1", "2"))}
		n.Status.Capacity = n.Status.Allocatable
		if l.rnd.IntN(3) == 0 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "k", Effect: corev1.TaintEffect(l.pick("NoSchedule", "NoExecute", "PreferNoSchedule"))})
		}
		if l.rnd.IntN(6) == 0 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule})
		}
		n.Spec.Unschedulable = l.rnd.IntN(8) == 0
		// An image has the same size on all nodes: upstream remembers but one.
		for image, size := range map[string]int64{"i:1": 400 << 20, "big:1": 1300 << 20} {
			if l.rnd.IntN(2) == 0 {
				n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image}, SizeBytes: size})
			}
		}
	})
	return n
}

func (l *lab) selector() *metav1.LabelSelector {
	switch l.rnd.IntN(6) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{l.pick("app", "tier"): l.pick("x", "y")}}
}

func (l *lab) term() corev1.PodAffinityTerm {
	term := corev1.PodAffinityTerm{LabelSelector: l.selector(), TopologyKey: l.pick(corev1.LabelHostname, corev1.LabelTopologyZone, "rack")}
	switch l.rnd.IntN(5) {
	case 0:
		term.Namespaces = []string{l.pick("ns", "other")}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": l.pick("a", "b")}}
	case 2:
		term.NamespaceSelector = &metav1.LabelSelector{}
	}
	switch l.rnd.IntN(6) {
	case 0:
		term.MatchLabelKeys = []string{"rev"}
	case 1:
		term.MismatchLabelKeys = []string{"rev"}
	}
	return term
}

func (l *lab) pod() *corev1.Pod {
	l.serial++
	p := testPod(fmt.Sprint("p", l.serial), l.pick("", "250m", "500m", "1", "2"), l.pick("", "512Mi", "1Gi"))
	p.UID, p.CreationTimestamp, p.Status = "", metav1.Time{}, corev1.PodStatus{}
	p.Namespace = l.pick("ns", "ns", "other", "third")
	p.Labels = map[string]string{}
	for _, k := range []string{"app", "tier", "rev"} {
		if v := l.pick("", "x", "y"); v != "" {
			p.Labels[k] = v
		}
	}
	p.Spec.PriorityClassName = l.classes[l.rnd.IntN(len(l.classes))]
	c := &p.Spec.Containers[0]
	c.Image = l.pick("i:1", "big:1", "none:1")
	if l.rnd.IntN(5) == 0 {
		c.Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		c.Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	}
	if l.rnd.IntN(6) == 0 {
		c.Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80, HostIP: l.pick("", "10.0.0.1", "10.0.0.2")}}
	}
	if l.rnd.IntN(6) == 0 {
		p.Spec.Overhead = nil
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	}
	l.affinities(p)
	if l.rnd.IntN(3) == 0 {
		p.Spec.Tolerations = []corev1.Toleration{{Key: l.pick("k", "soft", corev1.TaintNodeUnschedulable), Operator: corev1.TolerationOpExists}}
	}
	if l.rnd.IntN(3) == 0 {
		l.spreads(p)
	}
	return p
}

func (l *lab) affinities(p *corev1.Pod) {
	a := &corev1.Affinity{}
	weighted := func() []corev1.WeightedPodAffinityTerm {
		return []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + l.rnd.IntN(100)), PodAffinityTerm: l.term()}}
	}
	if l.rnd.IntN(4) == 0 {
		a.PodAffinity = &corev1.PodAffinity{}
		if l.rnd.IntN(2) == 0 {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{l.term()}
		} else {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = weighted()
		}
	}
	if l.rnd.IntN(4) == 0 {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		if l.rnd.IntN(2) == 0 {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{l.term(), l.term()}[:1+l.rnd.IntN(2)]
		} else {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = weighted()
		}
	}
	requirement := func() corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: l.pick(corev1.LabelTopologyZone, "rack"), Operator: corev1.NodeSelectorOperator(l.pick("In", "NotIn")), Values: []string{l.pick("1", "2")}}}}
	}
	if l.rnd.IntN(4) == 0 {
		a.NodeAffinity = &corev1.NodeAffinity{}
		if l.rnd.IntN(2) == 0 {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{requirement()}}
		} else {
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: int32(1 + l.rnd.IntN(100)), Preference: requirement()}}
		}
	}
	if a.PodAffinity != nil || a.PodAntiAffinity != nil || a.NodeAffinity != nil {
		p.Spec.Affinity = a
	}
	if l.rnd.IntN(8) == 0 {
		p.Spec.NodeSelector = map[string]string{l.pick(corev1.LabelTopologyZone, "rack"): l.pick("1", "2")}
	}
}

func (l *lab) spreads(p *corev1.Pod) {
	policy := func() *corev1.NodeInclusionPolicy {
		if l.rnd.IntN(3) == 0 {
			return nil
		}
		return ptr.To(corev1.NodeInclusionPolicy(l.pick("Honor", "Ignore")))
	}
	keys := []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}
	l.rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+l.rnd.IntN(2)] {
		c := corev1.TopologySpreadConstraint{MaxSkew: int32(1 + l.rnd.IntN(2)), TopologyKey: key, WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(l.pick("DoNotSchedule", "ScheduleAnyway")),
			LabelSelector: l.selector(), NodeAffinityPolicy: policy(), NodeTaintsPolicy: policy()}
		if c.WhenUnsatisfiable == corev1.DoNotSchedule && l.rnd.IntN(2) == 0 {
			c.MinDomains = ptr.To(int32(1 + l.rnd.IntN(3)))
		}
		if l.rnd.IntN(3) == 0 {
			c.MatchLabelKeys = []string{"rev"}
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

func (l *lab) describe(nodes []*corev1.Node, pods []*corev1.Pod) string {
	w := &world{nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}}
	for _, n := range nodes {
		w.nodes[n.Name] = n
	}
	for _, p := range pods {
		w.pods[p.Name] = p
	}
	return w.describe()
}
