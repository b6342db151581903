package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/container"
	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

// imageName is how clients will see the image named: as the user wrote it, if
// it has that name still.
func imageName(img *image.Image, spec *runtimeapi.ImageSpec) string {
	if full, err := image.Normalize(spec.GetUserSpecifiedImage()); err == nil && slices.Contains(img.Tags, full) {
		return full
	}
	for _, names := range [][]string{img.Tags, img.Digests} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return spec.GetImage()
}

func imageRef(img *image.Image) string {
	if len(img.Digests) > 0 {
		return img.Digests[0]
	}
	return img.ID.String()
}

// prepare mounts the root file system and writes the spec.
func (r *Runtime) prepare(ctx context.Context, c *containerState, s *sandboxState, img *image.Image) error {
	rec := c.record()
	run := r.containerRun(rec.ID)
	if err := os.MkdirAll(run, 0o700); err != nil {
		return fmt.Errorf("make container directory: %w", err)
	}
	ns, err := r.namespaces(c, s)
	if err != nil {
		return err
	}
	rootfs := r.rootfs(rec.ID)
	if ns.User != "" {
		if rootfs, err = r.makeMappedRootfs(rec.ID, s); err != nil {
			return err
		}
		err = r.layers.MountMapped(rec.Chain, r.containerDir(rec.ID), rootfs, filepath.Join(run, "lower"), ns.User)
	} else {
		err = r.layers.Mount(rec.Chain, r.containerDir(rec.ID), rootfs)
	}
	if err != nil {
		return err
	}
	volumes, err := r.volumes(ctx, c, img, rootfs)
	if err != nil {
		return err
	}
	for _, m := range c.cfg.GetMounts() {
		if m.GetHostPath() == "" {
			continue
		}
		// As other runtimes do for a hostPath of no declared type.
		if _, err := os.Stat(m.GetHostPath()); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(m.GetHostPath(), 0o755); err != nil {
				return fmt.Errorf("mounts.hostPath: make %s: %w", m.GetHostPath(), err)
			}
		}
	}
	profile, err := r.apparmor.Of(ctx, c.cfg.GetLinux().GetSecurityContext())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "securityContext.apparmor: %v", err)
	}
	paths := sandbox.Layout(r.sandboxConfig(rec.SandboxID, s.cfg))
	spec, err := oci.Build(oci.Input{
		Container: c.cfg, Sandbox: s.cfg, Image: img.ConfigFile(),
		RootFS: rootfs, CgroupPath: rec.Cgroup, Namespaces: ns,
		Files:   oci.Files{Shm: paths.Shm, Hosts: paths.Hosts, Hostname: paths.Hostname, ResolvConf: paths.ResolvConf},
		Volumes: volumes, Host: r.host, AppArmor: profile, DefaultCapabilities: r.cfg.DefaultCapabilities,
	})
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	if err := record.Write(filepath.Join(run, "config.json"), b, false); err != nil {
		return err
	}
	return r.updateContainer(c, func(x *containerRecord) {
		x.UID, x.GID, x.Groups = spec.Process.User.UID, spec.Process.User.GID, spec.Process.User.AdditionalGids
		x.SharedPID = !ns.PrivatePID
	})
}

// makeMappedRootfs makes the way to a mapped root file system: open to the
// sandbox's own root group, and to no other user of the host (CVE-2021-41103).
func (r *Runtime) makeMappedRootfs(id string, s *sandboxState) (string, error) {
	rootfs := r.mappedRootfs(id)
	way := filepath.Dir(rootfs)
	gid := -1
	for _, m := range s.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions().GetGids() {
		if m.GetContainerId() == 0 {
			gid = int(m.GetHostId())
		}
	}
	if gid < 0 {
		return "", status.Error(codes.InvalidArgument, "usernsOptions.gids: root is not mapped")
	}
	shared := filepath.Dir(way)
	for _, d := range []struct {
		dir  string
		mode os.FileMode
	}{{filepath.Dir(shared), 0o711}, {shared, 0o711}, {way, 0o710}} {
		err := os.Mkdir(d.dir, d.mode)
		if err == nil {
			err = os.Chmod(d.dir, d.mode) // whatever the umask is
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("make mount point: %w", err)
		}
	}
	if err := os.Chown(way, 0, gid); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	return rootfs, nil
}

// namespaces decides which namespaces the container joins.
func (r *Runtime) namespaces(c *containerState, s *sandboxState) (oci.Namespaces, error) {
	sc := r.sandboxConfig(c.record().SandboxID, s.cfg)
	paths := sandbox.Layout(sc)
	out := oci.Namespaces{Net: paths.Net, IPC: paths.IPC, UTS: paths.UTS, User: paths.User}
	own := c.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch own.GetPid() {
	case runtimeapi.NamespaceMode_CONTAINER:
		out.PrivatePID = true
	case runtimeapi.NamespaceMode_POD:
		// The sandbox of such a pod holds the namespace; a sandbox made
		// without one cannot be joined later.
		if out.PID = paths.PID; out.PID == "" {
			out.PrivatePID = true
		}
	case runtimeapi.NamespaceMode_TARGET:
		target, err := r.containerFor(own.GetTargetId())
		if err != nil {
			return out, err
		}
		rec := target.record()
		if rec.SandboxID != c.record().SandboxID {
			return out, status.Errorf(codes.InvalidArgument, "targetID: container %s is of another sandbox", rec.ID)
		}
		if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return out, status.Errorf(codes.FailedPrecondition, "targetID: container %s does not run", rec.ID)
		}
		out.PID = "/proc/" + strconv.Itoa(rec.PID) + "/ns/pid"
	}
	return out, nil
}

// volumes prepares what the image declares as volumes, and mounts of images.
func (r *Runtime) volumes(ctx context.Context, c *containerState, img *image.Image, rootfs string) ([]oci.Volume, error) {
	rec := c.record()
	taken := map[string]bool{}
	var out []oci.Volume
	for i, m := range c.cfg.GetMounts() {
		taken[filepath.Clean(m.GetContainerPath())] = true
		if m.GetImage().GetImage() == "" {
			continue
		}
		mounted, err := r.images.Ensure(ctx, m.GetImage().GetImage())
		if err != nil {
			return nil, err
		}
		target := filepath.Join(r.containerRun(rec.ID), "images", strconv.Itoa(i))
		if err := r.layers.Mount(mounted.Chain(), "", target); err != nil {
			return nil, err
		}
		err = r.updateContainer(c, func(x *containerRecord) { x.Chain = append(slices.Clone(x.Chain), mounted.Chain()...) })
		if err != nil {
			return nil, err
		}
		source, err := subPath(target, m.GetImageSubPath())
		if err != nil {
			return nil, err
		}
		out = append(out, oci.Volume{Source: source, Destination: m.GetContainerPath(), ReadOnly: true, Options: m.GetMountOptions()})
	}
	for path := range img.ConfigFile().Config.Volumes {
		path = filepath.Clean("/" + path)
		if taken[path] || path == "/" {
			continue
		}
		dir := filepath.Join(r.containerDir(rec.ID), "volumes", newID()[:12])
		if err := container.CopyVolume(rootfs, path, dir); err != nil {
			return nil, err
		}
		out = append(out, oci.Volume{Source: dir, Destination: path})
	}
	return out, nil
}

// subPath finds a directory or file inside a mounted image, keeping to it.
func subPath(root, sub string) (string, error) {
	if sub == "" {
		return root, nil
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat2(dir, filepath.Clean("/" + sub)[1:], &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "mounts.imageSubPath: %q is not in the image: %v", sub, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The image is mounted read-only: the name stays what it is.
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}
