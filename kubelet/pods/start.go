package pods

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/environ"
	"github.com/skiff-k8s/skiff/kubelet/images"
)

// starter starts containers in a sandbox. Failures are remembered as reasons to
// wait; those that need another step are in err.
type starter struct {
	w       *worker
	pod     *corev1.Pod
	rt      *cri.Pod
	sandbox string
	cfg     *runtimeapi.PodSandboxConfig
	ips     []string
	users   *runtimeapi.UserNamespace
	err     error
}

// start starts one container unless it has to wait. It tells whether it did anything.
func (s *starter) start(ctx context.Context, c *corev1.Container, target string) bool {
	w := s.w
	now := time.Now()
	last := s.rt.Find(c.Name)
	if last != nil && w.forgiven[last.ID] {
		delete(w.forgiven, last.ID)
	} else if last != nil && last.State == cri.StateExited {
		loop := w.crashes[c.Name]
		if until := loop.until(now, last.FinishedAt); !until.IsZero() {
			w.again(until)
			why := waitReason{"CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", loop.wait, c.Name, describe(s.pod))}
			changed := w.waiting[c.Name] != why
			w.waiting[c.Name] = why
			if loop.told != last.ID {
				loop.told = last.ID
				w.m.containerEvent(s.pod, c, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, describe(s.pod)))
			}
			return changed
		}
		w.crashes[c.Name] = loop.restarted(now, last.FinishedAt)
	}
	why, retryAt, err := s.run(ctx, c, last, target)
	if why == nil {
		delete(w.waiting, c.Name)
		return true
	}
	if ctx.Err() != nil {
		return true
	}
	w.log.Info("container not started", "container", c.Name, "reason", why.Reason, "message", why.Message)
	changed := w.waiting[c.Name] != *why
	w.waiting[c.Name] = *why
	if !retryAt.IsZero() {
		w.again(retryAt)
	} else {
		s.err = errors.Join(s.err, err)
	}
	return changed
}

// run pulls, creates and starts; a reason says why it did not come to that.
func (s *starter) run(ctx context.Context, c *corev1.Container, last *cri.Container, target string) (*waitReason, time.Time, error) {
	w, m := s.w, s.w.m
	var never time.Time
	fail := func(reason string, err error) (*waitReason, time.Time, error) {
		msg := cri.Message(err)
		if ctx.Err() == nil {
			m.containerEvent(s.pod, c, corev1.EventTypeWarning, "Failed", "Error: "+msg)
		}
		return &waitReason{reason, msg}, never, fmt.Errorf("start container %s: %w", c.Name, err)
	}

	img, ierr := m.cfg.Images.Ensure(ctx, images.Request{
		Pod: s.pod.UID, Image: c.Image, Policy: c.ImagePullPolicy, Secrets: m.pullSecrets(ctx, s.pod), Sandbox: s.cfg,
		Event: func(kind, reason, msg string) { m.containerEvent(s.pod, c, kind, reason, msg) },
	})
	if ierr != nil {
		if ctx.Err() == nil {
			m.containerEvent(s.pod, c, corev1.EventTypeWarning, "Failed", "Error: "+ierr.Reason)
		}
		at := ierr.RetryAt
		if at.IsZero() {
			at = time.Now().Add(10 * time.Second)
		}
		return &waitReason{ierr.Reason, ierr.Message}, at, ierr
	}

	restarts := 0
	if last != nil {
		restarts = last.RestartCount + 1
	} else {
		restarts = nextLog(filepath.Join(s.cfg.LogDirectory, c.Name))
	}
	a := criconfig.Attempt{RestartCount: restarts, ImageRef: img.Ref, UID: img.UID, Username: img.Username, Users: s.users}
	if target != "" {
		t := s.rt.Find(target)
		if t == nil {
			return fail("CreateContainerConfigError", fmt.Errorf("unable to find target container %v", target))
		}
		a.TargetID = t.ID
	}
	var err error
	if a.Env, err = m.environment(ctx, s.pod, c, s.ips); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	node := m.cfg.CRINode()
	if a.Mounts, err = m.cfg.Volumes.Mounts(s.pod, c, a.Env, w.images, node.RecursiveReadOnly); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	if a.Mounts, err = s.ownMounts(c, a.Mounts); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	cfg, err := criconfig.Container(node, s.pod, c, a)
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	m.cfg.CRI.Own(cfg.Labels)
	if err := makeDir(filepath.Join(s.cfg.LogDirectory, c.Name)); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	created, err := m.cfg.CRI.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: s.sandbox, Config: cfg, SandboxConfig: s.cfg})
	if err != nil {
		return fail("CreateContainerError", err)
	}
	id := created.ContainerId
	m.containerEvent(s.pod, c, corev1.EventTypeNormal, "Created", "Container created")
	if _, err := m.cfg.CRI.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return fail("RunContainerError", errors.New(strings.ReplaceAll(cri.Message(err), id, c.Name)))
	}
	m.containerEvent(s.pod, c, corev1.EventTypeNormal, "Started", "Container started")
	m.linkLog(s.pod, c.Name, id, filepath.Join(s.cfg.LogDirectory, cfg.LogPath))

	if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		w.report(ctx, s.pod) // a hook may take long; the container runs meanwhile
		if msg, err := m.hook(ctx, s.pod, c, id, first(s.ips, s.pod, m.cfg.HostIPs()), c.Lifecycle.PostStart); err != nil {
			if ctx.Err() != nil {
				return &waitReason{"PostStartHookError", err.Error()}, never, err
			}
			w.log.Info("postStart hook failed", "container", c.Name, "error", err)
			m.containerEvent(s.pod, c, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
			kerr := w.killContainer(ctx, s.pod, c, id, "FailedPostStartHook", killOther, nil, nil)
			return &waitReason{"PostStartHookError", msg}, never, errors.Join(err, kerr)
		}
	}
	return nil, never, nil
}

