package statefulset

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

var podName = regexp.MustCompile(`^(.*)-([0-9]+)$`)

// ordinalOf reads a pod's set and ordinal off its name; -1 when it has none.
func ordinalOf(p *corev1.Pod) (set string, ordinal int) {
	m := podName.FindStringSubmatch(p.Name)
	if m == nil {
		return "", -1
	}
	n, err := strconv.ParseInt(m[2], 10, 32)
	if err != nil {
		return "", -1
	}
	return m[1], int(n)
}

func startOrdinal(s *appsv1.StatefulSet) int {
	if s.Spec.Ordinals != nil {
		return int(s.Spec.Ordinals.Start)
	}
	return 0
}

func replicas(s *appsv1.StatefulSet) int {
	if s.Spec.Replicas == nil {
		return 1
	}
	return int(*s.Spec.Replicas)
}

func nameOf(s *appsv1.StatefulSet, ordinal int) string { return fmt.Sprintf("%s-%d", s.Name, ordinal) }

func claimName(s *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template.Name, s.Name, ordinal)
}

func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.ControllerRevisionHashLabelKey] }

// newPod makes the pod of an ordinal from a revision's template.
func newPod(s *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, ordinal int) *corev1.Pod {
	p := ownership.NewPod(template, s.Namespace, s.Name, metav1.NewControllerRef(s, gvk))
	p.GenerateName = ""
	p.Spec.Hostname, p.Spec.Subdomain = nameOf(s, ordinal), s.Spec.ServiceName
	identify(s, p, ordinal)
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
	mount(s, p, ordinal)
	return p
}

// identify gives a pod its name and labels.
func identify(s *appsv1.StatefulSet, p *corev1.Pod, ordinal int) {
	p.Name, p.Namespace = nameOf(s, ordinal), s.Namespace
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// identified reports whether a pod has all that identify gives.
func identified(s *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	return p.Labels[appsv1.StatefulSetPodNameLabel] == nameOf(s, ordinal) && p.Labels[appsv1.PodIndexLabel] == strconv.Itoa(ordinal)
}

// mount points the volumes of claim templates at the ordinal's claims.
func mount(s *appsv1.StatefulSet, p *corev1.Pod, ordinal int) {
	for i := range s.Spec.VolumeClaimTemplates {
		t := &s.Spec.VolumeClaimTemplates[i]
		v := corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(s, t, ordinal)}}}
		if j := slices.IndexFunc(p.Spec.Volumes, func(x corev1.Volume) bool { return x.Name == t.Name }); j >= 0 {
			p.Spec.Volumes[j] = v
		} else {
			p.Spec.Volumes = append(p.Spec.Volumes, v)
		}
	}
}

// claims are an ordinal's claims.
func claims(s *appsv1.StatefulSet, ordinal int) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range s.Spec.VolumeClaimTemplates {
		c := s.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(s, &s.Spec.VolumeClaimTemplates[i], ordinal), s.Namespace
		c.Labels = maps.Clone(c.Labels)
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		if s.Spec.Selector != nil {
			maps.Copy(c.Labels, s.Spec.Selector.MatchLabels)
		}
		out = append(out, c)
	}
	return out
}

// claimOwners are the owner references that the retention policy wants on an ordinal's
// claims: the set's for deletion with the set, the pod's for deletion when scaled down.
// Others stay as they are.
func claimOwners(s *appsv1.StatefulSet, pod *corev1.Pod, condemned bool, have []metav1.OwnerReference) ([]metav1.OwnerReference, bool) {
	policy := s.Spec.PersistentVolumeClaimRetentionPolicy
	whenDeleted, whenScaled := appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if policy != nil {
		whenDeleted, whenScaled = policy.WhenDeleted, policy.WhenScaled
	}
	wantSet := whenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	wantPod := whenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType && condemned
	if wantPod {
		wantSet = false
	}
	next := slices.DeleteFunc(slices.Clone(have), func(r metav1.OwnerReference) bool {
		return r.UID == s.UID && !wantSet || pod != nil && r.UID == pod.UID && !wantPod
	})
	changed := len(next) != len(have)
	add := func(kind metav1.OwnerReference) {
		if !slices.ContainsFunc(next, func(r metav1.OwnerReference) bool { return r.UID == kind.UID }) {
			next = append(next, kind)
			changed = true
		}
	}
	if wantSet {
		add(*metav1.NewControllerRef(s, gvk))
	}
	if wantPod && pod != nil && pod.UID != "" {
		add(metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	}
	return next, changed
}
