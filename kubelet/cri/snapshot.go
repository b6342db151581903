package cri

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is one sandbox of a pod as the runtime last reported it. Immutable.
type Sandbox struct {
	ID        string
	Ready     bool
	Attempt   uint32
	CreatedAt time.Time
	IPs       []string
	// HostNetwork as the sandbox was made.
	HostNetwork bool
	Handler     string
}

// State of a container.
type State int

const (
	StateUnknown State = iota
	StateCreated
	StateRunning
	StateExited
)

func (s State) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// Container is one container of a pod as the runtime last reported it. Immutable.
type Container struct {
	ID, Name, SandboxID string
	State               State
	CreatedAt           time.Time
	StartedAt           time.Time
	FinishedAt          time.Time
	ExitCode            int32
	Reason, Message     string
	Image               string // as the user wrote it, or as the runtime resolved it
	ImageID             string // digest reference, the API's imageID
	RestartCount        int
	Hash                uint64
	LogPath             string
	Annotations         map[string]string
	Resources           *runtimeapi.LinuxContainerResources
	User                *runtimeapi.LinuxContainerUser
	StopSignal          runtimeapi.Signal
}

// TerminationMessage tells where and how a container leaves its last words.
func TerminationMessage(annotations map[string]string) (path string, policy corev1.TerminationMessagePolicy) {
	return annotations[terminationMessagePathAnnotation], corev1.TerminationMessagePolicy(annotations[terminationMessagePolicyAnnotation])
}

// Pod is all that the runtime has of a pod, newest first. Immutable.
type Pod struct {
	UID             types.UID
	Name, Namespace string
	Sandboxes       []*Sandbox
	Containers      []*Container
}

// Find returns the newest container of that name, or nil.
func (p *Pod) Find(name string) *Container {
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// FindActive returns the newest container of that name in the newest sandbox, or nil.
func (p *Pod) FindActive(name string) *Container {
	if len(p.Sandboxes) == 0 || !p.Sandboxes[0].Ready {
		return nil
	}
	for _, c := range p.Containers {
		if c.Name == name && c.SandboxID == p.Sandboxes[0].ID {
			return c
		}
	}
	return nil
}

// IPs are those of the newest ready sandbox.
func (p *Pod) IPs() []string {
	if len(p.Sandboxes) > 0 && p.Sandboxes[0].Ready {
		return p.Sandboxes[0].IPs
	}
	return nil
}

// Running tells whether anything of the pod still runs.
func (p *Pod) Running() bool {
	for _, c := range p.Containers {
		if c.State == StateRunning || c.State == StateUnknown {
			return true
		}
	}
	for _, s := range p.Sandboxes {
		if s.Ready {
			return true
		}
	}
	return false
}

// PodStatus reads what the runtime has of one pod.
func (c *Client) PodStatus(ctx context.Context, uid types.UID) (*Pod, error) {
	pods, err := c.list(ctx, map[string]string{PodUIDLabel: string(uid)})
	if err != nil {
		return nil, fmt.Errorf("read runtime state of pod %s: %w", uid, err)
	}
	if p := pods[uid]; p != nil {
		return p, nil
	}
	return &Pod{UID: uid}, nil
}

// Pods reads what the runtime has of all pods that a kubelet made.
func (c *Client) Pods(ctx context.Context) (map[types.UID]*Pod, error) {
	pods, err := c.list(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list pods of the runtime: %w", err)
	}
	return pods, nil
}

// list takes statuses from the cache as long as the state in the list agrees with
// them: everything else in them changes with the state only.
func (c *Client) list(ctx context.Context, selector map[string]string) (map[types.UID]*Pod, error) {
	sb, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	cs, err := c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	pods := map[types.UID]*Pod{}
	pod := func(labels map[string]string) *Pod {
		if !c.Owns(labels) {
			return nil // not made by this kubelet
		}
		uid := types.UID(labels[PodUIDLabel])
		p := pods[uid]
		if p == nil {
			p = &Pod{UID: uid, Name: labels[PodNameLabel], Namespace: labels[PodNamespaceLabel]}
			pods[uid] = p
		}
		return p
	}
	for _, s := range sb.Items {
		p := pod(s.Labels)
		if p == nil {
			continue
		}
		st, err := c.sandbox(ctx, s)
		if err != nil {
			return nil, err
		}
		if st != nil {
			p.Sandboxes = append(p.Sandboxes, st)
		}
	}
	for _, item := range cs.Containers {
		p := pod(item.Labels)
		if p == nil {
			continue
		}
		st, err := c.container(ctx, item)
		if err != nil {
			return nil, err
		}
		if st != nil {
			p.Containers = append(p.Containers, st)
		}
	}
	for _, p := range pods {
		sort.SliceStable(p.Sandboxes, func(i, j int) bool {
			a, b := p.Sandboxes[i], p.Sandboxes[j]
			if !a.CreatedAt.Equal(b.CreatedAt) {
				return a.CreatedAt.After(b.CreatedAt)
			}
			return a.Attempt > b.Attempt
		})
		sort.SliceStable(p.Containers, func(i, j int) bool {
			a, b := p.Containers[i], p.Containers[j]
			if !a.CreatedAt.Equal(b.CreatedAt) {
				return a.CreatedAt.After(b.CreatedAt)
			}
			return a.RestartCount > b.RestartCount
		})
	}
	if selector == nil {
		c.forgetExcept(sb.Items, cs.Containers)
	}
	return pods, nil
}

func (c *Client) sandbox(ctx context.Context, s *runtimeapi.PodSandbox) (*Sandbox, error) {
	ready := s.State == runtimeapi.PodSandboxState_SANDBOX_READY
	c.mu.Lock()
	old := c.sandboxes[s.Id]
	c.mu.Unlock()
	if old != nil && old.Ready == ready {
		return old, nil
	}
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.Id})
	if NotFound(err) {
		return nil, nil // removed since the list
	}
	if err != nil {
		return nil, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
	}
	st := resp.Status
	out := &Sandbox{
		ID: st.Id, Ready: st.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		Attempt: st.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, st.CreatedAt), Handler: st.RuntimeHandler,
		HostNetwork: st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
	}
	if n := st.GetNetwork(); n != nil {
		if n.Ip != "" {
			out.IPs = append(out.IPs, n.Ip)
		}
		for _, ip := range n.AdditionalIps {
			out.IPs = append(out.IPs, ip.Ip)
		}
	}
	// A ready sandbox without address is still being wired up: don't remember it.
	if !out.Ready || out.HostNetwork || len(out.IPs) > 0 {
		c.mu.Lock()
		c.sandboxes[s.Id] = out
		c.mu.Unlock()
	}
	return out, nil
}

