package podautoscaler

import (
	"fmt"
	"math/rand/v2"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"
)

// dice makes random cases.
type dice struct{ *rand.Rand }

func (d dice) one(in int) bool { return d.IntN(in) == 0 }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// epoch is when a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func randomCase(seed uint64) oneCase {
	d := dice{rand.New(rand.NewPCG(seed, 3))}
	c := oneCase{Autoscaler: d.autoscaler("web")}
	replicas := int32(d.IntN(12))
	load := 1.0
	steps := 3 + d.IntN(10)
	if d.one(15) {
		steps = 40 // the default window ends
	}
	for i := range steps {
		s := step{Selector: "app=web", Errors: map[string]string{}}
		if i == 0 {
			s.Replicas = &replicas
		} else if d.one(12) {
			s.Replicas = ptr.To(int32(d.IntN(14)))
		}
		if i > 0 && d.one(10) {
			a := d.autoscaler("web")
			s.Autoscaler = &a
		}
		if i == 1 && d.one(12) {
			a := d.autoscaler("rival")
			s.Rival = &a
		}
		if d.one(30) {
			s.Selector = pick(d, "", "app in (", "app=other")
		}
		for _, what := range []string{"usage", "custom", "external", "get", "update"} {
			if d.one(18) {
				s.Errors[what] = "out of order: " + what
			}
		}
		if d.one(3) {
			load = pick(d, 0.1, 0.5, 0.8, 0.95, 1, 1.05, 1.2, 2, 5)
		}
		d.fill(&s, load, epoch.Add(time.Duration(i)*15*time.Second))
		c.Steps = append(c.Steps, s)
	}
	return c
}

func (d dice) autoscaler(name string) autoscalingv2.HorizontalPodAutoscaler {
	a := autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Generation: 1, UID: "uid-of-" + "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    pick(d, nil, ptr.To[int32](1), ptr.To[int32](2), ptr.To[int32](0), ptr.To(int32(d.IntN(5)))),
			MaxReplicas:    int32(5 + d.IntN(15)),
		},
	}
	if d.one(40) {
		a.Spec.ScaleTargetRef.APIVersion = "apps/v1/beta/2"
	}
	for range 1 + d.IntN(1+d.IntN(3)) {
		a.Spec.Metrics = append(a.Spec.Metrics, d.metric())
	}
	if d.one(2) {
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   d.rules(ptr.To(int32(pick(d, 0, 0, 15, 30, 60)))),
			ScaleDown: d.rules(pick(d, nil, ptr.To[int32](0), ptr.To[int32](15), ptr.To[int32](45))),
		}
	}
	return a
}

func (d dice) rules(window *int32) *autoscalingv2.HPAScalingRules {
	r := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: window,
		SelectPolicy: ptr.To(pick(d, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect))}
	for range 1 + d.IntN(3) {
		p := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: int32(1 + d.IntN(5)), PeriodSeconds: int32(pick(d, 15, 30, 45, 60, 20))}
		if d.one(2) {
			p.Type, p.Value = autoscalingv2.PercentScalingPolicy, int32(pick(d, 10, 25, 50, 100, 200))
		}
		r.Policies = append(r.Policies, p)
	}
	if d.one(3) {
		r.Tolerance = ptr.To(resource.MustParse(pick(d, "0", "0.05", "0.3", "1")))
	}
	return r
}

func (d dice) metric() autoscalingv2.MetricSpec {
	name := pick(d, corev1.ResourceCPU, corev1.ResourceCPU, corev1.ResourceMemory)
	target := func() autoscalingv2.MetricTarget {
		if d.one(2) {
			return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(pick(d, 30, 50, 80, 100, 150)))}
		}
		return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewMilliQuantity(int64(pick(d, 50, 100, 333)), resource.DecimalSI)}
	}
	id := autoscalingv2.MetricIdentifier{Name: pick(d, "requests", "queue", "none")}
	if d.one(4) {
		id.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"verb": "GET"}}
	}
	if d.one(40) {
		id.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "verb", Operator: "Near"}}}
	}
	value := func() autoscalingv2.MetricTarget {
		q := resource.NewMilliQuantity(int64(pick(d, 100, 1000, 5000)), resource.DecimalSI)
		if d.one(2) {
			return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: q}
		}
		return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: q}
	}
	switch d.IntN(6) {
	case 0:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, Metric: id, Target: value()}}
	case 1:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id, Target: value()}}
	case 2:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewMilliQuantity(int64(pick(d, 100, 1000)), resource.DecimalSI)}}}
	case 3:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: name, Container: pick(d, "app", "app", "sidecar", "nobody"), Target: target()}}
	default:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: name, Target: target()}}
	}
}

