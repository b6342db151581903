package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/oci"
	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/snapshot"
)

// CreateContainer prepares a container's root file system and spec; no process
// is made before StartContainer.
func (r *Runtime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	cfg := req.GetConfig()
	if cfg.GetMetadata().GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "config.metadata.name: required")
	}
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	pod := s.record()
	if !pod.Ready {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %s is not ready", pod.ID)
	}
	img, err := r.images.Ensure(ctx, cfg.GetImage().GetImage())
	if errors.Is(err, image.ErrNotFound) {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if err != nil {
		return nil, err
	}
	if err := r.resolveImageMounts(ctx, cfg.GetMounts()); err != nil {
		return nil, err
	}
	b, err := proto.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode container configuration: %w", err)
	}
	id := newID()
	c := &containerState{cfg: cfg, exited: make(chan struct{}), pod: pod.ID, rec: containerRecord{
		Header: record.Header{Version: containerVersion},
		ID:     id, SandboxID: pod.ID, Config: b, Created: time.Now(),
		ImageID: img.ID, ImageName: imageName(img, cfg.GetImage()), ImageRef: imageRef(img), Chain: img.Chain(),
		Cgroup: filepath.Join(pod.Cgroup, id), Signal: oci.StopSignal(cfg, img.ConfigFile()),
		State: runtimeapi.ContainerState_CONTAINER_CREATED,
	}}
	if p := cfg.GetLogPath(); p != "" {
		c.rec.LogPath = filepath.Join(s.cfg.GetLogDirectory(), p)
	}
	if err := os.MkdirAll(r.containerDir(id), 0o700); err != nil {
		return nil, fmt.Errorf("make container record: %w", err)
	}
	if err := r.updateContainer(c, func(*containerRecord) {}); err != nil {
		return nil, err
	}
	if err := r.prepare(ctx, c, s, img); err != nil {
		if cerr := r.dropContainer(c); cerr != nil {
			r.log.Warn("failed container not fully removed", "container", id, "err", cerr)
			r.mu.Lock()
			r.containers[id] = c // for the client to remove
			r.mu.Unlock()
		}
		return nil, err
	}
	r.mu.Lock()
	r.containers[id] = c
	r.mu.Unlock()
	r.publish(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, pod.ID)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// resolveImageMounts notes in mounts of images which images they are: clients read it in the
// container's status (KEP-5365).
func (r *Runtime) resolveImageMounts(ctx context.Context, mounts []*runtimeapi.Mount) error {
	for i, m := range mounts {
		if m.GetImage().GetImage() == "" {
			continue
		}
		if !m.GetReadonly() {
			return status.Errorf(codes.InvalidArgument, "mounts[%d].readonly: an image is mounted read-only only (%s)", i, m.GetContainerPath())
		}
		img, err := r.images.Ensure(ctx, m.GetImage().GetImage())
		if errors.Is(err, image.ErrNotFound) {
			return status.Errorf(codes.NotFound, "mounts[%d].image: %v", i, err)
		}
		if err != nil {
			return fmt.Errorf("mounts[%d].image: %w", i, err)
		}
		m.Image.ImageRef = img.ID.String()
	}
	return nil
}

