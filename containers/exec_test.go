package containers

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExecSync(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sleep", "1000"}
		c.Envs = []*runtimeapi.KeyValue{{Key: "IN_CONTAINER", Value: []byte("1")}}
	})
	h.start(id)

	got, err := h.execSync(id, 60, "sh", "-c", "echo out $IN_CONTAINER; echo err >&2; exit 5")
	if err != nil || string(got.GetStdout()) != "out 1\n" || string(got.GetStderr()) != "err\n" || got.GetExitCode() != 5 {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = h.execSync(id, 60, "sh", "-c", "grep -E 'SigIgn|SigBlk|Seccomp:|CapEff' /proc/self/status; umask; ls /proc/self/fd")
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n0022\n0\n1\n2\n3\n"
	if err != nil || string(got.GetStdout()) != want {
		t.Errorf("surroundings: got %q, want %q; %v", got.GetStdout(), want, err)
	}
	if got, err := h.execSync(id, 60, "sh", "-c", "kill -9 $$"); err != nil || got.GetExitCode() != 137 {
		t.Errorf("killed: got %v, %v", got, err)
	}
	if _, err := h.execSync(id, 60, "nosuchcommand"); err == nil || !strings.Contains(err.Error(), "nosuchcommand") {
		t.Errorf("no such command: %v", err)
	}

	// A timeout takes along what the command has started, detached or not.
	began := time.Now()
	_, err = h.execSync(id, 1, "sh", "-c", "(sleep 777 &) ; sleep 777")
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("timeout: %v", err)
	}
	if took := time.Since(began); took > time.Minute { // 777 s, if it were waited for
		t.Errorf("timeout took %s", took)
	}
	h.eventually("children to be killed", func() error {
		got, err := h.execSync(id, 60, "ps", "-o", "args")
		if err != nil {
			return err
		}
		if strings.Contains(string(got.GetStdout()), "sleep 777") {
			return status.Error(codes.Internal, string(got.GetStdout()))
		}
		return nil
	})

	// A child that keeps the pipes open does not hold the answer up for ever.
	if got, err := h.execSync(id, 60, "sh", "-c", "sleep 3 & echo done"); err != nil || string(got.GetStdout()) != "done\n" {
		t.Errorf("background child: %v, %v", got, err)
	}
	if got, err := h.execSync(id, 60, "dd", "if=/dev/zero", "bs=1M", "count=20", "status=none"); err != nil || len(got.GetStdout()) != maxExecOutput {
		t.Errorf("cap: %d bytes, %v", len(got.GetStdout()), err)
	}
}