func (c *Client) container(ctx context.Context, item *runtimeapi.Container) (*Container, error) {
	c.mu.Lock()
	old := c.containers[item.Id]
	c.mu.Unlock()
	if old != nil && old.State == stateOf(item.State) && old.State != StateUnknown {
		return old, nil
	}
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: item.Id})
	if NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status of container %s: %w", item.Id, err)
	}
	st := resp.Status
	out := &Container{
		ID: st.Id, SandboxID: item.PodSandboxId, State: stateOf(st.State),
		Name:      st.Labels[ContainerNameLabel],
		CreatedAt: unixNano(st.CreatedAt), StartedAt: unixNano(st.StartedAt), FinishedAt: unixNano(st.FinishedAt),
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: st.GetImage().GetUserSpecifiedImage(), ImageID: st.ImageRef,
		LogPath: st.LogPath, Annotations: st.Annotations,
		Resources: st.GetResources().GetLinux(), User: st.GetUser().GetLinux(), StopSignal: st.StopSignal,
	}
	if out.Name == "" {
		out.Name = st.GetMetadata().GetName()
	}
	if out.Image == "" {
		out.Image = st.GetImage().GetImage()
	}
	out.RestartCount, _ = strconv.Atoi(st.Annotations[restartCountAnnotation])
	out.Hash, _ = strconv.ParseUint(st.Annotations[hashAnnotation], 16, 64)
	if out.State == StateExited {
		// Containers that never ran carry no reason of their own.
		if out.Reason == "" && out.StartedAt.IsZero() {
			out.Reason = "ContainerCannotRun"
		}
		if c.cfg.TerminationMessage != nil {
			if m := c.cfg.TerminationMessage(st); m != "" {
				out.Message = m
			}
		}
	}
	c.mu.Lock()
	c.containers[item.Id] = out
	c.mu.Unlock()
	return out, nil
}

// Forget drops the cached status of a container, after its resources changed.
func (c *Client) Forget(id string) {
	c.mu.Lock()
	delete(c.containers, id)
	c.mu.Unlock()
}

func (c *Client) forgetExcept(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) {
	keep := make(map[string]bool, len(sandboxes)+len(containers))
	for _, s := range sandboxes {
		keep[s.Id] = true
	}
	for _, s := range containers {
		keep[s.Id] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.sandboxes {
		if !keep[id] {
			delete(c.sandboxes, id)
		}
	}
	for id := range c.containers {
		if !keep[id] {
			delete(c.containers, id)
		}
	}
}

func stateOf(s runtimeapi.ContainerState) State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return StateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return StateExited
	}
	return StateUnknown
}

func unixNano(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
