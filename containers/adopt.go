package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

// Reasons that containers end with beside what their processes say.
const (
	reasonCompleted  = "Completed"
	reasonError      = "Error"
	reasonOOMKilled  = "OOMKilled"
	reasonUnknown    = "Unknown"    // ended while nobody watched
	reasonStartError = "StartError" // never ran
)

// adopt brings the records in line with what is really there: containers that
// went on running while no runtime did, those that ended meanwhile, and those
// that a reboot took away.
func (r *Runtime) adopt(ctx context.Context) error {
	rebooted, err := r.noteBoot()
	if err != nil {
		return err
	}
	if rebooted {
		r.log.Info("the machine has been rebooted since this runtime last ran")
		if err := r.forgetLastBoot(); err != nil {
			return err
		}
	}
	for _, c := range r.allContainers() {
		if err := r.adoptContainer(c); err != nil {
			return err
		}
	}
	for _, s := range r.allSandboxes() {
		rec := s.record()
		if rec.Ready && sandbox.Intact(r.sandboxConfig(rec.ID, s.cfg)) {
			continue
		}
		if rec.Ready {
			r.log.Info("a sandbox has lost its namespaces", "sandbox", rec.ID)
			if err := r.updateSandbox(s, func(x *sandboxRecord) { x.Ready = false }); err != nil {
				return err
			}
		}
		// Half made or half stopped: finish it, as far as it goes.
		if err := r.releaseSandbox(ctx, s); err != nil {
			r.log.Warn("sandbox not fully released", "sandbox", rec.ID, "err", err)
		}
	}
	r.collectNetwork(ctx)
	return nil
}

// collectNetwork has the network forget sandboxes that this runtime does not know. A network that
// can't now can at the next start.
func (r *Runtime) collectNetwork(ctx context.Context) {
	c, ok := r.cfg.Network.(Collector)
	if !ok {
		return
	}
	var live []string
	for _, s := range r.allSandboxes() {
		if rec := s.record(); rec.Attached {
			live = append(live, rec.ID)
		}
	}
	if err := c.Collect(ctx, live); err != nil {
		r.log.Warn("collect left-over network attachments", "err", err)
	}
}

// noteBoot compares the boot that the state directory belongs to with this one.
func (r *Runtime) noteBoot() (rebooted bool, err error) {
	now, last, err := r.boots()
	if err != nil || now == last {
		return false, err
	}
	return last != "", record.Write(filepath.Join(r.cfg.StateDir, "boot_id"), []byte(now), false)
}

func (r *Runtime) boots() (now, last string, err error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", fmt.Errorf("read boot ID: %w", err)
	}
	old, err := os.ReadFile(filepath.Join(r.cfg.StateDir, "boot_id"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", fmt.Errorf("read boot ID: %w", err)
	}
	return string(b), string(old), nil
}

// forgetLastBoot deletes what died with the last boot: its pids mean other
// processes now. Nothing can be mounted there, or it would not be another boot.
func (r *Runtime) forgetLastBoot() error {
	for _, dir := range []string{filepath.Join(r.cfg.StateDir, "containers"), filepath.Join(r.cfg.StateDir, "sandboxes"), r.ociRoot()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove state of the last boot: %w", err)
		}
	}
	return nil
}

func (r *Runtime) allContainers() []*containerState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*containerState, 0, len(r.containers))
	for _, c := range r.containers {
		out = append(out, c)
	}
	return out
}

func (r *Runtime) allSandboxes() []*sandboxState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*sandboxState, 0, len(r.sandboxes))
	for _, s := range r.sandboxes {
		out = append(out, s)
	}
	return out
}

