package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/probes"
)

// actions are what brings a pod's containers nearer to its spec.
type actions struct {
	// KillPod: stop everything. With CreateSandbox, to begin anew.
	KillPod, CreateSandbox bool
	SandboxID              string
	Attempt                uint32
	// Indexes into the spec's lists, in the order in which to start.
	InitToStart, ToStart, EphemeralToStart []int
	Kill                                   []kill
	Update                                 []update
	// Reset are to be ended and removed, in this order: all shall begin anew.
	Reset []*cri.Container
}

type kill struct {
	ID        string
	Container *corev1.Container
	Message   string
	Reason    killReason
}

type killReason string

const (
	killStartup  killReason = "StartupProbe"
	killLiveness killReason = "LivenessProbe"
	killOther    killReason = ""
)

// probeView is what decisions need to know of probes.
type probeView interface {
	// Result of a container's probe; probes.Unknown when it has none yet, or none at all.
	Result(containerID string, kind probes.Kind) probes.Result
}

// computeActions decides, from what a pod should be and what the runtime has of
// it, what to do next. It is pure; waiting out a crash loop is up to the caller.
//
// limits are what a container should run with; nil: what it has is left alone.
func computeActions(pod *corev1.Pod, rt *cri.Pod, pv probeView, limits func(*corev1.Container) *runtimeapi.LinuxContainerResources) actions {
	change, attempt, id, _ := sandboxChanged(pod, rt)
	a := actions{KillPod: change, CreateSandbox: change, SandboxID: id, Attempt: attempt}
	if change {
		return anew(pod, rt, a)
	}
	if a.Reset = toReset(pod, rt); len(a.Reset) > 0 {
		return a
	}
	for i := range pod.Spec.EphemeralContainers {
		if rt.Find(pod.Spec.EphemeralContainers[i].Name) == nil { // never restarted
			a.EphemeralToStart = append(a.EphemeralToStart, i)
		}
	}
	if limits == nil {
		limits = func(*corev1.Container) *runtimeapi.LinuxContainerResources { return nil }
	}
	if !initActions(pod, rt, pv, limits, &a) || a.KillPod {
		return a
	}

	keep := 0
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		st := rt.Find(c.Name)
		if st == nil || st.State != cri.StateRunning {
			if shouldRestart(pod, c, st) {
				a.ToStart = append(a.ToStart, i)
				if st != nil && st.State == cri.StateUnknown {
					// It may run still: never have two of it.
					a.Kill = append(a.Kill, kill{ID: st.ID, Container: c, Message: "Container is in \"unknown\" state, try killing it before restart"})
				}
			}
			continue
		}
		restart := pod.Spec.RestartPolicy != corev1.RestartPolicyNever
		if c.RestartPolicy != nil {
			restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
		}
		var k kill
		switch {
		case st.Hash != cri.HashContainer(c):
			k.Message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
		case pv.Result(st.ID, probes.Liveness) == probes.Failure:
			k.Message, k.Reason = fmt.Sprintf("Container %s failed liveness probe", c.Name), killLiveness
		case pv.Result(st.ID, probes.Startup) == probes.Failure:
			k.Message, k.Reason = fmt.Sprintf("Container %s failed startup probe", c.Name), killStartup
		default:
			want := limits(c)
			if needed, again := resizeOf(c, st, want); again {
				k.Message, restart = fmt.Sprintf("Container %s resize requires restart", c.Name), true
				break
			} else if needed {
				a.Update = append(a.Update, update{st.ID, c, want, st.Resources.MemoryLimitInBytes})
			}
			keep++
			continue
		}
		if restart {
			k.Message += ", will be restarted"
			a.ToStart = append(a.ToStart, i)
		}
		k.ID, k.Container = st.ID, c
		a.Kill = append(a.Kill, k)
	}
	if keep == 0 && len(a.ToStart) == 0 {
		// Sidecars alone keep no pod alive.
		a.KillPod, a.InitToStart = true, nil
	}
	return a
}

// anew decides when there is no usable sandbox.
func anew(pod *corev1.Pod, rt *cri.Pod, a actions) actions {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever && a.Attempt != 0 && len(rt.Containers) > 0 {
		// It ran and must not run again.
		a.CreateSandbox = false
		return a
	}
	var start []int
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		once := pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
		if c.RestartPolicy != nil {
			once = *c.RestartPolicy == corev1.ContainerRestartPolicyOnFailure
		}
		if st := rt.Find(c.Name); once && st != nil && st.State == cri.StateExited && st.ExitCode == 0 {
			continue
		}
		start = append(start, i)
	}
	if len(start) == 0 && anyRegularContainer(pod, rt) {
		a.CreateSandbox = false
		return a
	}
	if len(pod.Spec.InitContainers) > 0 {
		a.InitToStart = []int{0}
		return a
	}
	a.ToStart = start
	return a
}

