package containers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The runtime is killed at moments nobody chose, while pods come and go. What
// was told to run goes on running; what was half done can be removed.
func TestKillAtAnyMoment(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	ctx := context.Background()
	var mu sync.Mutex
	running := map[string]int{} // container → pid
	for round := range 8 {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for worker := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					h.churn(ctx, img, fmt.Sprintf("%d-%d-%d", round, worker, i), func(id string, pid int) {
						mu.Lock()
						defer mu.Unlock()
						running[id] = pid
					})
				}
			})
		}
		if round == 0 { // there is something to outlive the kills, however slow the machine
			h.eventually("a container to run", func() error {
				mu.Lock()
				defer mu.Unlock()
				if len(running) == 0 {
					return errors.New("none does")
				}
				return nil
			})
		}
		time.Sleep(time.Duration(100+rand.IntN(700)) * time.Millisecond) // anywhere in their work
		_ = h.cmd.Process.Kill()
		close(stop)
		wg.Wait()
		h.kill()
		h.serve()
		for id, pid := range running {
			st := h.status(id)
			if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("round %d: container is %v", round, st)
				continue
			}
			if _, now := processesOf(t, h, id); now != pid {
				t.Errorf("round %d: process %d is now %d", round, pid, now)
			}
		}
	}
	t.Logf("%d containers outlived the kills", len(running))
	list, err := h.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list.GetItems() {
		if _, err := h.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.GetId()}); err != nil {
			t.Error(err)
		}
	}
	left, err := h.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil || len(left.GetContainers()) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	h.kill()
	h.checkNothingRuns()
}

// churn makes a pod and, every third time, removes it again; errors are those
// of a runtime that is being killed.
func (h *harness) churn(ctx context.Context, img, name string, runs func(id string, pid int)) {
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode(rand.IntN(2))}, // POD or CONTAINER
		}},
	}
	sb, err := h.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return
	}
	id, err := h.tryCreate(sb.GetPodSandboxId(), cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command, c.LogPath = []string{"sleep", "1000"}, ""
		c.Linux.SecurityContext.NamespaceOptions.Pid = cfg.Linux.SecurityContext.NamespaceOptions.Pid
	})
	if err != nil {
		return
	}
	if _, err := h.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return
	}
	if rand.IntN(3) == 0 {
		_, _ = h.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.GetPodSandboxId()})
		return
	}
	st, err := h.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return
	}
	var pid int
	if _, err := fmt.Sscan(st.GetInfo()["pid"], &pid); err == nil {
		runs(id, pid)
	}
}
