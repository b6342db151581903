package containers

import (
	"context"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestRunsAContainer(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	out, st := h.run(img, func(c *runtimeapi.ContainerConfig) {
		c.Envs = []*runtimeapi.KeyValue{{Key: "GIVEN", Value: []byte("yes")}}
	}, "sh", "-c", "echo $GIVEN $FROM_IMAGE $(hostname) $(pwd); echo oops >&2; exit 3")
	if out != "yes 1 pod-host /\noops\n" && out != "oops\nyes 1 pod-host /\n" {
		t.Errorf("output %q", out)
	}
	if st.GetExitCode() != 3 || st.GetReason() != "Error" || st.GetFinishedAt() < st.GetStartedAt() || st.GetStartedAt() == 0 {
		t.Errorf("status %v", st)
	}
}

func TestStartErrorsAreTold(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/no/such/program"} })
	_, err := h.Runtime.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Fatalf("got %v", err)
	}
	if st := h.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetReason() != "StartError" || st.GetExitCode() != 128 {
		t.Errorf("status %v", st)
	}
}
