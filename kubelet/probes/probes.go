// Package probes runs the startup, liveness and readiness probes of containers
// and remembers their results by container.
//
// One goroutine keeps the time for all probes; another exists only while a probe
// runs. It decides nothing about pods: changed results wake whoever asked.
package probes

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind of probe.
type Kind int

const (
	Startup Kind = iota
	Liveness
	Readiness
)

func (k Kind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// Result of a probe.
type Result int

const (
	Unknown Result = iota
	Success
	Failure
)

// Target is a running container to probe.
type Target struct {
	ID        string // as the runtime knows it
	StartedAt time.Time
	Container *corev1.Container
	// Started and Ready are what the API last said of this very container: after a
	// restart of the kubelet they hold until probes say otherwise.
	Started, Ready bool
}

// Config of a Manager.
type Config struct {
	// Run carries out one probe. An error means that it could not be carried out,
	// which changes no result.
	Run func(ctx context.Context, pod *corev1.Pod, podIP string, t Target, p *corev1.Probe) (ok bool, output string, err error)
	// Changed is called when a result of a pod changed.
	Changed func(types.UID)
	// Unhealthy records a failure for the user.
	Unhealthy func(pod *corev1.Pod, c *corev1.Container, message string)
	Logger    *slog.Logger
}

// Manager is safe for concurrent use.
type Manager struct {
	cfg  Config
	wake chan struct{}

	mu    sync.Mutex
	pods  map[types.UID]map[key]*probe
	byID  map[string]map[Kind]*probe
	queue queue
	wg    sync.WaitGroup
}

type key struct {
	container string
	kind      Kind
}

type probe struct {
	key
	pod    *corev1.Pod
	podIP  string
	target Target
	spec   *corev1.Probe

	due     time.Time
	index   int // in the queue; -1: not queued
	running bool
	hold    bool // failed for good: the container is to be killed
	gone    bool

	result Result
	last   Result
	run    int // how often in a row

	first time.Time // when it ran first
	early int       // early tries made
}

// earlyTries are made soon after a container started, so that one which is up at
// once need not wait for a whole period. Their failures count for nothing.
const (
	earlyTries = 3
	earlyWait  = 100 * time.Millisecond
)

// mayTryEarly: startup and readiness probes of a container that just started and
// was never seen up.
func (p *probe) mayTryEarly() bool {
	return p.kind != Liveness && p.spec.InitialDelaySeconds == 0 && p.last == Unknown && p.early < earlyTries
}

// New makes a manager; probes run while Run does.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, wake: make(chan struct{}, 1), pods: map[types.UID]map[key]*probe{}, byID: map[string]map[Kind]*probe{}}
}

// Set says which containers of a pod run: their probes start, all others end.
// Terminating pods are probed for readiness only.
func (m *Manager) Set(pod *corev1.Pod, podIP string, targets []Target, terminating bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.pods[pod.UID]
	if len(targets) == 0 && old == nil {
		return
	}
	next := map[key]*probe{}
	for _, t := range targets {
		for _, k := range []Kind{Startup, Liveness, Readiness} {
			spec := specOf(t.Container, k)
			if spec == nil || terminating && k != Readiness {
				continue
			}
			id := key{t.Container.Name, k}
			if p := old[id]; p != nil && p.target.ID == t.ID {
				p.pod, p.podIP = pod, podIP
				next[id] = p
				continue
			}
			p := &probe{key: id, pod: pod, podIP: podIP, target: t, spec: spec, index: -1}
			switch {
			case k == Readiness && t.Ready, k == Startup && t.Started:
				p.result = Success
			case k == Readiness:
				p.result = Failure
			case k == Liveness:
				p.result = Success
			}
			if t.Started || t.Ready {
				p.early = earlyTries // it has been up for long
			}
			next[id] = p
			if m.byID[t.ID] == nil {
				m.byID[t.ID] = map[Kind]*probe{}
			}
			m.byID[t.ID][k] = p
			m.push(p, firstDue(p))
		}
	}
	for id, p := range old {
		if next[id] != p {
			m.drop(p)
		}
	}
	if len(next) == 0 {
		delete(m.pods, pod.UID)
		return
	}
	m.pods[pod.UID] = next
}

func specOf(c *corev1.Container, k Kind) *corev1.Probe {
	switch k {
	case Startup:
		return c.StartupProbe
	case Liveness:
		return c.LivenessProbe
	}
	return c.ReadinessProbe
}

func firstDue(p *probe) time.Time {
	return p.target.StartedAt.Add(time.Duration(p.spec.InitialDelaySeconds) * time.Second)
}

func (m *Manager) drop(p *probe) {
	p.gone = true
	if p.index >= 0 {
		heap.Remove(&m.queue, p.index)
	}
	if ps := m.byID[p.target.ID]; ps[p.kind] == p {
		if delete(ps, p.kind); len(ps) == 0 {
			delete(m.byID, p.target.ID)
		}
	}
}

