package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// Pod is a pod with what scheduling asks about it, computed once.
type Pod struct {
	*corev1.Pod
	Requests                  Resources
	NonzeroCPU, NonzeroMemory int64 // as scoring counts them, see podfit.NonzeroRequests
	Ports                     []podfit.HostPort
	Priority                  int32

	RequiredAffinity, RequiredAntiAffinity   []Term
	PreferredAffinity, PreferredAntiAffinity []Term
}

// Term is a compiled pod (anti-)affinity term.
type Term struct {
	Selector          labels.Selector
	Namespaces        map[string]struct{}
	NamespaceSelector labels.Selector
	TopologyKey       string
	Weight            int64
}

// Matches reports whether the term selects a pod, given its namespace's labels.
func (t *Term) Matches(p *Pod, namespaceLabels labels.Set) bool {
	if _, ok := t.Namespaces[p.Namespace]; !ok && (t.NamespaceSelector == nil || !t.NamespaceSelector.Matches(namespaceLabels)) {
		return false
	}
	return t.Selector.Matches(labels.Set(p.Labels))
}

// NewPod reads a pod.
func NewPod(p *corev1.Pod) *Pod {
	q := &Pod{Pod: p, Requests: ResourcesOf(podfit.Requests(p)), Ports: podfit.HostPorts(&p.Spec)}
	if complete(&p.Spec) {
		q.NonzeroCPU, q.NonzeroMemory = q.Requests.MilliCPU, q.Requests.Memory
	} else {
		q.NonzeroCPU, q.NonzeroMemory = podfit.NonzeroRequests(p)
	}
	if p.Spec.Priority != nil {
		q.Priority = *p.Spec.Priority
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			q.RequiredAffinity = terms(p, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
			q.PreferredAffinity = weighted(p, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			q.RequiredAntiAffinity = terms(p, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
			q.PreferredAntiAffinity = weighted(p, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return q
}

// complete reports whether all containers request CPU and memory, so that no defaults
// apply when scores are computed.
func complete(spec *corev1.PodSpec) bool {
	for _, list := range [2][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			r := list[i].Resources.Requests
			_, cpu := r[corev1.ResourceCPU]
			_, memory := r[corev1.ResourceMemory]
			if !cpu || !memory {
				return false
			}
		}
	}
	return true
}

func terms(p *corev1.Pod, in []corev1.PodAffinityTerm) []Term {
	var out []Term
	for i := range in {
		out = append(out, term(p, &in[i], 0))
	}
	return out
}

func weighted(p *corev1.Pod, in []corev1.WeightedPodAffinityTerm) []Term {
	var out []Term
	for i := range in {
		out = append(out, term(p, &in[i].PodAffinityTerm, int64(in[i].Weight)))
	}
	return out
}

func term(p *corev1.Pod, in *corev1.PodAffinityTerm, weight int64) Term {
	t := Term{Selector: labels.Nothing(), TopologyKey: in.TopologyKey, Weight: weight, Namespaces: map[string]struct{}{}}
	if s, err := metav1.LabelSelectorAsSelector(in.LabelSelector); err == nil {
		t.Selector = s // matchLabelKeys were merged into it by the API server (KEP-3633)
	}
	if in.NamespaceSelector != nil {
		if s, err := metav1.LabelSelectorAsSelector(in.NamespaceSelector); err == nil {
			t.NamespaceSelector = s
		}
	}
	for _, ns := range in.Namespaces {
		t.Namespaces[ns] = struct{}{}
	}
	if len(in.Namespaces) == 0 && in.NamespaceSelector == nil {
		t.Namespaces[p.Namespace] = struct{}{}
	}
	return t
}

// hasAffinity: other pods' placement depends on this one being here.
func (p *Pod) hasAffinity() bool {
	return len(p.RequiredAffinity)+len(p.PreferredAffinity)+len(p.PreferredAntiAffinity)+len(p.RequiredAntiAffinity) > 0
}
