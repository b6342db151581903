package statefulset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func newSet(n int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "ns", UID: "set"},
		Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(n), UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

// pods reads "0 1:old 2:old,sick 3:gone 4:failed": ordinals, then what is about them.
func pods(s *appsv1.StatefulSet, text string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, f := range strings.Fields(text) {
		o, marks, _ := strings.Cut(f, ":")
		var n int
		if _, err := fmt.Sscan(o, &n); err != nil {
			panic(err)
		}
		p := newPod(s, &corev1.PodTemplateSpec{}, "new", n)
		p.UID = types.UID(p.Name)
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, m := range strings.Split(marks, ",") {
			switch m {
			case "old":
				p.Labels[appsv1.ControllerRevisionHashLabelKey] = "old"
			case "sick":
				p.Status.Conditions = nil
			case "failed":
				p.Status.Phase = corev1.PodFailed
			case "gone":
				p.DeletionTimestamp = ptr.To(metav1.Now())
			case "renamed":
				p.Labels[appsv1.StatefulSetPodNameLabel] = "x"
			}
		}
		out = append(out, p)
	}
	return out
}

func TestDecide(t *testing.T) {
	partition := func(n int32) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To(n)}
		}
	}
	unavailable := func(n int32) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(n))}
		}
	}
	onDelete := func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }
	tests := []struct {
		name string
		set  *appsv1.StatefulSet
		pods string
		want string // "+1" make, "-1" remove, "~1" mend
	}{
		{"first", newSet(3), "", "+0"},
		{"second", newSet(3), "0", "+1"},
		{"waits for the first", newSet(3), "0:sick", ""},
		{"all at once", newSet(3, parallel), "", "+0 +1 +2"},
		{"a gap", newSet(3), "0 2", "+1"},
		{"ended is replaced", newSet(3), "0 1:failed 2", "-1"},
		{"going is waited for", newSet(3), "0 1:gone 2", ""},
		{"shrinks from the top", newSet(1), "0 1 2", "-2"},
		{"one at a time", newSet(1), "0 1 2:gone", ""},
		{"not while one below is sick", newSet(1), "0 1:sick 2", "-2"},
		{"not while it is sick itself, unless it is the first", newSet(1), "0 1:sick 2:sick", ""},
		{"shrinks all at once", newSet(1, parallel), "0 1 2", "-1 -2"},
		{"updates from the top", newSet(3), "0:old 1:old 2:old", "-2"},
		{"waits for the updated", newSet(3), "0:old 1:old 2:sick", ""},
		{"goes on", newSet(3), "0:old 1:old 2", "-1"},
		{"stops at the partition", newSet(3, partition(2)), "0:old 1:old 2", ""},
		{"two at a time", newSet(4, unavailable(2)), "0:old 1:old 2:old 3:old", "-2 -3"},
		{"parallel: the sick are no loss", newSet(3, parallel), "0:old,sick 1:old 2:old", "-0"},
		{"on delete", newSet(3, onDelete), "0:old 1:old 2:old", ""},
		{"identity is mended", newSet(2), "0:renamed 1", "~0"},
		{"ordinals start elsewhere", newSet(2, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }), "5", "+6"},
		{"being deleted", newSet(3, func(s *appsv1.StatefulSet) { s.DeletionTimestamp = ptr.To(metav1.Now()) }), "0", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := decide(state{set: tt.set, pods: pods(tt.set, tt.pods), current: "old", update: "new", now: time.Now()})
			var got []string
			for _, o := range p.create {
				got = append(got, fmt.Sprint("+", o))
			}
			for mark, list := range map[string][]*corev1.Pod{"-": p.remove, "~": p.fix} {
				for _, pod := range list {
					_, o := ordinalOf(pod)
					got = append(got, fmt.Sprint(mark, o))
				}
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("%q, want %q", s, tt.want)
			}
		})
	}
}

func TestClaimOwners(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", UID: "pod"}}
	policy := func(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
		}
	}
	const retain, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	other := metav1.OwnerReference{UID: "other"}
	setRef, podRef := metav1.OwnerReference{UID: "set"}, metav1.OwnerReference{UID: "pod"}
	tests := []struct {
		name      string
		set       *appsv1.StatefulSet
		condemned bool
		have      []metav1.OwnerReference
		want      string
		changed   bool
	}{
		{"kept", newSet(1), false, nil, "", false},
		{"others stay", newSet(1), false, []metav1.OwnerReference{other, setRef}, "other", true},
		{"with the set", newSet(1, policy(remove, retain)), false, nil, "set", true},
		{"with the set, already", newSet(1, policy(remove, retain)), false, []metav1.OwnerReference{setRef}, "set", false},
		{"with the pod, not yet", newSet(1, policy(retain, remove)), false, nil, "", false},
		{"with the pod", newSet(1, policy(remove, remove)), true, []metav1.OwnerReference{setRef}, "pod", true},
		{"back again", newSet(1, policy(remove, remove)), false, []metav1.OwnerReference{podRef}, "set", true},
	}
	for _, tt := range tests {
		got, changed := claimOwners(tt.set, pod, tt.condemned, tt.have)
		var names []string
		for _, r := range got {
			names = append(names, string(r.UID))
		}
		if s := strings.Join(names, " "); s != tt.want || changed != tt.changed {
			t.Errorf("%s: %q, changed %v; want %q, %v", tt.name, s, changed, tt.want, tt.changed)
		}
	}
}