// initActions decides about init containers and tells whether the pod is initialised.
func initActions(pod *corev1.Pod, rt *cri.Pod, pv probeView, limits func(*corev1.Container) *runtimeapi.LinuxContainerResources, a *actions) bool {
	list := pod.Spec.InitContainers
	if len(list) == 0 {
		return true
	}
	// Once a main container ran in this sandbox, init containers (which may be
	// gone by now) have done their work.
	initialized := activeRegularContainer(pod, rt)
	previous := initialized
	start := map[int]bool{}
	// Backwards: completed init containers may have been removed, the last one
	// that is there tells where we are.
	for i := len(list) - 1; i >= 0; i-- {
		c := &list[i]
		sidecar := podfit.Restartable(c)
		st := rt.FindActive(c.Name)
		if st == nil {
			if previous && sidecar {
				start[i] = true
			}
			continue
		}
		if previous && !sidecar {
			continue
		}
		advance := func() {
			if i == len(list)-1 {
				initialized = true
			} else if !previous {
				start[i+1] = true
			}
		}
		switch st.State {
		case cri.StateCreated:
			start[i] = true // the runtime failed to start it
		case cri.StateRunning:
			if !sidecar {
				break
			}
			if c.StartupProbe != nil {
				switch pv.Result(st.ID, probes.Startup) {
				case probes.Success:
				case probes.Failure:
					a.Kill = append(a.Kill, kill{st.ID, c, fmt.Sprintf("Init container %s failed startup probe", c.Name), killStartup})
					start[i] = true
					goto next
				default:
					goto next
				}
			}
			advance()
			switch {
			case st.Hash != cri.HashContainer(c):
				a.Kill = append(a.Kill, kill{st.ID, c, fmt.Sprintf("Init container %s definition changed", c.Name), killOther})
				start[i] = true
			case c.LivenessProbe != nil && pv.Result(st.ID, probes.Liveness) == probes.Failure:
				a.Kill = append(a.Kill, kill{st.ID, c, fmt.Sprintf("Init container %s failed liveness probe", c.Name), killLiveness})
				start[i] = true
			default:
				want := limits(c)
				if needed, again := resizeOf(c, st, want); again {
					a.Kill = append(a.Kill, kill{st.ID, c, fmt.Sprintf("Container %s resize requires restart", c.Name), killOther})
					start[i] = true
				} else if needed {
					a.Update = append(a.Update, update{st.ID, c, want, st.Resources.MemoryLimitInBytes})
				}
			}
		case cri.StateExited:
			switch {
			case sidecar:
				start[i] = true
			case st.ExitCode != 0:
				if !restartsAfter(pod, c, st.ExitCode) {
					a.KillPod, a.InitToStart = true, nil
					return false
				}
				start[i] = true
			default:
				advance()
			}
		default:
			restart := pod.Spec.RestartPolicy != corev1.RestartPolicyNever
			if c.RestartPolicy != nil {
				restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
			}
			if !sidecar && !restart {
				a.KillPod, a.InitToStart = true, nil
				return false
			}
			a.Kill = append(a.Kill, kill{st.ID, c, "Init container is in \"unknown\" state, try killing it before restart", killOther})
			start[i] = true
		}
	next:
		previous = true
	}
	if !previous {
		start[0] = true
	}
	for i := range list {
		if start[i] {
			a.InitToStart = append(a.InitToStart, i)
		}
	}
	return initialized
}

// sandboxChanged tells whether the pod needs a new sandbox, and why.
func sandboxChanged(pod *corev1.Pod, rt *cri.Pod) (changed bool, attempt uint32, id, why string) {
	if len(rt.Sandboxes) == 0 {
		return true, 0, "", "No sandbox for pod can be found. Need to start a new one"
	}
	s := rt.Sandboxes[0]
	ready := 0
	for _, x := range rt.Sandboxes {
		if x.Ready {
			ready++
		}
	}
	switch {
	case ready > 1:
		return true, s.Attempt + 1, s.ID, "Multiple sandboxes are ready for pod. Need to reconcile them"
	case !s.Ready:
		return true, s.Attempt + 1, s.ID, "No ready sandbox for pod can be found. Need to start a new one"
	case s.HostNetwork != pod.Spec.HostNetwork:
		return true, s.Attempt + 1, "", "Sandbox for pod has changed. Need to start a new one"
	case !pod.Spec.HostNetwork && len(s.IPs) == 0:
		return true, s.Attempt + 1, s.ID, "Sandbox for pod has no IP address. Need to start a new one"
	}
	return false, s.Attempt, s.ID, ""
}

// shouldRestart tells whether a container that does not run should.
func shouldRestart(pod *corev1.Pod, c *corev1.Container, st *cri.Container) bool {
	switch {
	case pod.DeletionTimestamp != nil:
		return false
	case st == nil:
		return true
	case st.State == cri.StateRunning:
		return false
	case st.State != cri.StateExited:
		return true
	}
	return restartsAfter(pod, c, st.ExitCode)
}

// restartsAfter applies the container's own policy and rules (KEP-5307), else the
// pod's, to an exit code.
func restartsAfter(pod *corev1.Pod, c *corev1.Container, code int32) bool {
	if c.RestartPolicy != nil {
		if matchingRule(c, code) != nil {
			return true
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return true
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		}
		return false
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

func anyRegularContainer(pod *corev1.Pod, rt *cri.Pod) bool {
	for i := range pod.Spec.Containers {
		if st := rt.Find(pod.Spec.Containers[i].Name); st != nil && st.State != cri.StateUnknown {
			return true
		}
	}
	return false
}

func activeRegularContainer(pod *corev1.Pod, rt *cri.Pod) bool {
	for i := range pod.Spec.Containers {
		if st := rt.FindActive(pod.Spec.Containers[i].Name); st != nil && (st.State == cri.StateRunning || st.State == cri.StateExited) {
			return true
		}
	}
	return false
}
