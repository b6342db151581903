package pods

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/probes"
)

// worker does everything to one pod.
type worker struct {
	m    *Manager
	uid  types.UID
	log  *slog.Logger
	wake chan struct{}

	mu       sync.Mutex
	pod      *corev1.Pod // as desired; shared, never changed
	gone     bool        // no longer desired by where it came from
	eviction *Eviction
	shown    *corev1.PodStatus // the status last published
	// cancel interrupts the step that runs; grace is that of a running termination,
	// -1 when the step is none.
	cancel context.CancelFunc
	grace  int64

	// Only the goroutine of run uses what follows.
	status    *corev1.PodStatus
	waiting   map[string]waitReason
	crashes   map[string]*crashLoop
	forgiven  map[string]bool   // containers (ids) that the kubelet ended for a change
	images    map[string]string // resolved images of image volumes
	resize    resizeState
	setUp     bool // group and registrations are made
	reclaimed bool // containers and logs are gone
	ended     bool // all is stopped and taken away
	failures  int  // of steps in a row
	mountFail int
	nextAt    time.Time
}

func newWorker(m *Manager, pod *corev1.Pod) *worker {
	return &worker{
		m: m, uid: pod.UID, pod: pod, wake: make(chan struct{}, 1), grace: -1,
		log:     m.log.With("pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID)),
		waiting: map[string]waitReason{}, crashes: map[string]*crashLoop{}, forgiven: map[string]bool{}, images: map[string]string{},
	}
}

func (w *worker) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update tells of a new version of the pod.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.interrupt()
	w.mu.Unlock()
	w.kick()
}

// remove tells that the pod is no longer desired.
func (w *worker) remove() {
	w.mu.Lock()
	w.gone = true
	w.interrupt()
	w.mu.Unlock()
	w.kick()
}

func (w *worker) evict(e Eviction) {
	w.mu.Lock()
	if w.eviction == nil {
		w.eviction = &e
		w.interrupt()
	}
	w.mu.Unlock()
	w.kick()
}

// interrupt cuts short a step that the news have overtaken: one that starts
// things, when the pod shall end; a termination, when it shall be faster.
func (w *worker) interrupt() {
	if w.cancel == nil || !w.ending() {
		return
	}
	if w.grace < 0 || w.gracePeriod() < w.grace {
		w.cancel()
	}
}

func (w *worker) ending() bool {
	return w.gone || w.eviction != nil || w.pod.DeletionTimestamp != nil
}

// gracePeriod is how long the pod may take to end, at least a second.
func (w *worker) gracePeriod() int64 {
	g := int64(30)
	switch {
	case w.eviction != nil && w.eviction.Grace != nil:
		g = *w.eviction.Grace
		return max(g, 0)
	case w.pod.Annotations[orphanAnnotation] != "":
		g = 1
	case w.pod.DeletionGracePeriodSeconds != nil:
		g = *w.pod.DeletionGracePeriodSeconds
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		g = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	return max(g, 1)
}

// desired is the pod as it should be; shared, never changed.
func (w *worker) desired() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// view is the pod with its latest status.
func (w *worker) view() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod.Annotations[orphanAnnotation] != "" {
		return nil
	}
	out := *w.pod
	if w.shown != nil {
		out.Status = *w.shown
	}
	return &out
}

func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		w.nextAt = time.Time{}
		done := w.step(ctx)
		if done {
			w.m.finished(w)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if w.nextAt.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(w.nextAt))
		}
	}
}

// again asks for another step at that time, at the latest.
func (w *worker) again(at time.Time) {
	if !at.IsZero() && (w.nextAt.IsZero() || at.Before(w.nextAt)) {
		w.nextAt = at
	}
}

// retry asks for another step after a failure, later each time.
func (w *worker) retry() {
	w.failures++
	w.again(time.Now().Add(min(time.Second<<min(w.failures-1, 6), time.Minute)))
}

