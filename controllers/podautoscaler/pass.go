package podautoscaler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// pass is one look at an autoscaler. It decides and does nothing: the controller asks the
// API in between and tells it what it found.
type pass struct {
	of       *autoscalingv2.HorizontalPodAutoscaler // shared
	status   autoscalingv2.HorizontalPodAutoscalerStatus
	history  *history
	settings Settings
	now      time.Time

	bounds  bounds
	scale   *autoscalingv1.Scale
	rescale bool // to desired
	failed  bool // to decide
	desired int32
	why     string // of a change
	metrics []autoscalingv2.MetricStatus
	events  []event
}

type event struct{ kind, reason, message string }

func newPass(a *autoscalingv2.HorizontalPodAutoscaler, h *history, s Settings, now time.Time) *pass {
	return &pass{of: a, status: *a.Status.DeepCopy(), history: h, settings: s, now: now,
		bounds: bounds{ptr.Deref(a.Spec.MinReplicas, 1), a.Spec.MaxReplicas}}
}

// lost notes that the target's size cannot be told.
func (p *pass) lost(err error) {
	p.warn("FailedGetScale", err.Error())
	p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
}

// found notes the target's size, and reports whether metrics are to decide on the next one.
func (p *pass) found(scale *autoscalingv1.Scale) (ask bool) {
	p.scale = scale
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := scale.Spec.Replicas
	p.history.begin(current, p.now)
	switch {
	case current == 0:
		// Who scaled it to zero decides: a person wants it off, the autoscaler looks for work.
		if p.bounds.least != 0 && p.scaledToZero() || p.scaledToZero() && outside(p.of) {
			return true
		}
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	case current > p.bounds.most:
		p.rescale, p.desired, p.why = true, p.bounds.most, "Current number of replicas above Spec.MaxReplicas"
	case current < p.bounds.least:
		p.rescale, p.desired, p.why = true, p.bounds.least, "Current number of replicas below Spec.MinReplicas"
	default:
		return true
	}
	return false
}

// scaledToZero reports whether this autoscaler brought its target there (KEP-2021).
func (p *pass) scaledToZero() bool {
	c := condition(&p.status, autoscalingv2.ScaledToZero)
	return c != nil && c.Status == corev1.ConditionTrue
}