// Remove ends all probes of a pod.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pods[uid] {
		m.drop(p)
	}
	delete(m.pods, uid)
}

// Result is what a container's probe last said: Unknown when it has no such probe,
// or a startup probe that has not succeeded yet.
func (m *Manager) Result(containerID string, k Kind) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.byID[containerID][k]; p != nil {
		return p.result
	}
	return Unknown
}

func (m *Manager) push(p *probe, due time.Time) {
	p.due = due
	if p.index < 0 {
		heap.Push(&m.queue, p)
	} else {
		heap.Fix(&m.queue, p.index)
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run keeps the time until the context ends and all running probes have.
func (m *Manager) Run(ctx context.Context) {
	defer m.wg.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(m.startDue(ctx))
		select {
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
			return
		}
	}
}

// startDue starts what is due and says how long nothing else is.
func (m *Manager) startDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.queue) > 0 {
		p := m.queue[0]
		now := time.Now()
		if wait := p.due.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&m.queue)
		if p.kind == Startup && p.result == Success {
			continue
		}
		if m.waits(p) {
			// After the container started its probes are pushed again.
			m.push(p, now.Add(period(p.spec)))
			continue
		}
		p.running = true
		pod, ip, target := p.pod, p.podIP, p.target
		m.wg.Add(1)
		go func() {
			defer m.wg.Done()
			m.execute(ctx, p, pod, ip, target)
		}()
	}
	return time.Hour
}

// waits: liveness and readiness begin once the startup probe succeeded.
func (m *Manager) waits(p *probe) bool {
	s := m.byID[p.target.ID][Startup]
	return p.kind != Startup && s != nil && s.result != Success
}

func (m *Manager) execute(ctx context.Context, p *probe, pod *corev1.Pod, ip string, target Target) {
	ctx, cancel := context.WithTimeout(ctx, max(time.Duration(p.spec.TimeoutSeconds)*time.Second, time.Second))
	begun := time.Now()
	ok, output, err := m.cfg.Run(ctx, pod, ip, target, p.spec)
	cancel()

	m.mu.Lock()
	p.running = false
	if p.gone {
		m.mu.Unlock()
		return
	}
	if p.first.IsZero() {
		p.first = begun
	}
	if !ok && p.mayTryEarly() {
		// 100, 300 and 700 ms after the first try, unless the period is over before.
		if due := begun.Add(earlyWait << p.early); due.Before(p.first.Add(period(p.spec))) {
			p.early++
			m.push(p, due)
			m.mu.Unlock()
			return
		}
	}
	changed := false
	if err == nil {
		changed = m.count(p, ok)
	}
	if !p.hold && !(p.kind == Startup && p.result == Success) {
		next := begun.Add(period(p.spec))
		if p.early > 0 {
			// Back to the beat of the first try.
			p.early = earlyTries
			if beat := p.first.Add(period(p.spec)); beat.After(begun) {
				next = beat
			}
		}
		m.push(p, next)
	}
	if changed && p.kind == Startup && p.result == Success {
		for k, other := range m.byID[p.target.ID] {
			if k != Startup && !other.running {
				m.push(other, time.Now())
			}
		}
	}
	m.mu.Unlock()

	switch {
	case err != nil:
		m.cfg.Unhealthy(pod, target.Container, fmt.Sprintf("%s probe errored: %v", p.kind, err))
	case !ok:
		m.cfg.Unhealthy(pod, target.Container, fmt.Sprintf("%s probe failed: %s", p.kind, output))
	}
	if changed {
		m.cfg.Changed(pod.UID)
	}
}

// count applies the thresholds and tells whether the result changed.
func (m *Manager) count(p *probe, ok bool) bool {
	r := Failure
	if ok {
		r = Success
	}
	if r == p.last {
		p.run++
	} else {
		p.last, p.run = r, 1
	}
	threshold := int(p.spec.SuccessThreshold)
	if r == Failure {
		threshold = int(p.spec.FailureThreshold)
	}
	if p.run < threshold || p.result == r {
		return false
	}
	p.result = r
	if r == Failure && p.kind != Readiness {
		p.hold = true
	}
	return true
}

func period(p *corev1.Probe) time.Duration {
	return max(time.Duration(p.PeriodSeconds)*time.Second, time.Second)
}

// queue is a heap of probes by due time.
type queue []*probe

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *queue) Push(x any) {
	p := x.(*probe)
	p.index = len(*q)
	*q = append(*q, p)
}
func (q *queue) Pop() any {
	old := *q
	p := old[len(old)-1]
	*q = old[:len(old)-1]
	p.index = -1
	return p
}
