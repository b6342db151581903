package podautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"
)

// sample is what one pod was measured to use, in thousandths.
type sample struct {
	at     time.Time
	window time.Duration
	milli  int64
}

// tolerances are how far a ratio of usage and target may be below and above 1.
type tolerances struct{ down, up float64 }

func tolerancesOf(a *autoscalingv2.HorizontalPodAutoscaler, otherwise float64) tolerances {
	t := tolerances{otherwise, otherwise}
	b := a.Spec.Behavior
	if b == nil {
		return t
	}
	if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
		t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
	}
	if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
		t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
	}
	return t
}

func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// calculator turns measured usage into numbers of replicas.
type calculator struct {
	pods       []*corev1.Pod // that the target's selector matches
	tolerances tolerances
	settings   Settings
	now        time.Time
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoSamples = errors.New("did not receive metrics for targeted pods (pods might be unready)")
)

// gauge compares samples with a target.
type gauge struct {
	ratio func(samples map[string]sample) (float64, error)
	// idle is what a pod without a sample counts as where the others use less than they
	// might: nothing is taken away on its account.
	idle func(pod string) int64
}

// utilization is how many replicas use target percent of what they request, with the
// utilization and the average usage there is.
func (c *calculator) utilization(current, target int32, samples map[string]sample, resource corev1.ResourceName, container string) (n, percent int32, usage int64, err error) {
	of, samples, err := c.counted(samples, resource)
	if err != nil {
		return 0, 0, 0, err
	}
	requests, err := requestsOf(c.pods, container, resource)
	if err != nil {
		return 0, 0, 0, err
	}
	first := true
	n, err = c.perPod(current, of, samples, gauge{
		ratio: func(samples map[string]sample) (float64, error) {
			var used, requested, count int64
			for name, s := range samples {
				if r, ok := requests[name]; ok {
					used, requested, count = used+s.milli, requested+r, count+1
				}
			}
			if requested == 0 {
				return 0, errors.New("no metrics returned matched known pods")
			}
			now := int32(used * 100 / requested)
			if first {
				first, percent, usage = false, now, used/count
			}
			return float64(now) / float64(target), nil
		},
		idle: func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 },
	})
	if err != nil {
		return 0, 0, 0, err
	}
	return n, percent, usage, nil
}

// average is how many replicas use target each, with the average there is. The resource is
// empty for metrics of other kinds.
func (c *calculator) average(current int32, target int64, samples map[string]sample, resource corev1.ResourceName) (n int32, usage int64, err error) {
	of, samples, err := c.counted(samples, resource)
	if err != nil {
		return 0, 0, err
	}
	first := true
	n, err = c.perPod(current, of, samples, gauge{
		ratio: func(samples map[string]sample) (float64, error) {
			var used int64
			for _, s := range samples {
				used += s.milli
			}
			now := used / int64(len(samples))
			if first {
				first, usage = false, now
			}
			return float64(now) / float64(target), nil
		},
		idle: func(string) int64 { return target },
	})
	return n, usage, err
}

// counted are the samples that say something: those of pods that end or start do not.
func (c *calculator) counted(samples map[string]sample, resource corev1.ResourceName) (groups, map[string]sample, error) {
	if len(c.pods) == 0 {
		return groups{}, nil, errNoPods
	}
	g := c.group(samples, resource)
	out := map[string]sample{}
	for name, s := range samples {
		if !g.ending[name] && !g.unready[name] {
			out[name] = s
		}
	}
	if len(out) == 0 {
		return groups{}, nil, errNoSamples
	}
	return g, out, nil
}

// perPod is the number of replicas by samples of pods. Pods that are not known well enough
// dampen the change, and never turn it round.
func (c *calculator) perPod(current int32, of groups, samples map[string]sample, g gauge) (int32, error) {
	ratio, err := g.ratio(samples)
	if err != nil {
		return 0, err
	}
	starting := len(of.unready) > 0 && ratio > 1
	if !starting && len(of.missing) == 0 {
		if c.tolerances.within(ratio) {
			return current, nil
		}
		return ceil(ratio * float64(of.ready)), nil
	}
	for name := range of.missing {
		switch {
		case ratio < 1:
			samples[name] = sample{milli: g.idle(name)}
		case ratio > 1:
			samples[name] = sample{}
		}
	}
	if starting {
		for name := range of.unready {
			samples[name] = sample{}
		}
	}
	dampened, err := g.ratio(samples)
	if err != nil {
		return 0, err
	}
	if c.tolerances.within(dampened) || ratio < 1 && dampened > 1 || ratio > 1 && dampened < 1 {
		return current, nil
	}
	n := ceil(dampened * float64(len(samples)))
	if dampened < 1 && n > current || dampened > 1 && n < current {
		return current, nil
	}
	return n, nil
}