// fill makes the pods of a step and what is measured then.
func (d dice) fill(s *step, load float64, now time.Time) {
	n := d.IntN(9)
	s.Has = int32(n)
	faulty := -1
	if d.one(25) && n > 0 {
		faulty = d.IntN(n)
	}
	s.OfPods, s.Objects, s.External = map[string][]custommetrics.MetricValue{}, map[string]int64{}, map[string][]int64{}
	for i := range n {
		p := d.pod(fmt.Sprint("web-", i), now)
		if i == faulty {
			delete(p.Spec.Containers[0].Resources.Requests, corev1.ResourceCPU)
		}
		s.Pods = append(s.Pods, p)
		if d.one(8) {
			continue // not measured
		}
		at := metav1.NewTime(now.Add(-time.Duration(d.IntN(60)) * time.Second))
		m := resourcemetrics.PodMetrics{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace, Labels: p.Labels}, Timestamp: at, Window: metav1.Duration{Duration: time.Duration(d.IntN(60)) * time.Second}}
		for _, c := range p.Spec.Containers {
			use := corev1.ResourceList{}
			if !d.one(60) {
				use[corev1.ResourceCPU] = *milli(int64(load * float64(60+d.IntN(80))))
			}
			use[corev1.ResourceMemory] = *milli(int64(load * float64(60+d.IntN(80))))
			m.Containers = append(m.Containers, resourcemetrics.ContainerMetrics{Name: c.Name, Usage: use})
		}
		s.Usage = append(s.Usage, m)
		for _, metric := range []string{"requests", "queue"} {
			v := custommetrics.MetricValue{DescribedObject: corev1.ObjectReference{Kind: "Pod", Name: p.Name}, Timestamp: at, Value: *milli(int64(load * float64(50+d.IntN(1500))))}
			if d.one(2) {
				v.WindowSeconds = ptr.To(int64(d.IntN(60)))
			}
			s.OfPods[metric] = append(s.OfPods[metric], v)
		}
	}
	for _, metric := range []string{"requests", "queue"} {
		if !d.one(6) {
			s.Objects[metric] = int64(load*float64(d.IntN(9000))) * int64(d.IntN(4))
		}
		for range d.IntN(4) {
			s.External[metric] = append(s.External[metric], int64(load*float64(d.IntN(9000))))
		}
	}
}

func (d dice) pod(name string, now time.Time) corev1.Pod {
	request := func() corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *milli(100), corev1.ResourceMemory: *milli(100)}}
	}
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: request()}}},
		Status:     corev1.PodStatus{Phase: pick(d, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodFailed)},
	}
	if d.one(5) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar", Resources: request()})
	} else if d.one(5) {
		p.Spec.InitContainers = []corev1.Container{{Name: "setup"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: request()}}
	}
	if d.one(15) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *milli(300), corev1.ResourceMemory: *milli(250)}}
	}
	started := now.Add(-time.Duration(d.IntN(600)) * time.Second)
	if !d.one(20) {
		p.Status.StartTime = ptr.To(metav1.NewTime(started))
	}
	if !d.one(20) {
		since := metav1.NewTime(started.Add(time.Duration(d.IntN(90)) * time.Second))
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: pick(d, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse), LastTransitionTime: since}}
	}
	if d.one(20) {
		p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(now)), []string{"skiff.dev/kept"}
	}
	return p
}