func (r *Runtime) adoptContainer(c *containerState) error {
	rec := c.record()
	running := rec.State == runtimeapi.ContainerState_CONTAINER_RUNNING
	if !running && !rec.Starting {
		return nil
	}
	w, err := monitor.Subscribe(r.containerRun(rec.ID))
	if err == nil && w.PID != 0 {
		if !running {
			// The runtime died between the start and its record.
			started := time.Now()
			err := r.updateContainer(c, func(x *containerRecord) {
				x.State, x.Starting, x.PID, x.Started = runtimeapi.ContainerState_CONTAINER_RUNNING, false, w.PID, started
			})
			if err != nil {
				return errors.Join(err, w.Close())
			}
		}
		r.watch(c, w)
		return nil
	}
	if err == nil {
		// Ended this moment: its monitor is about to write the exit file.
		if e, err := w.Wait(); err == nil {
			return r.ended(c, e)
		}
	} else if !errors.Is(err, monitor.ErrGone) {
		return err
	}
	return r.ended(c, r.lastWords(rec))
}

// lastWords finds out how a container ended whose monitor does not answer.
func (r *Runtime) lastWords(rec containerRecord) *monitor.Exit {
	id := rec.ID
	e, err := monitor.ReadExit(r.exitFile(id))
	if err == nil {
		return e
	}
	if !errors.Is(err, os.ErrNotExist) {
		r.log.Warn("exit file unusable", "container", id, "err", err)
	}
	// The monitor was killed. What it left must not run unwatched.
	if s, err := monitor.ReadState(r.containerRun(id)); err == nil {
		if err := killOrphan(s, rec.Cgroup); err != nil {
			r.log.Warn("orphaned container not killed", "container", id, "err", err)
		}
	}
	return nil
}

// killOrphan ends what a monitor left. A signal may be kept away by an AppArmor
// profile, the cgroup's kill is not.
func killOrphan(s *monitor.State, group string) error {
	err := monitor.Kill(s)
	if errors.Is(err, os.ErrPermission) && group != "" {
		return errors.Join(cgroup.At(group).Kill(), monitor.AwaitEnd(s))
	}
	return err
}

// watch waits for the container's end in the background.
func (r *Runtime) watch(c *containerState, w *monitor.Watch) {
	r.watching.Add(2)
	over := make(chan struct{})
	go func() {
		defer r.watching.Done()
		select {
		case <-r.stop:
			_ = w.Close()
		case <-over:
		}
	}()
	go func() {
		defer r.watching.Done()
		defer close(over)
		e, err := w.Wait()
		select {
		case <-r.stop:
			return // the next runtime will see to it
		default:
		}
		id := c.record().ID
		if err != nil {
			r.log.Warn("lost a container's monitor", "container", id, "err", err)
			e = r.lastWords(c.record())
		}
		if err := r.ended(c, e); err != nil {
			r.log.Error("end of container not recorded", "container", id, "err", err)
		}
	}()
}

// ended records the end, nil for one that nobody saw, and takes away what only
// a running container needs.
func (r *Runtime) ended(c *containerState, e *monitor.Exit) error {
	err := r.updateContainer(c, func(x *containerRecord) {
		x.State, x.Starting, x.PID = runtimeapi.ContainerState_CONTAINER_EXITED, false, 0
		if e == nil {
			x.Finished, x.ExitCode, x.Reason = time.Now(), 255, reasonUnknown
			x.Message = "the container ended while its monitor was not running; how is not known"
			return
		}
		x.Finished, x.ExitCode = e.FinishedAt, e.Code
		if x.Started.IsZero() || x.Started.After(x.Finished) {
			x.Started = x.Finished // over before we had noted its start
		}
		switch {
		case e.OOM:
			x.Reason = reasonOOMKilled
		case e.Code == 0:
			x.Reason = reasonCompleted
		default:
			x.Reason = reasonError
		}
	})
	id := c.record().ID
	if cerr := r.clearRuntimeState(c); cerr != nil {
		r.log.Warn("container not fully cleaned up", "container", id, "err", cerr)
	}
	close(c.exited)
	r.publish(id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.record().SandboxID)
	return err
}

// oneLine keeps messages to what status fields can show.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
