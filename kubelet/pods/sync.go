package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/volumes"
)

// sync brings a pod that should run a step nearer to it.
func (w *worker) sync(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, st corev1.PodStatus) {
	if e := w.m.admit(pod, rt); e != nil {
		w.log.Info("pod refused", "reason", e.Reason, "message", e.Message)
		w.m.podEvent(pod, corev1.EventTypeWarning, e.Reason, e.Message)
		w.evict(*e)
		return
	}
	w.publish(pod, st, false)

	if err := w.m.runtimeReady(); err != nil {
		w.log.Debug("sync", "error", err)
		w.retry()
		return
	}
	if !pod.Spec.HostNetwork {
		if err := w.m.cfg.NetworkReady(); err != nil {
			w.m.podEvent(pod, corev1.EventTypeWarning, "NetworkNotReady", fmt.Sprintf("network is not ready: %v", err))
			w.retry()
			return
		}
	}
	if err := w.prepare(ctx, pod); err != nil {
		return
	}
	node := w.m.cfg.CRINode()
	a := computeActions(pod, rt, w.m.probes, func(c *corev1.Container) *runtimeapi.LinuxContainerResources {
		return criconfig.ContainerResources(node, pod, c)
	})
	switch {
	case !w.resize.running:
	case !w.actuated(pod, a):
		if err := w.growGroup(pod); err != nil {
			w.retry()
			w.publish(pod, w.makeStatus(pod, rt, false), false)
			return
		}
	case w.settleGroup(pod) != nil:
		w.retry()
	default:
		w.resize.running, w.resize.failure = false, ""
		w.m.podEvent(pod, corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed")
		w.publish(pod, w.makeStatus(pod, rt, false), false)
	}
	acted, err := w.execute(ctx, pod, rt, a)
	if ctx.Err() != nil {
		return // overtaken by news, which wake us
	}
	if err != nil {
		w.log.Debug("sync", "error", err)
		w.retry()
	} else {
		w.failures = 0
	}
	w.prune(ctx, pod, rt)
	if acted || err != nil {
		w.report(ctx, pod)
	}
}

// report publishes what the step has changed, at once.
func (w *worker) report(ctx context.Context, pod *corev1.Pod) {
	rt, err := w.m.cfg.CRI.PodStatus(ctx, w.uid)
	if err != nil {
		w.retry()
		return
	}
	w.setProbes(pod, rt, false)
	st := w.makeStatus(pod, rt, false)
	if terminalPhase(st.Phase) {
		w.again(time.Now())
		return
	}
	w.publish(pod, st, false)
}

// prepare makes what containers need before they start: followed objects, group,
// volumes.
func (w *worker) prepare(ctx context.Context, pod *corev1.Pod) error {
	w.m.cfg.Objects.Register(pod)
	if !w.setUp {
		w.resize.group = w.groupLimits(pod)
		if err := w.m.ensureGroup(pod); err != nil {
			w.m.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
			w.retry()
			return err
		}
		w.setUp = true
	}
	refresh, err := w.m.cfg.Volumes.Setup(ctx, pod)
	w.again(refresh)
	if err == nil {
		w.mountFail = 0
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	ready := true
	for _, e := range unjoin(err) {
		w.m.podEvent(pod, corev1.EventTypeWarning, "FailedMount", e.Error())
		var ve *volumes.Error
		if !errors.As(e, &ve) {
			ready = false
		} else if _, perr := w.m.cfg.Volumes.Path(pod.UID, ve.Volume); perr != nil {
			ready = false
		}
	}
	w.mountFail++
	w.again(time.Now().Add(min(500*time.Millisecond<<min(w.mountFail-1, 8), 2*time.Minute)))
	if ready {
		return nil // all are there, some are stale: no reason not to run
	}
	return err
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

// execute carries out what was decided. It tells whether anything was done.
func (w *worker) execute(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, a actions) (bool, error) {
	acted := false
	if a.KillPod {
		if a.CreateSandbox && a.SandboxID != "" {
			w.m.podEvent(pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
		if rt.Running() || len(rt.Sandboxes) > 0 && !a.CreateSandbox {
			acted = true
		}
		if err := w.killPod(ctx, pod, rt, nil); err != nil {
			return true, err
		}
		if !a.CreateSandbox {
			return acted, nil
		}
		for i := range pod.Spec.InitContainers {
			w.removeRuns(ctx, pod, rt, pod.Spec.InitContainers[i].Name, 0)
		}
	}
	if len(a.Reset) > 0 {
		return true, w.resetAll(ctx, pod, a.Reset)
	}
	for _, k := range a.Kill {
		acted = true
		if k.Reason == killOther {
			w.forgiven[k.ID] = true // its end is no crash
		}
		if err := w.killContainer(ctx, pod, k.Container, k.ID, k.Message, k.Reason, nil, nil); err != nil {
			return true, err
		}
	}
	if len(a.Update) > 0 && !a.KillPod {
		acted = true
		if err := w.applyResizes(ctx, pod, a.Update); err != nil {
			return true, err
		}
		w.again(time.Now()) // to see that it is so
	}
	start := len(a.InitToStart) + len(a.ToStart) + len(a.EphemeralToStart)
	if start == 0 && !a.CreateSandbox {
		return acted, nil
	}
	if err := w.imageVolumes(ctx, pod); err != nil {
		return true, err
	}
	users, err := w.m.userNamespace(ctx, pod)
	if err != nil {
		w.m.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		return true, err
	}
	cfg, warnings, err := criconfig.Sandbox(w.m.cfg.CRINode(), pod, a.Attempt, users)
	if err != nil {
		w.m.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		return true, err
	}
	w.m.cfg.CRI.Own(cfg.Labels)
	id, ips := a.SandboxID, rt.IPs()
	if a.CreateSandbox {
		for _, msg := range warnings {
			w.m.podEvent(pod, corev1.EventTypeWarning, "DNSConfigForming", msg)
		}
		if id, ips, err = w.createSandbox(ctx, pod, cfg); err != nil {
			return true, err
		}
	}
	s := starter{w: w, pod: pod, rt: rt, sandbox: id, cfg: cfg, users: users, ips: orderIPs(ips, w.m.cfg.HostIPs())}
	for _, i := range a.EphemeralToStart {
		e := &pod.Spec.EphemeralContainers[i]
		c := corev1.Container(e.EphemeralContainerCommon)
		acted = s.start(ctx, &c, e.TargetContainerName) || acted
	}
	for _, i := range a.InitToStart {
		acted = s.start(ctx, &pod.Spec.InitContainers[i], "") || acted
		if ctx.Err() != nil {
			return true, ctx.Err()
		}
	}
	for _, i := range a.ToStart {
		acted = s.start(ctx, &pod.Spec.Containers[i], "") || acted
		if ctx.Err() != nil {
			return true, ctx.Err()
		}
	}
	return acted, s.err
}

// resetAll ends and removes containers so that the pod begins anew. Pods that do so
// over and over have to wait as crashing containers do.
func (w *worker) resetAll(ctx context.Context, pod *corev1.Pod, list []*cri.Container) error {
	source := list[len(list)-1]
	now := time.Now()
	loop := w.crashes[restartingAll]
	if until := loop.until(now, source.FinishedAt); !until.IsZero() {
		w.again(until)
		return nil
	}
	zero := int64(0)
	for _, c := range list {
		if c.State == cri.StateRunning || c.State == cri.StateUnknown {
			if err := w.killContainer(ctx, pod, specOf(pod, c), c.ID, "killing", killOther, &zero, nil); err != nil {
				return err
			}
		}
		if _, err := w.m.cfg.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.NotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
		w.m.unlinkLog(pod, c.Name, c.ID)
	}
	w.crashes[restartingAll] = loop.restarted(now, source.FinishedAt)
	w.waiting = map[string]waitReason{}
	w.again(time.Now())
	return nil
}

func (w *worker) createSandbox(ctx context.Context, pod *corev1.Pod, cfg *runtimeapi.PodSandboxConfig) (string, []string, error) {
	fail := func(err error) (string, []string, error) {
		if ctx.Err() == nil {
			w.m.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %s", cri.Message(err)))
		}
		return "", nil, fmt.Errorf("create sandbox: %w", err)
	}
	if err := makeDir(cfg.LogDirectory); err != nil {
		return fail(err)
	}
	handler, err := w.m.handler(ctx, pod)
	if err != nil {
		return fail(err)
	}
	resp, err := w.m.cfg.CRI.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		return fail(err)
	}
	rt, err := w.m.cfg.CRI.PodStatus(ctx, w.uid)
	if err != nil {
		return "", nil, err
	}
	// The API learns the address before images are pulled.
	w.publish(pod, w.makeStatus(pod, rt, false), false)
	return resp.PodSandboxId, rt.IPs(), nil
}
