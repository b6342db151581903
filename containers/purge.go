package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

// Down ends every container and sandbox that a runtime with this configuration
// has made, and takes their mounts, namespaces, cgroups and records away.
// Images stay. It needs no running runtime and goes by what is on disk; while a
// runtime runs it refuses. What it did not make it does not touch. It may be
// called again, and does as much as it can when something fails.
func Down(ctx context.Context, cfg Config) error {
	if cfg.RootDir == "" || cfg.Network == nil {
		return errors.New("rootDir and network: required")
	}
	setDefault(&cfg.StateDir, filepath.Join(cfg.RootDir, "run"))
	setDefault(&cfg.SocketPath, filepath.Join(cfg.StateDir, "cri.sock"))
	setDefault(&cfg.CgroupRoot, "/skiff")
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if c, err := net.Dial("unix", cfg.SocketPath); err == nil {
		_ = c.Close()
		return fmt.Errorf("socket %s: its runtime still runs; end it first", cfg.SocketPath)
	}
	r := &Runtime{cfg: cfg, log: cfg.Logger}
	var errs []error
	note := func(err error) error {
		if err != nil {
			errs = append(errs, err)
		}
		return nil
	}
	each := func(root string, f func(id string) error) {
		err := eachDir(root, f, func(dir string, err error) error {
			return note(fmt.Errorf("%s: %w", filepath.Base(dir), err))
		})
		_ = note(err)
	}
	if now, last, err := r.boots(); err != nil {
		return err
	} else if last != "" && now != last {
		if err := r.forgetLastBoot(); err != nil {
			return err
		}
	}
	_ = note(sandbox.Remove(filepath.Join(cfg.StateDir, "probe")))
	each(filepath.Join(cfg.StateDir, "containers"), r.downContainer)
	each(r.containerRoot(), r.downContainer)
	each(filepath.Join(cfg.StateDir, "sandboxes"), func(id string) error { return r.downSandbox(ctx, id) })
	each(r.sandboxRoot(), func(id string) error { return r.downSandbox(ctx, id) })
	if len(errs) > 0 {
		return fmt.Errorf("take containers down: %w", errors.Join(errs...))
	}
	_ = note(cgroup.At(cfg.CgroupRoot).RemoveEmpty())
	// Not an error: another data directory's containers may be there.
	mapped := filepath.Dir(filepath.Dir(r.mappedRootfs("any")))
	_ = os.Remove(mapped)
	_ = os.Remove(filepath.Dir(mapped))
	if err := os.Remove(cfg.SocketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = note(err)
	}
	return errors.Join(errs...)
}

func (r *Runtime) downContainer(id string) error {
	// An unreadable record does not keep us from what the monitor wrote.
	var rec containerRecord
	rerr := record.Load(filepath.Join(r.containerDir(id), "container.json"), &rec, containerVersion)
	if errors.Is(rerr, record.ErrNewer) {
		return rerr
	}
	if s, err := monitor.ReadState(r.containerRun(id)); err == nil {
		if err := killOrphan(s, rec.Cgroup); err != nil {
			return err
		}
	}
	c := &containerState{pod: rec.SandboxID, rec: rec}
	c.rec.ID = id
	if rec.Cgroup == "" {
		if err := r.unmountContainer(id); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(r.containerRun(id)), os.RemoveAll(filepath.Join(r.ociRoot(), id)), os.RemoveAll(r.containerDir(id)))
	}
	return r.dropContainer(c)
}

func (r *Runtime) downSandbox(ctx context.Context, id string) error {
	s := &sandboxState{cfg: &runtimeapi.PodSandboxConfig{}}
	err := record.Load(filepath.Join(r.sandboxDir(id), "sandbox.json"), &s.rec, sandboxVersion)
	if errors.Is(err, record.ErrNewer) {
		return err
	}
	if err == nil {
		err = proto.Unmarshal(s.rec.Config, s.cfg)
	}
	if err != nil {
		return errors.Join(sandbox.Remove(r.sandboxRun(id)), os.RemoveAll(r.sandboxDir(id)))
	}
	if err := r.dropSandbox(ctx, s); err != nil {
		return err
	}
	// What libcontainer made of the pod's cgroup in hierarchies that the
	// kubelet does not manage; with other containers in it, it stays.
	return cgroup.At(s.rec.Cgroup).RemoveEmpty()
}
