package podautoscaler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var now = epoch.Add(time.Hour)

// onePod requests 100m of CPU and has been ready for long; letters say what else is true of
// it: p pending, f failed, d being deleted, s started a moment ago and not ready.
func onePod(i int, what rune) *corev1.Pod {
	long := metav1.NewTime(now.Add(-30 * time.Minute))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *milli(100)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &long,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: long}}},
	}
	switch what {
	case 'p':
		p.Status.Phase = corev1.PodPending
	case 'f':
		p.Status.Phase = corev1.PodFailed
	case 'd':
		p.DeletionTimestamp = &long
	case 's':
		p.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-10 * time.Second)))
		p.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	return p
}

// pods are as many as there are letters; a pod of the letter m was not measured.
func podsAndSamples(letters string, each int64) ([]*corev1.Pod, map[string]sample) {
	var pods []*corev1.Pod
	samples := map[string]sample{}
	for i, l := range letters {
		p := onePod(i, l)
		pods = append(pods, p)
		if l != 'm' {
			samples[p.Name] = sample{at: now, window: time.Minute, milli: each}
		}
	}
	return pods, samples
}

// TestReplicas is about how pods that say nothing dampen a change of CPU utilization from a
// target of 50 percent.
func TestReplicas(t *testing.T) {
	for _, c := range []struct {
		why     string
		letters string
		each    int64
		want    int32
		err     string
	}{
		{why: "on target", letters: "rrrr", each: 50, want: 4},
		{why: "a tenth off is near enough", letters: "rrrrrrrrrr", each: 54, want: 10},
		{why: "more than a tenth is not", letters: "rrrrrrrrrr", each: 56, want: 12},
		{why: "twice the load, twice the pods", letters: "rrr", each: 100, want: 6},
		{why: "half the load, half the pods", letters: "rrrr", each: 25, want: 2},
		{why: "pods that are not measured count as idle when growing", letters: "rrmm", each: 150, want: 6},
		{why: "and as busy when shrinking", letters: "rrrm", each: 20, want: 4},
		{why: "never the other way round", letters: "rmmm", each: 100, want: 4},
		{why: "pods that wait count as idle when growing", letters: "rrpp", each: 150, want: 6},
		{why: "and not at all when shrinking", letters: "rrpp", each: 25, want: 1},
		{why: "what a pod burns to start is no load", letters: "rs", each: 200, want: 4},
		{why: "pods that end are not looked at", letters: "rrdf", each: 100, want: 4},
		{why: "nothing is known", letters: "ps", each: 100, err: errNoSamples.Error()},
		{why: "there are none", letters: "", err: errNoPods.Error()},
	} {
		t.Run(c.why, func(t *testing.T) {
			pods, samples := podsAndSamples(c.letters, c.each)
			calc := &calculator{pods: pods, tolerances: tolerances{0.1, 0.1}, settings: DefaultSettings(), now: now}
			n, _, _, err := calc.utilization(int32(len(pods)), 50, samples, corev1.ResourceCPU, "")
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || n != c.want {
				t.Errorf("%d replicas, %v; want %d", n, err, c.want)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	p := onePod(0, 'r')
	p.Spec.InitContainers = []corev1.Container{{Name: "setup"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *milli(20)}}}}
	whole := p.DeepCopy()
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *milli(500)}}
	for _, c := range []struct {
		pod       *corev1.Pod
		container string
		resource  corev1.ResourceName
		want      int64
		err       string
	}{
		{pod: p, resource: corev1.ResourceCPU, want: 120},
		{pod: p, container: "c", resource: corev1.ResourceCPU, want: 100},
		{pod: p, container: "sidecar", resource: corev1.ResourceCPU, want: 20},
		{pod: p, container: "setup", resource: corev1.ResourceCPU, err: "container setup not found in Pod p0"},
		{pod: p, resource: corev1.ResourceMemory, err: "missing request for memory in container c of Pod p0"},
		{pod: whole, resource: corev1.ResourceCPU, want: 500},
		{pod: whole, container: "c", resource: corev1.ResourceCPU, want: 100},
		{pod: whole, resource: corev1.ResourceMemory, err: "missing pod-level request for memory in Pod p0"},
	} {
		got, err := requestsOf([]*corev1.Pod{c.pod}, c.container, c.resource)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%q %s: error %v, want %s", c.container, c.resource, err, c.err)
			}
		} else if err != nil || got["p0"] != c.want {
			t.Errorf("%q %s: %v, %v; want %d", c.container, c.resource, got, err, c.want)
		}
	}
}