// outside reports whether a metric can be told without pods.
func outside(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(a.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// selector is the target's, by which its pods are found.
func (p *pass) selector() (labels.Selector, error) {
	text := p.scale.Status.Selector
	if text == "" {
		err := errors.New("selector is required")
		p.warn("SelectorRequired", err.Error())
		p.inactive("InvalidSelector", "the HPA target's scale is missing a selector")
		return nil, p.fail(err)
	}
	sel, err := labels.Parse(text)
	if err != nil {
		err = fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", err)
		p.warn("InvalidSelector", err.Error())
		p.inactive("InvalidSelector", err.Error())
		return nil, p.fail(err)
	}
	return sel, nil
}

// rivals notes that other autoscalers want the same pods.
func (p *pass) rivals(all []controller.Key) error {
	err := fmt.Errorf("pods by selector %v are controlled by more than one HPA (e.g. %v)", p.scale.Status.Selector, all)
	p.warn("AmbiguousSelector", err.Error())
	p.inactive("AmbiguousSelector", err.Error())
	return p.fail(err)
}

// weigh takes the highest of what metrics propose, and brings it into bounds. Some metrics
// may fail: then the target may grow, and does not shrink.
func (p *pass) weigh(pods []*corev1.Pod, readings []reading) error {
	c := &calculator{pods: pods, tolerances: tolerancesOf(p.of, p.settings.Tolerance), settings: p.settings, now: p.now}
	wanted, has := p.scale.Spec.Replicas, p.scale.Status.Replicas
	p.metrics = make([]autoscalingv2.MetricStatus, len(p.of.Spec.Metrics))
	var failures []*failure
	best := proposal{}
	for i := range p.of.Spec.Metrics {
		next := c.propose(&p.of.Spec.Metrics[i], readings[i], p.of.Namespace, wanted, has)
		if next.failure != nil {
			p.warn(next.failure.reason, next.failure.cause.Error())
			failures = append(failures, next.failure)
			continue
		}
		p.metrics[i] = next.status
		if best.replicas == 0 || next.replicas > best.replicas {
			best = next
		}
	}
	var err error
	if len(failures) > 0 {
		first := failures[0]
		err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", len(failures), len(p.metrics), first.err)
		if len(failures) >= len(p.metrics) || best.replicas < wanted {
			p.inactive(first.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.cause))
			return p.fail(err)
		}
	}
	p.set(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+best.metric)
	p.normalize(best)
	return err
}

// normalize brings a proposal into bounds, without haste.
func (p *pass) normalize(best proposal) {
	current, wanted := p.scale.Spec.Replicas, max(0, best.replicas)
	switch {
	case wanted > current:
		p.why = best.metric + " above target"
	case wanted < current:
		p.why = "All metrics below target"
	}
	var steady, limited verdict
	if b := p.of.Spec.Behavior; b == nil {
		steady = p.history.stabilize(wanted, p.settings.DownscaleStabilization, p.now)
		limited = p.bounds.clamp(current, steady.replicas)
	} else {
		steady = p.history.stabilizeBy(b, current, wanted, p.settings.DownscaleStabilization, p.now)
		limited = p.history.clampBy(b, p.bounds, current, steady.replicas, p.now)
	}
	if steady.replicas == wanted {
		steady.reason, steady.message = "ReadyForNewScale", "recommended size matches current size"
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, steady.reason, steady.message)
	is := corev1.ConditionTrue
	if limited.replicas == steady.replicas {
		is = corev1.ConditionFalse
	}
	p.set(autoscalingv2.ScalingLimited, is, limited.reason, limited.message)
	p.desired = limited.replicas
	if current == 0 && p.scaledToZero() && p.desired < p.bounds.least { // the least was raised meanwhile
		p.desired = p.bounds.least
		if p.why == "" {
			p.why = "Current number of replicas below Spec.MinReplicas"
		}
	}
	p.rescale = p.desired != current
}

// rescaled notes the outcome of a change of the target's size.
func (p *pass) rescaled(err error) {
	current := p.scale.Spec.Replicas
	if err != nil {
		p.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", p.desired, p.why, err))
		p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		p.fill(p.status.DesiredReplicas)
		return
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", p.desired))
	p.events = append(p.events, event{corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", p.desired, p.why)})
	p.history.resized(p.of.Spec.Behavior, current, p.desired, p.now)
	if current > 0 && p.desired == 0 && p.bounds.least == 0 && outside(p.of) {
		p.set(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		p.set(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
	}
	p.fill(p.desired)
	p.status.LastScaleTime = ptr.To(metav1.NewTime(p.now))
}

// kept notes that the target has the size that it should have.
func (p *pass) kept() { p.fill(p.scale.Spec.Replicas) }

// fail is kept, for want of a decision.
func (p *pass) fail(err error) error {
	p.failed = true
	p.fill(p.status.DesiredReplicas)
	p.warn("FailedComputeMetricsReplicas", err.Error())
	return fmt.Errorf("failed to compute desired number of replicas based on listed metrics: %w", err)
}

func (p *pass) fill(desired int32) {
	p.status.CurrentReplicas, p.status.DesiredReplicas = p.scale.Spec.Replicas, desired
	p.status.CurrentMetrics = p.metrics
	p.status.ObservedGeneration = ptr.To(p.of.Generation)
}

func (p *pass) warn(reason, message string) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, message})
}

func (p *pass) inactive(reason, message string) {
	p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, message)
}

func (p *pass) set(t autoscalingv2.HorizontalPodAutoscalerConditionType, is corev1.ConditionStatus, reason, message string) {
	c := condition(&p.status, t)
	if c == nil {
		p.status.Conditions = append(p.status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: t})
		c = &p.status.Conditions[len(p.status.Conditions)-1]
	}
	if c.Status != is {
		c.LastTransitionTime = metav1.NewTime(p.now)
	}
	c.Status, c.Reason, c.Message = is, reason, message
}

func condition(s *autoscalingv2.HorizontalPodAutoscalerStatus, t autoscalingv2.HorizontalPodAutoscalerConditionType) *autoscalingv2.HorizontalPodAutoscalerCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}
