package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func pick[T any](w *world, of ...T) T { return of[w.rnd.IntN(len(of))] }

func (w *world) nodeLabels(name string) map[string]string {
	set := map[string]string{corev1.LabelHostname: name}
	for _, k := range []string{corev1.LabelTopologyZone, "rack"} {
		if v := pick(w, "", "1", "2"); v != "" {
			set[k] = v
		}
	}
	return set
}

func (w *world) taints() []corev1.Taint {
	if w.rnd.IntN(3) > 0 {
		return nil
	}
	return []corev1.Taint{{Key: "k", Effect: pick(w, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)}}
}

func (w *world) allocatable() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick(w, "1", "2", "4")), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse(pick(w, "1", "3", "10"))}
}

func (w *world) addNode() {
	w.serial++
	name := fmt.Sprint("node", w.serial)
	n := testNode(name, func(n *corev1.Node) {
		n.Labels, n.Status.Allocatable, n.Spec.Taints = w.nodeLabels(name), w.allocatable(), w.taints()
		n.Spec.Unschedulable = w.rnd.IntN(5) == 0
	})
	w.nodes[name] = n
	w.s.nodeChanged(nil, n, w.now)
}

func (w *world) podLabels() map[string]string {
	set := map[string]string{}
	for _, k := range []string{"app", "tier"} {
		if v := pick(w, "", "x", "y"); v != "" {
			set[k] = v
		}
	}
	return set
}

func (w *world) podSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{pick(w, "app", "tier"): pick(w, "x", "y")}}
}

func (w *world) terms() []corev1.PodAffinityTerm {
	var out []corev1.PodAffinityTerm
	for range 1 + w.rnd.IntN(2) {
		term := corev1.PodAffinityTerm{LabelSelector: w.podSelector(), TopologyKey: pick(w, corev1.LabelHostname, corev1.LabelTopologyZone, "rack")}
		switch w.rnd.IntN(4) {
		case 0:
			term.Namespaces = []string{pick(w, "ns", "other")}
		case 1:
			term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": pick(w, "ns", "other")}}
		case 2:
			term.NamespaceSelector = &metav1.LabelSelector{}
		}
		out = append(out, term)
	}
	return out
}

func (w *world) pod() *corev1.Pod {
	w.serial++
	name := fmt.Sprint("pod", w.serial)
	p := testPod(name, pick(w, "", "500m", "1", "3"), "")
	p.Namespace, p.UID = pick(w, "ns", "ns", "other"), types.UID(name)
	p.Labels = w.podLabels()
	p.Spec.Priority = ptr.To(int32(w.rnd.IntN(2)))
	affinity := &corev1.Affinity{}
	if w.rnd.IntN(4) == 0 {
		affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: w.terms()}
		p.Spec.Affinity = affinity
	}
	if w.rnd.IntN(4) == 0 {
		affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: w.terms()}
		p.Spec.Affinity = affinity
	}
	if w.rnd.IntN(5) == 0 {
		p.Spec.NodeSelector = map[string]string{pick(w, corev1.LabelTopologyZone, "rack"): pick(w, "1", "2")}
	}
	if w.rnd.IntN(3) == 0 {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	}
	if w.rnd.IntN(5) == 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80, HostIP: pick(w, "", "10.0.0.1", "10.0.0.2")}}
	}
	if w.rnd.IntN(3) == 0 {
		for range 1 + w.rnd.IntN(2) {
			policy := func() *corev1.NodeInclusionPolicy {
				return pick(w, nil, ptr.To(corev1.NodeInclusionPolicyHonor), ptr.To(corev1.NodeInclusionPolicyIgnore))
			}
			c := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: pick(w, corev1.LabelHostname, corev1.LabelTopologyZone, "rack"),
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: w.podSelector(), NodeAffinityPolicy: policy(), NodeTaintsPolicy: policy()}
			if w.rnd.IntN(3) == 0 {
				c.MinDomains = ptr.To(int32(2))
			}
			if w.rnd.IntN(3) == 0 {
				c.MatchLabelKeys = []string{"tier"}
			}
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
		}
	}
	return p
}

func (w *world) addPlaced() bool {
	nodes := slices.Sorted(maps.Keys(w.nodes))
	p := w.pod()
	p.Spec.NodeName = nodes[w.rnd.IntN(len(nodes))]
	w.pods[p.Name] = p
	w.s.podChanged(nil, p, w.now)
	return true
}

func (w *world) addWaiting() {
	p := w.pod()
	w.pods[p.Name] = p
	w.s.podChanged(nil, p, w.now)
}

func describe(p *corev1.Pod) string {
	return fmt.Sprintf("%s/%s on %q labels %v terminates %v priority %d requests %v image %s\n   affinity %v\n   spread %v\n   selector %v tolerations %v",
		p.Namespace, p.Name, p.Spec.NodeName, p.Labels, p.DeletionTimestamp != nil, ptr.Deref(p.Spec.Priority, 0), p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Image,
		p.Spec.Affinity, p.Spec.TopologySpreadConstraints, p.Spec.NodeSelector, p.Spec.Tolerations)
}

func (w *world) describe() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		fmt.Fprintf(&b, "node %s labels %v taints %v cordoned %v allocatable %v images %v\n", name, n.Labels, n.Spec.Taints, n.Spec.Unschedulable, n.Status.Allocatable, n.Status.Images)
	}
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		if p := w.pods[name]; p.Spec.NodeName != "" {
			b.WriteString("placed " + describe(p) + "\n")
		}
	}
	return b.String()
}