// TestExternal is about one value, which says something without pods too (KEP-2021).
func TestExternal(t *testing.T) {
	each := autoscalingv2.MetricTarget{AverageValue: milli(10_000)}
	whole := autoscalingv2.MetricTarget{Value: milli(10_000)}
	for _, c := range []struct {
		target      autoscalingv2.MetricTarget
		values      []int64
		wanted, has int32
		want        int32
		status      string
	}{
		{each, []int64{25_000, 10_000}, 2, 2, 4, "17500m"},
		{each, []int64{20_000}, 2, 2, 2, "10"},
		{each, []int64{30_000}, 0, 0, 3, "30"}, // the average of none is the whole
		{each, []int64{0}, 3, 3, 0, "0"},
		{each, []int64{1 << 62, 1 << 62}, 1, 1, 1<<31 - 1, "9223372036854775807m"},
		{whole, []int64{25_000}, 2, 2, 5, "25"},
		{whole, []int64{25_000}, 0, 0, 3, "25"},
	} {
		pods, _ := podsAndSamples(strings.Repeat("r", int(c.has)), 0)
		calc := &calculator{pods: pods, tolerances: tolerances{0.1, 0.1}, settings: DefaultSettings(), now: now}
		p := calc.propose(&autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "q"}, Target: c.target}}, reading{values: c.values}, "ns", c.wanted, c.has)
		if p.failure != nil {
			t.Errorf("%v of %d: %v", c.values, c.has, p.failure.err)
			continue
		}
		var shown *resource.Quantity
		if shown = p.status.External.Current.Value; shown == nil {
			shown = p.status.External.Current.AverageValue
		}
		if p.replicas != c.want || shown.String() != c.status {
			t.Errorf("%v of %d: %d replicas, status %s; want %d, %s", c.values, c.has, p.replicas, shown, c.want, c.status)
		}
	}
}

