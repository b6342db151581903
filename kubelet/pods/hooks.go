package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/probes"
)

// exec runs a command in a container; no timeout: until the context ends.
func (m *Manager) exec(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int32, error) {
	resp, err := m.cfg.CRI.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: int64(timeout / time.Second)})
	if err != nil {
		return nil, 0, err
	}
	return append(resp.Stdout, resp.Stderr...), resp.ExitCode, nil
}

// hook runs a lifecycle handler. The message is for the container's status.
func (m *Manager) hook(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id, ip string, h *corev1.LifecycleHandler) (string, error) {
	switch {
	case h.Exec != nil:
		out, code, err := m.exec(ctx, id, h.Exec.Command, 0)
		if err == nil && code != 0 {
			err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(h.Exec.Command, " "), code, out)
		}
		if err != nil {
			return fmt.Sprintf("Exec lifecycle hook (%v) for Container %q in Pod %q failed - error: %v", h.Exec.Command, c.Name, describe(pod), err), err
		}
		return "", nil
	case h.HTTPGet != nil:
		u, header, err := probes.HTTPTarget(c, ip, h.HTTPGet)
		if err == nil {
			// Unlike for probes, any answer will do as long as there is one.
			header.Set("User-Agent", "kube-lifecycle/1.37")
			if ok, msg := probes.Get(ctx, u, header); !ok && !strings.HasPrefix(msg, "HTTP probe failed with statuscode") {
				err = errors.New(msg)
			}
		}
		if err != nil {
			return fmt.Sprintf("HTTP lifecycle hook (%s) for Container %q in Pod %q failed - error: %v", h.HTTPGet.Path, c.Name, describe(pod), err), err
		}
		return "", nil
	case h.Sleep != nil:
		t := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return "", nil
	}
	err := fmt.Errorf("invalid handler: %v", h)
	return fmt.Sprintf("Cannot run handler: %v", err), err
}