// StartContainer makes the container's monitor, which makes its process.
func (r *Runtime) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	if rec.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is %s, not created", rec.ID, stateName(rec.State))
	}
	if err := r.start(c); err != nil {
		err = errors.New(oneLine(err.Error()))
		uerr := r.updateContainer(c, func(x *containerRecord) {
			x.State, x.Starting = runtimeapi.ContainerState_CONTAINER_EXITED, false
			x.Started, x.Finished = time.Unix(0, 0), time.Now()
			x.ExitCode, x.Reason, x.Message = 128, reasonStartError, err.Error()
		})
		if cerr := r.clearRuntimeState(c); cerr != nil {
			r.log.Warn("container not fully cleaned up", "container", rec.ID, "err", cerr)
		}
		close(c.exited)
		r.publish(rec.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, rec.SandboxID)
		return nil, errors.Join(fmt.Errorf("start container %s: %w", rec.ID[:12], err), uerr)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

func (r *Runtime) start(c *containerState) error {
	rec := c.record()
	if rec.LogPath != "" {
		if err := os.MkdirAll(filepath.Dir(rec.LogPath), 0o755); err != nil {
			return fmt.Errorf("make log directory: %w", err)
		}
	}
	if err := r.updateContainer(c, func(x *containerRecord) { x.Starting = true }); err != nil {
		return err
	}
	run := r.containerRun(rec.ID)
	pid, err := monitor.Start(monitor.Config{
		Program: r.monitor, Dir: run, ExitFile: r.exitFile(rec.ID), LogFile: rec.LogPath,
		OOMFile: cgroup.At(rec.Cgroup).OOMFile(),
		TTY:     c.cfg.GetTty(), Stdin: c.cfg.GetStdin(), StdinOnce: c.cfg.GetStdinOnce(),
		Launcher: []string{r.launcher, "create", r.ociRoot(), rec.ID, filepath.Join(run, "config.json")},
	})
	if err != nil {
		return err
	}
	started := time.Now()
	err = r.updateContainer(c, func(x *containerRecord) {
		x.State, x.Starting, x.PID, x.Started = runtimeapi.ContainerState_CONTAINER_RUNNING, false, pid, started
	})
	if err != nil {
		return errors.Join(err, monitor.Signal(run, unix.SIGKILL))
	}
	r.publish(rec.ID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, rec.SandboxID)
	w, err := monitor.Subscribe(run)
	if errors.Is(err, monitor.ErrGone) {
		// So short-lived that its monitor is done.
		return r.ended(c, r.lastWords(rec))
	}
	if err != nil {
		return errors.Join(err, monitor.Signal(run, unix.SIGKILL))
	}
	r.watch(c, w)
	return nil
}

// StopContainer asks the container to end and kills it after the grace period.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if status.Code(err) == codes.NotFound {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stopContainer(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (r *Runtime) stopContainer(ctx context.Context, c *containerState, grace time.Duration) error {
	// Not behind c.op: a start under way is waited for by its end alone.
	c.op.Lock()
	rec := c.record()
	c.op.Unlock()
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if grace > 0 {
		sig, err := oci.ParseSignal(rec.Signal)
		if err != nil {
			r.log.Warn("stop signal unusable, using SIGTERM", "container", rec.ID, "err", err)
			sig = unix.SIGTERM
		}
		err = r.signal(rec, sig)
		if err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
		if err != nil {
			r.log.Warn("the container's AppArmor profile keeps its stop signal away: killed at once", "container", rec.ID, "err", err)
			grace = 0
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.exited:
			return nil
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := r.signal(rec, unix.SIGKILL)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	if rec.SharedPID || err != nil {
		// Other processes of this container are not its init's descendants in
		// a namespace of their own: they die by the cgroup. So does whom an
		// AppArmor profile shields: the cgroup's kill asks no profile.
		if err := cgroup.At(rec.Cgroup).Kill(); err != nil {
			return err
		}
	}
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal sends to the container's init; one that has ended is no error.
func (r *Runtime) signal(rec containerRecord, sig unix.Signal) error {
	err := monitor.Signal(r.containerRun(rec.ID), sig)
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, monitor.ErrGone) {
		return nil
	}
	return fmt.Errorf("signal container %s: %w", rec.ID[:12], err)
}

// RemoveContainer removes a container, killing it if it runs.
func (r *Runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if status.Code(err) == codes.NotFound {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.removeContainer(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (r *Runtime) removeContainer(ctx context.Context, c *containerState) error {
	if err := r.stopContainer(ctx, c, 0); err != nil {
		return err
	}
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	if err := r.dropContainer(c); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.containers, rec.ID)
	r.mu.Unlock()
	r.usage.forget(rec.ID)
	r.publish(rec.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, rec.SandboxID)
	return nil
}

// clearRuntimeState takes away what only a running container needs.
func (r *Runtime) clearRuntimeState(c *containerState) error {
	rec := c.record()
	g := cgroup.At(rec.Cgroup)
	errs := []error{g.Kill(), g.Remove(), r.unmountContainer(rec.ID)}
	if errors.Join(errs...) == nil {
		// Never while something is mounted below.
		errs = append(errs, os.RemoveAll(r.containerRun(rec.ID)), os.RemoveAll(filepath.Join(r.ociRoot(), rec.ID)))
	}
	return errors.Join(errs...)
}

func (r *Runtime) unmountContainer(id string) error {
	run, mapped := r.containerRun(id), r.mappedRootfs(id)
	errs := []error{snapshot.Unmount(r.rootfs(id)), snapshot.Unmount(mapped)}
	for _, dir := range []string{mapped, filepath.Dir(mapped)} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, dir := range []string{"images", "lower"} {
		entries, err := os.ReadDir(filepath.Join(run, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			errs = append(errs, snapshot.Unmount(filepath.Join(run, dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// dropContainer takes everything of a container that does not run away, its
// record last.
func (r *Runtime) dropContainer(c *containerState) error {
	if err := r.clearRuntimeState(c); err != nil {
		return err
	}
	if err := os.RemoveAll(r.containerDir(c.record().ID)); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

func stateName(s runtimeapi.ContainerState) string {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return "created"
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return "running"
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return "exited"
	}
	return "in an unknown state"
}
