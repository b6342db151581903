package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// minGrace lets containers end in order even when their time is up.
const minGrace = 2

// killPod stops all containers and sandboxes. Main containers end first, sidecars
// after them in reverse order (KEP-753), all within one grace period. grace
// overrides the pod's own.
func (w *worker) killPod(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, grace *int64) error {
	turn := newTurns(pod, rt)
	var wg sync.WaitGroup
	errs := make([]error, len(rt.Containers))
	for i, c := range rt.Containers {
		if c.State != cri.StateRunning && c.State != cri.StateUnknown {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer turn.done(c.Name)
			errs[i] = w.killContainer(ctx, pod, specOf(pod, c), c.ID, "", killOther, grace, turn)
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range rt.Sandboxes {
		if _, err := w.m.cfg.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.NotFound(err) {
			if ctx.Err() == nil {
				w.m.podEvent(pod, corev1.EventTypeWarning, "FailedKillPod", fmt.Sprintf("error killing pod: failed to \"KillPodSandbox\" for %q with KillPodSandboxError: %q", pod.UID, cri.Message(err)))
			}
			return fmt.Errorf("stop sandbox %s: %w", s.ID, err)
		}
	}
	return nil
}

// specOf is the container's spec, or what its annotations tell when it is gone.
func specOf(pod *corev1.Pod, run *cri.Container) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == run.Name {
				return &list[i]
			}
		}
	}
	_, spec := cri.OrphanSpec(run)
	return &spec
}

// killContainer ends one container: preStop hook, its turn, then the stop signal,
// and SIGKILL when the grace period is over.
func (w *worker) killContainer(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id, message string, why killReason, override *int64, turn *turns) error {
	if message == "" {
		message = "Stopping container " + c.Name
	}
	w.m.containerEvent(pod, c, corev1.EventTypeNormal, "Killing", message)
	grace := containerGrace(pod, c, why)
	if override != nil {
		grace = *override
	}
	left := time.Duration(grace) * time.Second
	spend := func(f func(context.Context)) {
		begun := time.Now()
		sub, cancel := context.WithTimeout(ctx, left)
		f(sub)
		cancel()
		left -= time.Since(begun)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && left > 0 {
		spend(func(sub context.Context) {
			ip := ""
			if rt, err := w.m.cfg.CRI.PodStatus(sub, w.uid); err == nil {
				ip = first(rt.IPs(), pod, w.m.cfg.HostIPs())
			}
			if _, err := w.m.hook(sub, pod, c, id, ip, c.Lifecycle.PreStop); err != nil && ctx.Err() == nil {
				w.log.Info("preStop hook failed", "container", c.Name, "error", err)
				if sub.Err() == nil {
					// The output may hold secrets: it is not for events.
					w.m.containerEvent(pod, c, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
				}
			}
		})
	}
	if turn != nil && left > 0 {
		spend(func(sub context.Context) { turn.wait(sub, c.Name) })
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	seconds := int64((left + time.Second - 1) / time.Second)
	if override == nil || *override > 0 {
		seconds = max(seconds, minGrace)
	} else {
		seconds = 0
	}
	_, err := w.m.cfg.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	if err != nil && !cri.NotFound(err) {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// containerGrace in seconds: the pod's deletion's, else that of the probe that
// failed, else the pod's own.
func containerGrace(pod *corev1.Pod, c *corev1.Container, why killReason) int64 {
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	var p *corev1.Probe
	switch why {
	case killLiveness:
		p = c.LivenessProbe
	case killStartup:
		p = c.StartupProbe
	}
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return *p.TerminationGracePeriodSeconds
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return minGrace
}

// turns order the end of containers: each waits for those that must end before it.
type turns struct {
	ended map[string]chan struct{}
	once  map[string]*sync.Once
	after map[string][]string
}

func newTurns(pod *corev1.Pod, rt *cri.Pod) *turns {
	t := &turns{ended: map[string]chan struct{}{}, once: map[string]*sync.Once{}, after: map[string][]string{}}
	for _, c := range rt.Containers {
		if c.State == cri.StateRunning || c.State == cri.StateUnknown {
			t.ended[c.Name], t.once[c.Name] = make(chan struct{}), &sync.Once{}
		}
	}
	var before []string
	for i := range pod.Spec.Containers {
		before = append(before, pod.Spec.Containers[i].Name)
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		if c := &pod.Spec.InitContainers[i]; podfit.Restartable(c) {
			t.after[c.Name] = append([]string(nil), before...)
			before = append(before, c.Name)
		}
	}
	return t
}

func (t *turns) done(name string) {
	if o := t.once[name]; o != nil {
		o.Do(func() { close(t.ended[name]) })
	}
}

func (t *turns) wait(ctx context.Context, name string) {
	for _, n := range t.after[name] {
		ch := t.ended[n]
		if ch == nil {
			continue
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return
		}
	}
}