// TestBehavior scales by turns with virtual time: each entry is what metrics want, at which
// second, and what comes of it.
func TestBehavior(t *testing.T) {
	type at struct {
		second       int
		wants, gives int32
		limited      string
	}
	rule := func(window int32, choice autoscalingv2.ScalingPolicySelect, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &choice, Policies: policies}
	}
	podsPer := func(n, seconds int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: seconds}
	}
	percentPer := func(n, seconds int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: seconds}
	}
	const most, least, off = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect
	for _, c := range []struct {
		why      string
		behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
		from     int32
		steps    []at
	}{
		{"without a behavior: twice as many or four, and five minutes before it shrinks", nil, 1, []at{
			{0, 30, 4, "ScaleUpLimit"}, {15, 30, 8, "ScaleUpLimit"}, {30, 5, 16, "ScaleUpLimit"}, {314, 5, 20, "TooManyReplicas"}, {316, 5, 5, "DesiredWithinRange"}, {630, 0, 2, "TooFewReplicas"}}},
		{"pods a minute", &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rule(0, most, podsPer(2, 60)), ScaleDown: rule(0, most, podsPer(1, 60))}, 4, []at{
			{0, 20, 6, "ScaleUpLimit"}, {15, 20, 6, "ScaleUpLimit"}, {61, 20, 8, "ScaleUpLimit"}, {122, 2, 7, "ScaleDownLimit"}, {137, 2, 7, "ScaleDownLimit"}, {183, 2, 6, "ScaleDownLimit"}}},
		{"the policy of least change", &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rule(0, least, podsPer(4, 15), percentPer(50, 15)), ScaleDown: rule(0, least, podsPer(4, 15), percentPer(50, 15))}, 4, []at{
			{0, 20, 6, "ScaleUpLimit"}, {16, 20, 9, "ScaleUpLimit"}, {32, 2, 5, "ScaleDownLimit"}, {48, 2, 2, "DesiredWithinRange"}}},
		{"shrinking is off", &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rule(0, most, percentPer(100, 15)), ScaleDown: rule(0, off, podsPer(1, 15))}, 10, []at{
			{0, 2, 10, "ScaleDownLimit"}, {600, 2, 10, "ScaleDownLimit"}}},
		{"a window before it grows", &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rule(60, most, percentPer(900, 15)), ScaleDown: rule(0, most, percentPer(100, 15))}, 5, []at{
			{0, 15, 5, "DesiredWithinRange"}, {30, 12, 5, "DesiredWithinRange"}, {61, 15, 12, "DesiredWithinRange"}, {76, 7, 7, "DesiredWithinRange"}}},
		{"an object that was not completed", &autoscalingv2.HorizontalPodAutoscalerBehavior{}, 2, []at{
			{0, 20, 6, "ScaleUpLimit"}, {15, 3, 6, "DesiredWithinRange"}, {301, 3, 3, "DesiredWithinRange"}}},
	} {
		t.Run(c.why, func(t *testing.T) {
			a := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: ptr.To[int32](2), MaxReplicas: 20, Behavior: c.behavior}}
			if c.behavior == nil {
				a.Spec.MinReplicas = ptr.To[int32](2)
			}
			h, size := &history{}, c.from
			h.begin(size, epoch)
			for _, s := range c.steps {
				p := newPass(a, h, DefaultSettings(), epoch.Add(time.Duration(s.second)*time.Second))
				p.scale = &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: size}}
				p.normalize(proposal{replicas: s.wants})
				if p.rescale {
					p.rescaled(nil)
				}
				if cond := condition(&p.status, autoscalingv2.ScalingLimited); p.desired != s.gives || cond.Reason != s.limited {
					t.Fatalf("second %d: %d wanted %d: got %d, %s; want %d, %s", s.second, size, s.wants, p.desired, cond.Reason, s.gives, s.limited)
				}
				size = p.desired
			}
		})
	}
}

// TestZero is about who scaled a target to zero.
func TestZero(t *testing.T) {
	queue := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{AverageValue: milli(1000)}}}
	a := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: ptr.To[int32](0), MaxReplicas: 5, Metrics: []autoscalingv2.MetricSpec{queue},
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)}}}}
	h := &history{}
	at := epoch
	step := func(size int32, waiting int64) *pass {
		at = at.Add(15 * time.Second)
		p := newPass(a, h, DefaultSettings(), at)
		if p.found(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: size}, Status: autoscalingv1.ScaleStatus{Replicas: size}}) {
			if err := p.weigh(nil, []reading{{values: []int64{waiting}}}); err != nil {
				t.Fatal(err)
			}
		}
		if p.rescale {
			p.rescaled(nil)
		} else {
			p.kept()
		}
		a.Status = p.status
		return p
	}
	if p := step(0, 3000); p.rescale {
		t.Errorf("a person scaled it to zero, and it was scaled to %d", p.desired)
	} else if c := condition(&a.Status, autoscalingv2.ScalingActive); c.Reason != "ScalingDisabled" {
		t.Errorf("condition %+v", c)
	}
	if p := step(2, 0); !p.rescale || p.desired != 0 {
		t.Errorf("nothing waits: scaled %t to %d", p.rescale, p.desired)
	} else if c := condition(&a.Status, autoscalingv2.ScaledToZero); c.Status != corev1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	if p := step(0, 0); p.rescale {
		t.Errorf("nothing waits: scaled to %d", p.desired)
	}
	if p := step(0, 2500); !p.rescale || p.desired != 3 {
		t.Errorf("work waits: scaled %t to %d", p.rescale, p.desired)
	} else if c := condition(&a.Status, autoscalingv2.ScaledToZero); c.Status != corev1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
}

func TestSettings(t *testing.T) {
	for want, s := range map[string]Settings{
		"--horizontal-pod-autoscaler-sync-period": {Tolerance: 0.1},
		"--horizontal-pod-autoscaler-tolerance":   {SyncPeriod: time.Second, Tolerance: -1},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
	if err := DefaultSettings().Validate(); err != nil {
		t.Error(err)
	}
}
