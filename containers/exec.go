package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/container"
	"github.com/skiff-k8s/skiff/containers/record"
)

// maxExecOutput is what ExecSync returns of each stream; CRI asks for the cap
// (CVE-2022-1708).
const maxExecOutput = 16 << 20

func (r *Runtime) readSpec(id string) (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(r.containerRun(id), "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read spec of container %s: %w", id[:12], err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("parse spec of container %s: %w", id[:12], err)
	}
	return &spec, nil
}

func (r *Runtime) writeSpec(id string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	return record.Write(filepath.Join(r.containerRun(id), "config.json"), b, false)
}

// ExecSync runs a command and returns what it printed.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	stdout, stderr := &capped{max: maxExecOutput}, &capped{max: maxExecOutput}
	timeout := time.Duration(req.GetTimeout()) * time.Second
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	code, err := r.exec(ctx, req.GetContainerId(), req.GetCmd(), false, nil, stdout, stderr, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, status.Errorf(codes.DeadlineExceeded, "command %q timed out after %s", req.GetCmd(), timeout)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout.buf, Stderr: stderr.buf, ExitCode: code}, nil
}

// capped keeps the first max bytes and takes the rest without complaint.
type capped struct {
	buf []byte
	max int
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.max - len(c.buf); room > 0 {
		c.buf = append(c.buf, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// exec runs a command in a running container, as the container's own user and
// with its limits, and kills it with all it started when ctx ends.
func (r *Runtime) exec(ctx context.Context, id string, cmd []string, tty bool, stdin io.Reader, stdout, stderr io.Writer, resize <-chan container.Size) (int32, error) {
	if len(cmd) == 0 {
		return 0, status.Error(codes.InvalidArgument, "cmd: empty")
	}
	c, err := r.containerFor(id)
	if err != nil {
		return 0, err
	}
	rec := c.record()
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return 0, status.Errorf(codes.FailedPrecondition, "container %s is %s, not running", rec.ID, stateName(rec.State))
	}
	spec, err := r.readSpec(rec.ID)
	if err != nil {
		return 0, err
	}
	process := *spec.Process
	process.Args, process.Terminal = cmd, tty
	group, child := cgroup.At(rec.Cgroup), "exec-"+newID()[:12]
	groups, err := group.Child(child)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, dir := range groups {
			// Stays if something of it goes on in the background; it goes
			// with the container then.
			_ = os.Remove(dir)
		}
	}()
	code, err := container.Exec{
		Launcher: r.launcher, StateRoot: r.ociRoot(), ID: rec.ID, Process: process, Cgroups: groups,
		Stdin: stdin, Stdout: stdout, Stderr: stderr, Resize: resize,
	}.Run(ctx)
	var start *container.StartError
	if errors.As(err, &start) {
		return 0, status.Errorf(codes.Unknown, "run %q: %s", cmd[0], oneLine(start.Reason))
	}
	return code, err
}