// ownMounts adds the files that the kubelet itself gives to containers: /etc/hosts
// and the termination message.
func (s *starter) ownMounts(c *corev1.Container, mounts []*runtimeapi.Mount) ([]*runtimeapi.Mount, error) {
	taken := map[string]bool{}
	for _, m := range mounts {
		taken[filepath.Clean(m.ContainerPath)] = true
	}
	dir := s.w.m.cfg.Volumes.PodDir(s.pod.UID)
	if (s.pod.Spec.HostNetwork || len(s.ips) > 0) && !taken["/etc/hosts"] {
		var own []byte
		if s.pod.Spec.HostNetwork {
			var err error
			if own, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("read the node's hosts file: %w", err)
			}
		}
		raw, err := criconfig.HostsFile(s.w.m.cfg.CRINode().ClusterDomain, s.pod, s.ips, own)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "etc-hosts")
		if have, err := os.ReadFile(path); err != nil || string(have) != string(raw) {
			// In place: running containers have this very file mounted.
			if err := makeDir(dir); err != nil {
				return nil, err
			}
			if err := writeOpen(path, raw, 0o644); err != nil {
				return nil, fmt.Errorf("write hosts file: %w", err)
			}
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path, Readonly: c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem})
	}
	if p := c.TerminationMessagePath; p != "" && !taken[filepath.Clean(p)] {
		var rnd [4]byte
		if _, err := rand.Read(rnd[:]); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "containers", c.Name, hex.EncodeToString(rnd[:]))
		if err := makeDir(filepath.Dir(path)); err != nil {
			return nil, err
		}
		// Containers of any user write it.
		if err := writeOpen(path, nil, 0o666); err != nil {
			return nil, fmt.Errorf("make termination message file: %w", err)
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: p, HostPath: path})
	}
	return mounts, nil
}

// writeOpen writes a file with exactly that mode, whatever the umask.
func writeOpen(path string, raw []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, raw, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func makeDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

// nextLog is the restart count that follows those whose logs are there, when the
// runtime has forgotten the containers.
func nextLog(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	next := 0
	for _, e := range entries {
		n, _, ok := strings.Cut(e.Name(), ".log")
		if i, err := strconv.Atoi(n); ok && err == nil && i >= next {
			next = i + 1
		}
	}
	return next
}

// environment of a container.
func (m *Manager) environment(ctx context.Context, pod *corev1.Pod, c *corev1.Container, ips []string) ([]environ.Var, error) {
	if m.cfg.Client != nil && !isStatic(pod) {
		t := time.NewTimer(5 * time.Second)
		defer t.Stop()
		select {
		case <-m.cfg.Services.Synced():
		case <-t.C:
			return nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	host := m.cfg.HostIPs()
	if pod.Spec.HostNetwork {
		ips = host
	}
	return environ.Make(pod, c, environ.Sources{
		ConfigMap: func(name string) (*corev1.ConfigMap, error) { return m.cfg.Objects.ConfigMap(ctx, pod.Namespace, name) },
		Secret:    func(name string) (*corev1.Secret, error) { return m.cfg.Objects.Secret(ctx, pod.Namespace, name) },
		Services:  m.cfg.Services.Links(pod.Namespace, pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks),
		EnvFile: func(volume, path string) ([]byte, error) {
			dir, err := m.cfg.Volumes.Path(pod.UID, volume)
			if err != nil {
				return nil, err
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				return nil, err
			}
			defer root.Close()
			return root.ReadFile(path)
		},
		Downward: environ.Downward{HostIPs: host, PodIPs: ips, Allocatable: m.cfg.Allocatable()},
	})
}

// pullSecrets that exist; the others may not be needed.
func (m *Manager) pullSecrets(ctx context.Context, pod *corev1.Pod) []*corev1.Secret {
	var out []*corev1.Secret
	for _, r := range pod.Spec.ImagePullSecrets {
		if r.Name == "" {
			continue
		}
		s, err := m.cfg.Objects.Secret(ctx, pod.Namespace, r.Name)
		if err != nil {
			m.podEvent(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", r.Name))
			continue
		}
		out = append(out, s)
	}
	return out
}

// imageVolumes makes sure that the images which pods mount are there.
func (w *worker) imageVolumes(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Image == nil || w.images[v.Name] != "" {
			continue
		}
		if err := w.m.supportsImageVolumes(); err != nil {
			w.m.podEvent(pod, corev1.EventTypeWarning, "FailedMount", fmt.Sprintf("volume %q: %v", v.Name, err))
			for j := range pod.Spec.Containers {
				w.waiting[pod.Spec.Containers[j].Name] = waitReason{"CreateContainerConfigError", fmt.Sprintf("volume %q: %v", v.Name, err)}
			}
			return err
		}
		img, err := w.m.cfg.Images.Ensure(ctx, images.Request{
			Pod: pod.UID, Image: v.Image.Reference, Policy: v.Image.PullPolicy, Secrets: w.m.pullSecrets(ctx, pod),
			Event: func(kind, reason, msg string) { w.m.podEvent(pod, kind, reason, msg) },
		})
		if err != nil {
			for j := range pod.Spec.Containers {
				w.waiting[pod.Spec.Containers[j].Name] = waitReason{err.Reason, err.Message}
			}
			w.again(err.RetryAt)
			return err
		}
		w.images[v.Name] = img.Ref
	}
	return nil
}