// step is one look at the pod; true: it is no more.
func (w *worker) step(parent context.Context) bool {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	w.mu.Lock()
	pod, gone, ev, ending := w.pod, w.gone, w.eviction, w.ending()
	w.cancel, w.grace = cancel, -1
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.cancel, w.grace = nil, -1
		w.mu.Unlock()
	}()

	if w.ended && !(gone || pod.DeletionTimestamp != nil) {
		return false // it ran to its end and is kept for its status and logs
	}
	rt, err := w.m.cfg.CRI.PodStatus(ctx, w.uid)
	if err != nil {
		if ctx.Err() == nil {
			w.log.Debug("read runtime state", "error", err)
			w.retry()
		}
		return false
	}
	if !ending {
		pod = w.allocate(pod)
	} else if w.resize.granted != nil {
		pod = w.resize.granted.with(pod)
	}
	w.setProbes(pod, rt, ending)
	if ev == nil && !ending {
		if ev = w.deadline(pod); ev != nil {
			w.m.podEvent(pod, corev1.EventTypeNormal, ev.Reason, ev.Message)
			w.evict(*ev)
			ending = true
		}
	}
	st := w.makeStatus(pod, rt, false)
	if ending || terminalPhase(st.Phase) || terminalPhase(pod.Status.Phase) {
		return w.terminate(ctx, pod, rt, st, ev, gone)
	}
	w.sync(ctx, pod, rt, st)
	return false
}

// deadline applies activeDeadlineSeconds.
func (w *worker) deadline(pod *corev1.Pod) *Eviction {
	if pod.Spec.ActiveDeadlineSeconds == nil {
		return nil
	}
	start := pod.Status.StartTime
	if w.status != nil && w.status.StartTime != nil {
		start = w.status.StartTime
	}
	if start.IsZero() {
		return nil
	}
	end := start.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second)
	if time.Now().Before(end) {
		w.again(end)
		return nil
	}
	return &Eviction{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
}

func (w *worker) oldStatus(pod *corev1.Pod) *corev1.PodStatus {
	if w.status != nil {
		return w.status
	}
	return &pod.Status
}

func (w *worker) makeStatus(pod *corev1.Pod, rt *cri.Pod, terminal bool) corev1.PodStatus {
	now := time.Now().Truncate(time.Second)
	return makeStatus(statusInput{
		Resize: w.resize.conditions(pod, w.oldStatus(pod), now),
		Pod:    pod, Runtime: rt, Old: w.oldStatus(pod), Waiting: w.waiting, Probes: w.m.probes, HostIPs: w.m.cfg.HostIPs(),
		RuntimeName: w.m.cfg.RuntimeName(), Terminal: terminal, Now: now,
	})
}

// publish remembers a status and has it written to the API.
func (w *worker) publish(pod *corev1.Pod, st corev1.PodStatus, del bool) {
	if w.status != nil && !del && apiequality.Semantic.DeepEqual(*w.status, st) {
		return
	}
	w.status = &st
	w.mu.Lock()
	w.shown = &st
	w.mu.Unlock()
	if pod.Annotations[orphanAnnotation] == "" {
		w.m.writer.set(pod, st, del)
	}
}

// setProbes has the running containers probed.
func (w *worker) setProbes(pod *corev1.Pod, rt *cri.Pod, terminating bool) {
	var targets []probes.Target
	old := w.oldStatus(pod)
	add := func(c *corev1.Container, statuses []corev1.ContainerStatus) {
		if c.LivenessProbe == nil && c.ReadinessProbe == nil && c.StartupProbe == nil {
			return
		}
		run := rt.Find(c.Name)
		if run == nil || run.State != cri.StateRunning {
			return
		}
		t := probes.Target{ID: run.ID, StartedAt: run.StartedAt, Container: c}
		// The API's word counts for this very container only, and only at take-over:
		// later on probes know better.
		if st := find(statuses, c.Name); st != nil && w.status == nil && trimScheme(st.ContainerID) == run.ID {
			t.Ready, t.Started = st.Ready, st.Started != nil && *st.Started
		}
		targets = append(targets, t)
	}
	for i := range pod.Spec.InitContainers {
		add(&pod.Spec.InitContainers[i], old.InitContainerStatuses)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], old.ContainerStatuses)
	}
	w.m.probes.Set(pod, first(rt.IPs(), pod, w.m.cfg.HostIPs()), targets, terminating)
}

// first is the address at which a pod is reached.
func first(ips []string, pod *corev1.Pod, host []string) string {
	if pod.Spec.HostNetwork {
		ips = host
	}
	if ordered := orderIPs(ips, host); len(ordered) > 0 {
		return ordered[0]
	}
	return ""
}
