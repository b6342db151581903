package disruption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestFill(t *testing.T) {
	now := time.Now()
	pods := func(ready, unready int) []*corev1.Pod {
		var all []*corev1.Pod
		for i := range ready + unready {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}}
			if i < ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			all = append(all, p)
		}
		return all
	}
	number, percent := func(n int32) *intstr.IntOrString { return ptr.To(intstr.FromInt32(n)) }, func(s string) *intstr.IntOrString { return ptr.To(intstr.FromString(s)) }
	tests := []struct {
		name               string
		minAvail, maxUnav  *intstr.IntOrString
		ready, unready     int
		scale              int32
		disrupted          map[string]time.Duration // by pod, how long ago
		expected, desired  int32
		healthy, disallows int32
		again              bool
	}{
		{"min 2 of 3", number(2), nil, 3, 0, 0, nil, 3, 2, 3, 1, false},
		{"min 2, one unready", number(2), nil, 2, 1, 0, nil, 3, 2, 2, 0, false},
		{"max 1 of 4", nil, number(1), 4, 0, 4, nil, 4, 3, 4, 1, false},
		{"max 1 while one is missing", nil, number(1), 3, 0, 4, nil, 4, 3, 3, 0, false},
		{"half, rounded up", percent("50%"), nil, 5, 0, 5, nil, 5, 3, 5, 2, false},
		{"max 30 % of 10", nil, percent("30%"), 10, 0, 10, nil, 10, 7, 10, 3, false},
		{"one is being evicted", number(1), nil, 3, 0, 0, map[string]time.Duration{"p0": time.Second}, 3, 1, 2, 1, true},
		{"it was not deleted after all", number(1), nil, 3, 0, 0, map[string]time.Duration{"p0": 3 * time.Minute}, 3, 1, 3, 2, false},
		{"nothing there", number(0), nil, 0, 0, 0, nil, 0, 0, 0, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: tt.minAvail, MaxUnavailable: tt.maxUnav}}
			for name, ago := range tt.disrupted {
				b.Status.DisruptedPods = map[string]metav1.Time{name: metav1.NewTime(now.Add(-ago))}
			}
			scales := map[types.UID]int32{}
			if tt.scale > 0 {
				scales["d"] = tt.scale
			}
			again, err := fill(b, pods(tt.ready, tt.unready), scales, now)
			if err != nil {
				t.Fatal(err)
			}
			st := b.Status
			if st.ExpectedPods != tt.expected || st.DesiredHealthy != tt.desired || st.CurrentHealthy != tt.healthy || st.DisruptionsAllowed != tt.disallows || (again > 0) != tt.again {
				t.Errorf("expected %d desired %d healthy %d allowed %d again %s; want %d %d %d %d %v", st.ExpectedPods, st.DesiredHealthy, st.CurrentHealthy, st.DisruptionsAllowed, again,
					tt.expected, tt.desired, tt.healthy, tt.disallows, tt.again)
			}
		})
	}
}