// groups of pods by what their samples are worth.
type groups struct {
	ready                    int
	unready, missing, ending map[string]bool
}

func (c *calculator) group(samples map[string]sample, resource corev1.ResourceName) groups {
	g := groups{unready: map[string]bool{}, missing: map[string]bool{}, ending: map[string]bool{}}
	for _, p := range c.pods {
		s, measured := samples[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed:
			g.ending[p.Name] = true
		case p.Status.Phase == corev1.PodPending:
			g.unready[p.Name] = true
		case !measured:
			g.missing[p.Name] = true
		case resource == corev1.ResourceCPU && c.unready(p, s):
			g.unready[p.Name] = true
		default:
			g.ready++
		}
	}
	return g
}

// unready reports whether a pod's CPU says nothing yet: what it burns to start is not load.
func (c *calculator) unready(p *corev1.Pod, s sample) bool {
	cond := readiness(p)
	if cond == nil || p.Status.StartTime == nil {
		return true
	}
	since := cond.LastTransitionTime.Time
	if p.Status.StartTime.Add(c.settings.CPUInitialization).After(c.now) {
		return cond.Status == corev1.ConditionFalse || s.at.Before(since.Add(s.window))
	}
	return cond.Status == corev1.ConditionFalse && p.Status.StartTime.Add(c.settings.InitialReadiness).After(since)
}

func readiness(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// byRatio is the number of replicas by the ratio of one value and its target.
func (c *calculator) byRatio(current int32, ratio float64) (int32, error) {
	if current == 0 {
		return ceil(ratio), nil
	}
	if c.tolerances.within(ratio) {
		return current, nil
	}
	if len(c.pods) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	ready := 0
	for _, p := range c.pods {
		if cond := readiness(p); p.Status.Phase == corev1.PodRunning && cond != nil && cond.Status == corev1.ConditionTrue {
			ready++
		}
	}
	return ceil(ratio * float64(ready)), nil
}

// shared is the number of replicas that use target each of one value, with the average
// there is; while there are no replicas, that is the value.
func (c *calculator) shared(replicas int32, value, target int64) (int32, int64) {
	n := replicas
	if !c.tolerances.within(float64(value) / (float64(target) * float64(replicas))) {
		n = ceil(float64(value) / float64(target))
	}
	if value == math.MaxInt64 || replicas == 0 {
		return n, value
	}
	return n, int64(math.Ceil(float64(value) / float64(replicas)))
}

func ceil(n float64) int32 {
	if n >= math.MaxInt32 {
		return math.MaxInt32
	}
	return int32(math.Ceil(n))
}

// requestsOf are pods' requests of a resource, of one container if it is named.
func requestsOf(pods []*corev1.Pod, container string, resource corev1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(pods))
	for _, p := range pods {
		var err error
		// KEP-2837: what the pod requests as a whole counts for more than its containers.
		if container == "" && resourcehelpers.IsPodLevelRequestsSet(p) {
			q, ok := resourcehelpers.PodRequests(p, resourcehelpers.PodResourcesOptions{})[resource]
			if !ok {
				err = fmt.Errorf("missing pod-level request for %s in Pod %s", resource, p.Name)
			}
			out[p.Name] = q.MilliValue()
		} else {
			out[p.Name], err = containerRequests(p, container, resource)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func containerRequests(p *corev1.Pod, container string, resource corev1.ResourceName) (int64, error) {
	var sum int64
	request := func(c *corev1.Container) error {
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, p.Name)
		}
		sum += q.MilliValue()
		return nil
	}
	found := container == ""
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; container == "" || c.Name == container {
			found = true
			if err := request(c); err != nil {
				return 0, err
			}
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if sidecar && (container == "" || c.Name == container) {
			found = true
			if err := request(c); err != nil {
				return 0, err
			}
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}
